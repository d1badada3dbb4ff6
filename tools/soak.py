#!/usr/bin/python3
"""Runs the simulator over ever more seeds, in blocks, and goes on where the last call stopped.

    tools/soak.py [--seeds N] [--kvferry FILE] [--state FILE]

Seeds count up over all calls and commits, so that no seed is spent twice; how many passed on which
commit is kept apart, since only a sum on one commit says something about that commit. --seeds (make
soak SEEDS=N) limits this call; without it runs until it is interrupted or a seed fails.
Exit 0 when every block passed, 1 when a seed failed (the call after that goes on behind its block),
2 when the simulator could not be run.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from check_long import tree

BLOCK_SEEDS = 10_000


def load(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"next_seed": 0, "commits": {}, "failed_blocks": []}


def save(path, state):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def run_block(kvferry, first, seeds, result):
    """The exit status and the version that the simulator gave."""
    result.parent.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    # The tables of a block go to a file beside its result; what failed is told on stderr, too.
    with open(result.with_suffix(".log"), "w", encoding="utf-8") as log:
        code = subprocess.run([str(kvferry), "sim", "--from", str(first), "--seeds", str(seeds),
                               "--json", str(result)], cwd=tree.ROOT, stdout=log,
                              check=False).returncode
    try:
        answer = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 2, ""  # A block without a result was not run, whatever the exit status says.
    # Both must say so: a report of a failure with exit 0 would be a bug, and no pass.
    return (code if code != 0 or answer.get("ok") is True else 1), str(answer.get("version", ""))


def show(state):
    print(f"{'commit':60} {'version':10} {'seeds':>10}")
    for key, entry in state["commits"].items():
        print(f"{key:60} {entry['version']:10} {entry['seeds']:10}")
    total = sum(entry["seeds"] for entry in state["commits"].values())
    failed = state["failed_blocks"]
    print(f"soak: {total} seeds passed in sum, {len(failed)} blocks with a violation")
    for block in failed:
        print(f"  seeds {block['first']} to {block['first'] + block['seeds'] - 1} on {block['commit']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=0, help="at most so many now; 0: no limit")
    parser.add_argument("--kvferry", type=pathlib.Path, default=tree.ROOT / "build/release/kvferry")
    parser.add_argument("--state", type=pathlib.Path, default=tree.ROOT / "build/soak/state.json")
    options = parser.parse_args()
    if options.seeds < 0:
        parser.error("--seeds must not be negative")
    if not options.kvferry.is_file():
        print(f"soak: {options.kvferry} is missing; fix: make", file=sys.stderr)
        return 2
    state = load(options.state)
    key = tree.key()
    left = options.seeds
    status = 0
    try:
        while status == 0 and (left > 0 or options.seeds == 0):
            seeds = min(BLOCK_SEEDS, left) if options.seeds else BLOCK_SEEDS
            first = state["next_seed"]
            status, version = run_block(options.kvferry, first, seeds,
                                        options.state.with_name("block.json"))
            if status not in (0, 1):
                print("soak: the simulator could not be run", file=sys.stderr)
                status = 2
                break
            state["next_seed"] = first + seeds
            entry = state["commits"].setdefault(key, {"version": version, "seeds": 0})
            if status == 0:
                entry["seeds"] += seeds
            else:
                state["failed_blocks"].append({"commit": key, "first": first, "seeds": seeds})
            save(options.state, state)
            left -= seeds
            print(f"soak: {entry['seeds']} seeds on this commit", file=sys.stderr)
    except KeyboardInterrupt:
        print("soak: interrupted; the next call goes on here", file=sys.stderr)
    show(state)
    return status


if __name__ == "__main__":
    sys.exit(main())
