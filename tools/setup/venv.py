#!/usr/bin/python3
"""Makes the virtual environment .cache/venv-NAME from requirements-NAME.txt, once.

    tools/setup/venv.py [--no-deps] NAME

With --no-deps only what the requirements list is installed, and pip does not ask that they list all
that they depend on.

A stamp in the environment holds the hash of the requirements and the Python that made it; while it
fits, nothing is called, so a second run needs no network.
"""

import argparse
import hashlib
import pathlib
import sys
import tempfile

import cache
import clients

HERE = pathlib.Path(__file__).resolve().parent
STAMP = "kvferry-stamp"


def main():
    names = sorted(path.stem.removeprefix("requirements-")
                   for path in HERE.glob("requirements-*.txt"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("name", choices=names)
    parser.add_argument("--no-deps", action="store_true", help="install only what is listed")
    options = parser.parse_args()
    name = options.name

    requirements = HERE / f"requirements-{name}.txt"
    cache_folder = cache.folder()
    # The real path: scripts inside an environment name it, and several clones may share it.
    venv = cache_folder / f"venv-{name}"
    stamp = venv / STAMP
    wanted = f"{hashlib.sha256(requirements.read_bytes()).hexdigest()} {sys.version} {venv}\n"

    with cache.locked(cache_folder):
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return 0
        with tempfile.TemporaryDirectory(prefix=cache.STAGING_PREFIX, dir=cache_folder) as staging:
            progress = clients.Progress(f"Python packages for {name}")
            clients.make_venv(venv, progress)
            clients.pip(venv, ["install", "--quiet", "--no-cache-dir", "--require-hashes",
                               *(["--no-deps"] if options.no_deps else []),
                               "--only-binary", ":all:", "-r", requirements], progress, staging)
            stamp.write_text(wanted, encoding="utf-8")  # Last: without it the venv is made anew.
            progress.done()
    return 0


if __name__ == "__main__":
    cache.run_main(main)
