"""The cache folder that the setup scripts fill: `.cache/` at the root of the tree.

With KVFERRY_CACHE set, `.cache` becomes a link to that folder, so that several clones share one.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = ROOT / ".cache"
STAGING_PREFIX = ".staging-"


class SetupError(Exception):
    """A failure that the user can act on; its text says what, where and how to fix it."""


def folder():
    """Returns the cache folder with links resolved, made if need be."""
    wanted = os.environ.get("KVFERRY_CACHE")
    if not wanted:
        if LINK.is_symlink() and not LINK.exists():
            raise SetupError(f"{LINK} links to {os.readlink(LINK)}, which does not exist\n"
                             "  fix: remove the link, or create that folder")
        LINK.mkdir(exist_ok=True)
        return LINK.resolve()

    target = pathlib.Path(wanted).expanduser().absolute()
    target.mkdir(parents=True, exist_ok=True)
    if LINK.is_symlink():
        if LINK.resolve() != target.resolve():
            LINK.unlink()
    elif LINK.exists():
        if LINK.resolve() == target.resolve():
            return LINK.resolve()
        if any(LINK.iterdir()):
            raise SetupError(f"KVFERRY_CACHE is {target}, but {LINK} is a folder of its own\n"
                             f"  fix: move its contents to {target} and remove it,"
                             " or unset KVFERRY_CACHE")
        LINK.rmdir()
    if not LINK.is_symlink():
        LINK.symlink_to(target)
    return target.resolve()


@contextlib.contextmanager
def locked(cache):
    """Holds the cache against other setup runs, and removes what a killed one left behind."""
    with open(cache / ".lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"setup: waiting for another setup run in {cache}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in cache.glob(STAGING_PREFIX + "*"):
            shutil.rmtree(left_over, ignore_errors=True)
        yield


def run_main(main):
    """Runs a script's main() and turns the failures that a user can act on into text."""
    try:
        sys.exit(main())
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        print(f"setup: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("setup: interrupted", file=sys.stderr)
        sys.exit(130)
