#!/usr/bin/python3
"""Runs one drill as people do, and compares its exit code and its report with what they must be.

    drill_test.py PROGRAM NAME on|off      the drill: 0 with all guards, 1 without the one it is about;
                                           outcomes and order, with time bounds ten times longer
    drill_test.py PROGRAM usage            what is no drill is refused, and --list knows them all
    drill_test.py PROGRAM no-lab           without its lab beside it the program says so: 3
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PATIENCE_S = 100
EXIT_OK, EXIT_SHOWED, EXIT_USAGE, EXIT_NOT_RUN = 0, 1, 2, 3


def run(program, *words):
    return subprocess.run([program, "drill", *words], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)


def expect(what, found, wanted, result):
    if found != wanted:
        print(result.stdout, result.stderr, sep="\n", file=sys.stderr)
        sys.exit(f"{what}: {found!r}, must be {wanted!r}")


def living_processes_of(folder):
    """Names in /proc whose command line has the drill's folder."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and entry.parent.name != str(os.getpid()):
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def check_drill(program, name, guard):
    with tempfile.TemporaryDirectory(prefix="kvferry-drill-test-") as folder:
        report_file = pathlib.Path(folder) / "report.json"
        result = run(program, name, "--guard", guard, "--bounds", "wide", "--json", report_file,
                     "--keep", folder)
        shows = guard == "off"
        expect("exit code", result.returncode, EXIT_SHOWED if shows else EXIT_OK, result)
        report = json.loads(report_file.read_text(encoding="utf-8"))
        row = report["rows"][0]
        expect("command", report["command"], "drill", result)
        expect("ok", report["ok"], not shows, result)
        expect("drill", row["drill"], name, result)
        expect("failure", row["failure"], "showed" if shows else "did not show", result)
        expect("findings", row["findings"] > 0, shows, result)
        expect("processes left", living_processes_of(folder), [], result)
        print(f"{name}, guard {guard}: {row['seconds']:.1f} s, {row['verdict']}")


def check_usage(program):
    listed = run(program, "--list")
    expect("exit code of --list", listed.returncode, EXIT_OK, listed)
    for name in ("interleave", "restart", "page-reuse", "silent-peer"):
        expect(f"{name} is listed", name in listed.stdout, True, listed)
    for words in ((), ("no-such-drill",), ("page-reuse", "--guard", "maybe"), ("--no-such-option",)):
        refused = run(program, *words)
        expect(f"exit code of {words}", refused.returncode, EXIT_USAGE, refused)
    expect("names are told", "page-reuse" in run(program, "no-such-drill").stderr, True, refused)


def check_without_lab(program):
    with tempfile.TemporaryDirectory(prefix="kvferry-drill-test-") as folder:
        alone = shutil.copy(program, folder)
        result = run(alone, "page-reuse")
        expect("exit code", result.returncode, EXIT_NOT_RUN, result)
        expect("it says what is missing", "kvferry-lab" in result.stderr, True, result)


def main():
    program, what = sys.argv[1:3]
    if what == "usage":
        check_usage(program)
    elif what == "no-lab":
        check_without_lab(program)
    else:
        check_drill(program, what, sys.argv[3])


if __name__ == "__main__":
    main()
