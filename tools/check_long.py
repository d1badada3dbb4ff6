#!/usr/bin/python3
"""Runs the long checks, part by part, and goes on where the last call stopped.

    tools/check_long.py [PART...] [--again] [--list]

Without PART all of them, in order. A part that passed on this very tree (commit and local changes)
is not run again; one that failed or was interrupted is. What each part printed is in
build/check-long/PART/log, results are in build/check-long/state.json. Each part has 60 minutes.
Exit 0 only when every part has passed on this tree (with PART: each of those), 1 when one has
failed or is missing, 2 for wrong usage.
"""

import argparse
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

from check_long import parts, tree

OUT = tree.ROOT / "build/check-long"
STATE = OUT / "state.json"
PART_TIMEOUT_S = 60 * 60


def load(key):
    """Results of this tree; those of another tree mean nothing."""
    try:
        state = json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state.get("parts", {}) if state.get("tree") == key else {}


def save(key, results):
    OUT.mkdir(parents=True, exist_ok=True)
    partial = STATE.with_suffix(".partial")
    partial.write_text(json.dumps({"tree": key, "parts": results}, indent=2) + "\n",
                       encoding="utf-8")
    partial.replace(STATE)


def run_command(command, log, deadline):
    """Returns None when it succeeded, else what went wrong."""
    log.write(f"$ {shlex.join(command)}\n")
    log.flush()
    try:
        # A group of its own, so that a command that is given up takes its children along.
        process = subprocess.Popen(command, cwd=tree.ROOT, stdout=log, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    try:
        code = process.wait(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"{command[0]}: not done within {PART_TIMEOUT_S // 60} minutes"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if code == 0 else f"{command[0]}: exit {code}"


def run_part(part):
    folder = OUT / part.name
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    commands = [["tools/setup/packages.sh", *part.groups], *part.commands]
    wrong = None
    with open(folder / "log", "w", encoding="utf-8") as log:
        for command in commands:
            filled = [word.replace("{out}", str(folder)) for word in command]
            wrong = run_command(filled, log, started + PART_TIMEOUT_S)
            if wrong:
                break
    return {"ok": wrong is None, "seconds": round(time.monotonic() - started),
            "what": wrong or last_line(folder / "log"),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def last_line(path):
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def show(chosen, results, key):
    print(f"check-long of {key}")
    print(f"{'part':12} {'result':8} {'seconds':>7}  what")
    for part in chosen:
        result = results.get(part.name)
        word = "not run" if result is None else "passed" if result["ok"] else "FAILED"
        seconds = "" if result is None else str(result["seconds"])
        text = part.what if result is None else result["what"]
        print(f"{part.name:12} {word:8} {seconds:>7}  {text[:120]}")


def main():
    names = [part.name for part in parts.PARTS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument("--again", action="store_true", help="run parts that have passed, too")
    parser.add_argument("--list", action="store_true", help="only show what is done")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in names]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; parts: {', '.join(names)}")
    chosen = [part for part in parts.PARTS if not options.parts or part.name in options.parts]

    key = tree.key()
    results = load(key)
    for part in chosen if not options.list else []:
        if results.get(part.name, {}).get("ok") and not options.again:
            print(f"check-long: {part.name} has passed on this tree", file=sys.stderr)
            continue
        print(f"check-long: {part.name}: {part.what} ...", file=sys.stderr, flush=True)
        # Not written down before it ends: an interrupted part counts as not run.
        results.pop(part.name, None)
        save(key, results)
        result = run_part(part)
        if tree.key() != key:
            print("check-long: the tree changed meanwhile; this result is of neither",
                  file=sys.stderr)
            return 1
        results[part.name] = result
        save(key, results)
    show(chosen, results, key)
    return 0 if all(results.get(part.name, {}).get("ok") for part in chosen) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("check-long: interrupted; the next call goes on here", file=sys.stderr)
        sys.exit(1)
