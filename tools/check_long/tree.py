"""Which tree a result belongs to: the commit, and a hash of what differs from it."""

import hashlib
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def commit():
    return git("rev-parse", "HEAD").decode().strip()


def key():
    """The commit; with local changes (untracked files too) also a hash of them."""
    changes = git("diff", "HEAD", "--binary")
    untracked = git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    digest = hashlib.sha256(changes)
    dirty = bool(changes)
    for name in sorted(filter(None, untracked)):
        path = ROOT / name.decode()
        if path.is_file():
            dirty = True
            digest.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return commit() + (f"+{digest.hexdigest()[:16]}" if dirty else "")
