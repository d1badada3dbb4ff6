#!/usr/bin/python3
"""The bench's fence case in small, with the target's check and without it.

    tests/conformance/fence_case_test.py KVFERRY

With the check no page changes after its release; without it (in kvferry-lab) pages do, over each
transport, and the bench says so and ends with 1.
"""

import json
import subprocess
import sys

ENGINES = ("shm", "tcp")
RELEASES = 300


def run(kvferry, guard):
    command = [kvferry, "bench", "transfer", "--case", "fence", "--guard", guard, "--engines",
               ",".join(ENGINES), "--pool-bytes", str(64 << 20), "--rounds", "1", "--seconds", "0.05",
               "--releases", str(RELEASES), "--cores", "any", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=100)
    return done.returncode, json.loads(done.stdout)


def figure(report, engine, name):
    return next(row["value"] for row in report["rows"]
                if row["engine"] == engine and row["figure"] == f"fence: {name}")


def check(is_right, what):
    if not is_right:
        sys.exit(f"fence case: {what}")


def main():
    kvferry = sys.argv[1]
    for guard in ("on", "off"):
        code, report = run(kvferry, guard)
        late = {engine: figure(report, engine, "pages with late bytes") for engine in ENGINES}
        seen = f"guard {guard}: exit {code}, pages with late bytes {late}: {report['summary']}"
        print(seen)
        check(report["summary"]["guard"] == guard, seen)
        check(not report["summary"]["failure"], seen)
        check(report["ok"] == (guard == "on") and code == (0 if guard == "on" else 1), seen)
        for engine in ENGINES:
            check(figure(report, engine, "releases under stale writes") >= RELEASES, seen)
            check((late[engine] == 0) == (guard == "on"), seen)


if __name__ == "__main__":
    main()
