#!/usr/bin/python3
"""Builds the Python package once from this tree and installs it into a folder of its own.

    tools/python_module.py [--build DIR] [--compiler CXX] [--jobs N]

DIR (default build/python) is CMake's build folder; the wheel lands in DIR/dist and what it installs in
DIR/site, for PYTHONPATH. pip runs in the pinned environment .cache/venv-python, offline: the build's
requirements are in it. A second run compiles only what has changed. Prints the wheel's size and the
seconds that it took.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".cache" / "venv-python" / "bin" / "python"


def pip(arguments, env):
    """Runs pip without a network; its output is shown when it fails."""
    result = subprocess.run([PYTHON, "-m", "pip", *arguments], cwd=ROOT, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if result.returncode != 0:
        sys.exit(f"{result.stdout}\npython_module: pip failed with exit code {result.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "python")
    parser.add_argument("--compiler", default="g++", help="C++ compiler (default g++)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations")
    options = parser.parse_args()
    if not PYTHON.exists():
        sys.exit(f"python_module: {PYTHON} is missing\n  fix: tools/setup/venv.py python")
    build = options.build.resolve()
    dist, site = build / "dist", build / "site"
    for folder in (dist, site):
        shutil.rmtree(folder, ignore_errors=True)
    # The folder's depth matters: ccache finds what the other presets' builds in build/ have compiled.
    env = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1",
                        "PYTHONNOUSERSITE": "1", "CMAKE_BUILD_PARALLEL_LEVEL": str(options.jobs)}
    env.pop("PYTHONPATH", None)
    started = time.monotonic()
    pip(["wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-cache-dir",
         "--config-settings", f"build-dir={build}",
         "--config-settings", f"cmake.define.CMAKE_CXX_COMPILER={options.compiler}",
         "--wheel-dir", dist, "."], env)
    seconds = time.monotonic() - started
    (wheel,) = dist.glob("kvferry-*.whl")
    pip(["install", "--quiet", "--no-deps", "--no-cache-dir", "--target", site, wheel], env)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, built in {seconds:.1f} s")


if __name__ == "__main__":
    main()
