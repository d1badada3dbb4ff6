#!/usr/bin/python3
"""Runs one drill as people do, and compares its exit code and its report with what they must be.

    drill_test.py PROGRAM NAME on|off      the drill: 0 with all guards, 1 without the one it is about;
                                           outcomes and order, with time bounds ten times longer
    drill_test.py PROGRAM usage            what is no drill is refused, and --list knows them all
    drill_test.py PROGRAM no-lab           without its lab beside it the program says so: 3
    drill_test.py PROGRAM rounds           tools/check_long/drills.py notices a drill that ended as it
                                           must not, one that could not be run and a sanitizer's word
    drill_test.py PROGRAM against          --against sglang without its environment says how to get it:
                                           3; with one that tells a story it says what that was told
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PATIENCE_S = 100
# Stands for the Python of SGLang's environment: told of the lines it shall answer by its own words.
STORY_TELLER = """#!/bin/sh
echo 'ready {{"version": "SGLang of a test", "settings": "none"}}'
while read -r word && [ "$word" = next ] && read -r line <&3; do echo "$line"; done 3<<'END'
{lines}
END
"""
ROUNDS = pathlib.Path(__file__).resolve().parents[2] / "tools/check_long/drills.py"
# Stands for kvferry: writes the report that it is told to, and what a sanitizer would.
DRILL_TELLER = """#!/bin/sh
while [ "$1" != --json ]; do shift; done
[ -z '{rows}' ] || echo '{{"rows": [{rows}]}}' > "$2"
where=$(printenv '{report}') && where=${{where#*log_path=}} && echo race > "${{where%%:*}}.7"
exit {code}
"""
EXIT_OK, EXIT_SHOWED, EXIT_USAGE, EXIT_NOT_RUN = 0, 1, 2, 3


def run(program, *words, **settings):
    return subprocess.run([program, "drill", *words], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S, **settings)


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
    for words in ((), ("no-such-drill",), ("page-reuse", "--guard", "maybe"), ("--no-such-option",),
                  ("restart", "--against", "nobody"), ("room-identity", "--against", "sglang"),
                  ("restart", "--against", "sglang", "--guard", "off"), ("interleave", "--long"),
                  ("restart", "--against", "sglang", "--long")):
        refused = run(program, *words)
        expect(f"exit code of {words}", refused.returncode, EXIT_USAGE, refused)
    expect("names are told", "page-reuse" in run(program, "no-such-drill").stderr, True, refused)


def check_without_lab(program):
    with tempfile.TemporaryDirectory(prefix="kvferry-drill-test-") as folder:
        alone = shutil.copy(program, folder)
        result = run(alone, "page-reuse")
        expect("exit code", result.returncode, EXIT_NOT_RUN, result)
        expect("it says what is missing", "kvferry-lab" in result.stderr, True, result)


def check_rounds():
    def row(failure):
        return json.dumps({"drill": "restart", "failure": failure, "seconds": 1, "verdict": "seen"})

    sound, showed = row("did not show"), row("showed")
    cases = (("sound", sound, "", 0, (), 0), ("it showed", showed, "", 1, (), 1),
             ("not run", row("not run"), "", 3, (), 1), ("one of two", sound + "," + showed, "", 0, (), 1),
             ("exit code", sound, "", 3, (), 1), ("no report", "", "", 0, (), 1),
             ("address", sound, "ASAN_OPTIONS", 0, (), 1),
             ("undefined", sound, "UBSAN_OPTIONS", 0, (), 1),
             ("race", sound, "TSAN_OPTIONS", 0, (), 1),
             ("guard off", showed, "", 1, ("--guard", "off"), 0),
             ("guard off, silent", sound, "", 0, ("--guard", "off"), 1))
    with tempfile.TemporaryDirectory(prefix="kvferry-drill-test-") as folder:
        root = pathlib.Path(folder)
        teller = root / "kvferry"
        for name, rows, report, code, words, wanted in cases:
            teller.write_text(DRILL_TELLER.format(rows=rows, report=report, code=code),
                              encoding="utf-8")
            teller.chmod(0o755)
            result = subprocess.run([sys.executable, ROUNDS, "--tree", root, "--out",
                                     root / name.replace(" ", "-"), *words],
                                    capture_output=True, text=True, check=False,
                                    timeout=PATIENCE_S)
            expect(f"exit code of '{name}'", result.returncode, wanted, result)


def check_against(program):
    """The launcher alone: what SGLang does is no matter of a test."""
    told = '{"end": "told"}'
    finding = '{"find": "I3", "what": "a room has no end"}'
    stories = (([finding, told], EXIT_SHOWED), (['{"say": "nothing is wrong"}', told], EXIT_OK),
               (['{"end": "not run", "why": "no fault"}'], EXIT_NOT_RUN),
               (['{"say": "then it died"}'], EXIT_NOT_RUN), (['{"sing": "la"}'], EXIT_NOT_RUN))
    with tempfile.TemporaryDirectory(prefix="kvferry-drill-test-") as folder:
        root = pathlib.Path(folder)
        settings = {"cwd": root,
                    "env": {key: value for key, value in os.environ.items() if key != "KVFERRY_CACHE"}}
        words = ("restart", "--against", "sglang", "--keep", root / "kept", "--json", "report.json")
        alone = run(program, *words, **settings)
        expect("exit code without the environment", alone.returncode, EXIT_NOT_RUN, alone)
        expect("it says how to get it", "venv.py --no-deps peer-sglang" in alone.stdout, True, alone)
        for name in (".cache/venv-peer-sglang/bin/python", "bench/peers/sglang_drills/main.py"):
            (root / name).parent.mkdir(parents=True)
            (root / name).touch(mode=0o755)
        for lines, wanted in stories:
            (root / ".cache/venv-peer-sglang/bin/python").write_text(
                STORY_TELLER.format(lines="\n".join(lines)), encoding="utf-8")
            result = run(program, *words, **settings)
            expect(f"exit code of {lines}", result.returncode, wanted, result)
            report = json.loads((root / "report.json").read_text(encoding="utf-8"))
            expect("against", report["summary"]["against"], "sglang", result)
            expect("findings", report["rows"][0]["findings"], lines.count(finding), result)


def main():
    program, what = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    if what == "usage":
        check_usage(program)
    elif what == "no-lab":
        check_without_lab(program)
    elif what == "rounds":
        check_rounds()
    elif what == "against":
        check_against(program)
    else:
        check_drill(program, what, sys.argv[3])


if __name__ == "__main__":
    main()
