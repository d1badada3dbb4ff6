#!/usr/bin/python3
"""Runs clang-tidy 19 with the checks of .clang-tidy over the library's folders.

    tools/tidy.py [FOLDER|FILE...] [--build DIR] [--jobs N]

Without arguments: src/base wire layout core data_plane runtime dialect. Configures a tree of its own
(preset tidy: clang, no precompiled header) for the compile commands, and builds only the generated
headers.
Exit 0 without a finding, 1 with some, 2 when it could not be run.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src/base", "src/wire", "src/layout", "src/core", "src/data_plane", "src/runtime",
           "src/dialect"]
TIDY = "clang-tidy-19"
GENERATED = "src/wire/generated/wire/kvferry_generated.h"
FINDING = re.compile(r"^(/\S+?:\d+:\d+): (?:warning|error): (.*)$", re.MULTILINE)


def configure(build):
    subprocess.run(["cmake", "--preset", "tidy", "-B", str(build)], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(build), "--target", GENERATED], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)


def units(build, wanted):
    """Source files of the compile commands that lie in the wanted folders or are wanted files."""
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    chosen = set()
    for command in commands:
        path = (pathlib.Path(command["directory"]) / command["file"]).resolve()
        if any(path == place or place in path.parents for place in wanted):
            chosen.add(path)
    return sorted(chosen)


def check(build, unit):
    result = subprocess.run([TIDY, "--quiet", "-p", str(build), str(unit)], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return result.returncode, result.stdout, result.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("places", nargs="*", default=FOLDERS, metavar="FOLDER|FILE")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/tidy",
                        help="tree to configure (default build/tidy)")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time (default 2)")
    options = parser.parse_args()
    if shutil.which(TIDY) is None:
        print(f"tidy: {TIDY} is missing; fix: tools/setup/packages.sh tidy", file=sys.stderr)
        return 2
    build = options.build.resolve()
    try:
        configure(build)
    except subprocess.CalledProcessError as error:
        print(f"tidy: {error}", file=sys.stderr)
        return 2
    chosen = units(build, [(ROOT / place).resolve() for place in options.places])
    if not chosen:
        print(f"tidy: no source file in {' '.join(options.places)}", file=sys.stderr)
        return 2

    findings, broken = set(), []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for unit, (code, out, err) in zip(chosen, pool.map(lambda u: check(build, u), chosen)):
            found = FINDING.findall(out)
            # A header is seen by many units; its findings count once.
            new = {(place, text) for place, text in found} - findings
            findings |= new
            if code != 0 and not found:
                broken.append(f"{unit}: {err.strip()[-500:]}")
            for place, text in sorted(new):
                print(f"{pathlib.Path(place).relative_to(ROOT) if place.startswith(str(ROOT)) else place}"
                      f": {text}", flush=True)
    for text in broken:
        print(f"tidy: could not be checked: {text}", file=sys.stderr)
    print(f"tidy: {len(findings)} findings in {len(chosen)} files", file=sys.stderr)
    return 2 if broken else 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
