#!/usr/bin/python3
"""Runs all drills, several times over, and reads what sanitizers have to say of their processes.

    tools/check_long/drills.py --tree build/release --out FOLDER [--rounds N] [--long] [--wide]
                               [--guard off]

Exit 0 only when every drill of every round ended as it must (with --guard off: its failure showed)
and no process of any left a sanitizer's report. What each round told and its JSON are in FOLDER,
as are the reports and the logs and journals of all processes. The last line printed says what was seen.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys

EXIT_OK, EXIT_SHOWED = 0, 1
REPORT = "sanitizer"


def environment(out):
    """Ranks are killed and their output is the drill's, so that reports need files of their own."""
    settings = dict(os.environ)
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
        given = settings.get(name)
        settings[name] = (f"{given}:" if given else "") + f"log_path={out / REPORT}"
    settings["TSAN_OPTIONS"] += ":second_deadlock_stack=1"
    return settings


def run_round(options, number):
    """Returns what went wrong, as a list of sentences, and the rows of the round."""
    name = f"round-{number}"
    words = [options.tree / "kvferry", "drill", "all", "--guard", options.guard, "--json",
             options.out / f"{name}.json", "--keep", options.out / name]
    words += ["--long"] if options.long else []
    words += ["--bounds", "wide"] if options.wide else []
    with open(options.out / f"{name}.log", "w", encoding="utf-8") as log:
        code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False,
                              stdin=subprocess.DEVNULL, env=environment(options.out)).returncode
    try:
        rows = json.loads((options.out / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError) as error:
        return [f"round {number}: no report ({error!r}), exit {code}"], []
    must = "showed" if options.guard == "off" else "did not show"
    wrong = [f"round {number}: {row['drill']}: {row['failure']}: {row['verdict']}"
             for row in rows if row["failure"] != must]
    if not rows:
        wrong.append(f"round {number}: no drill was run")
    wanted = EXIT_SHOWED if options.guard == "off" else EXIT_OK
    if code != wanted:
        wrong.append(f"round {number}: exit {code}, must be {wanted}")
    return wrong, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tree", type=pathlib.Path, required=True, help="build folder")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for what is told")
    parser.add_argument("--rounds", type=int, default=1, help="how often (default 1)")
    parser.add_argument("--long", action="store_true", help="the drills' long forms")
    parser.add_argument("--wide", action="store_true", help="time bounds ten times longer")
    parser.add_argument("--guard", choices=("on", "off"), default="on")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    for left in options.out.glob(f"{REPORT}.*"):
        left.unlink()

    wrong = []
    seconds = collections.defaultdict(list)
    for number in range(1, options.rounds + 1):
        found, rows = run_round(options, number)
        wrong += found
        for row in rows:
            seconds[row["drill"]].append(row["seconds"])
        print(f"round {number}: {len(rows)} drills in {sum(row['seconds'] for row in rows):.0f} s",
              flush=True)
    for drill, taken in seconds.items():
        print(f"{drill:18} " + " ".join(f"{each:7.1f} s" for each in taken))
    reports = sorted(path.name for path in options.out.glob(f"{REPORT}.*"))
    wrong += [f"a sanitizer's report: {options.out / name}" for name in reports]
    for each in wrong:
        print(each)
    print(f"{options.rounds} rounds of {len(seconds)} drills, guards {options.guard}: "
          + (f"{len(wrong)} things went wrong" if wrong else "each as it must be, no report"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
