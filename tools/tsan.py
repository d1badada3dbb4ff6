#!/usr/bin/python3
"""Builds the tests of everything that has threads with ThreadSanitizer and runs them.

    tools/tsan.py [--jobs N] [FOLDER...]     folders of tests/, for example conformance net

Exit 0 only when each test passed and ThreadSanitizer reported nothing (a report makes its test
fail). The preset tsan links a libzmq that is built with ThreadSanitizer too; see
tools/setup/tsan_libzmq.py.
"""

import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TREE = ROOT / "build/tsan"
# Folders without threads of their own (base to core, the simulator) are left out: other sanitizers
# see them.
FOLDERS = ("support", "conformance", "unit/data_plane/shm", "unit/net", "unit/runtime", "unit/dialect")
# A test that is stopped by its time limit has failed; all run several times slower than usual.
OPTIONS = "second_deadlock_stack=1 halt_on_error=0 exitcode=66"


def run(*command, **environment):
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False,
                          env={**os.environ, **environment}).returncode


def folder_of(name):
    """The folder of this name, or whose last part it is."""
    return next((folder for folder in FOLDERS if name in (folder, folder.rsplit("/", 1)[-1])), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="default: all of them")
    parser.add_argument("--jobs", default=str(os.cpu_count()), metavar="N",
                        help="parallel compilations (default: number of cores)")
    options = parser.parse_args()
    unknown = [name for name in options.folders if not folder_of(name)]
    if unknown:
        parser.error(f"no folder '{unknown[0]}'; there are: {', '.join(FOLDERS)}")
    folders = [folder_of(name) for name in options.folders] or list(FOLDERS)

    if run(sys.executable, "tools/setup/tsan_libzmq.py", JOBS=options.jobs) != 0:
        return 1
    if not (TREE / "build.ninja").is_file() and run("cmake", "--preset", "tsan") != 0:
        return 1
    targets = [f"tests/{folder}/all" for folder in folders]
    if run("cmake", "--build", TREE, "-j", options.jobs, "--target", *targets) != 0:
        return 1
    # One at a time: the tests have many threads as it is.
    failed = [folder for folder in folders
              if run("ctest", "--test-dir", TREE / "tests" / folder, "--output-on-failure",
                     "--no-tests=error", TSAN_OPTIONS=OPTIONS) != 0]
    if failed:
        print(f"tsan: failed in {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
