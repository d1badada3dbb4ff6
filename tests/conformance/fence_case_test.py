#!/usr/bin/python3
"""The bench's fence case in small, with the target's check and without it.

    tests/conformance/fence_case_test.py KVFERRY

With the check no page changes after its release; without it (in kvferry-lab) pages do, over each
transport, and the bench says so and ends with 1. A late byte takes a copy that is under way when its
pages get their new owner, which a few releases may miss: without the check there are several tries.
"""

import json
import subprocess
import sys

ENGINES = ("shm", "tcp")
RELEASES = 400
TRIES = 6


def run(kvferry, engine, guard):
    """The report, after it was found to agree with the exit code."""
    command = [kvferry, "bench", "transfer", "--case", "fence", "--guard", guard, "--engines", engine,
               "--pool-bytes", str(64 << 20), "--rounds", "1", "--seconds", "0.05", "--releases",
               str(RELEASES), "--cores", "any", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=200)
    report = json.loads(done.stdout)
    seen = f"{engine}, guard {guard}: exit {done.returncode}, {report}"
    check(report["summary"]["guard"] == guard, seen)
    check(not report["summary"]["failure"], seen)
    check(figure(report, "releases under stale writes") >= RELEASES, seen)
    check(done.returncode == (0 if report["ok"] else 1), seen)
    check(report["ok"] == (late_pages(report) == 0), seen)
    return report


def figure(report, name):
    return next(row["value"] for row in report["rows"] if row["figure"] == f"fence: {name}")


def late_pages(report):
    return figure(report, "pages with late bytes")


def check(is_right, what):
    if not is_right:
        sys.exit(f"fence case: {what}")


def main():
    kvferry = sys.argv[1]
    for engine in ENGINES:
        late = late_pages(run(kvferry, engine, "on"))
        print(f"{engine}: {late:.0f} pages with late bytes")
        check(late == 0, f"{engine}: late bytes with the check in place")
        tries = []
        while len(tries) < TRIES and not any(tries):
            tries.append(late_pages(run(kvferry, engine, "off")))
        print(f"{engine}, check missing: {tries} pages with late bytes")
        check(any(tries), f"{engine}: no late byte without the check, which should show some")


if __name__ == "__main__":
    main()
