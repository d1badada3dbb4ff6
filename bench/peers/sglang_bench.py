#!/usr/bin/python3
"""Installs SGLang's control plane for this host's CPU and compares kvferry's whole rooms with it.

    sglang_bench.py --kvferry FILE [--print-command] [-- ARGUMENTS of kvferry bench handoff]

One that can't be installed or does not start is named with its error, kvferry is measured all the
same, and the exit code is 1, since nothing was shown.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys

import bench_peers

NAME = "sglang"


def command():
    """Returns the command of the peer, once it has started here."""
    words = [str(bench_peers.venv("peer-sglang")), str(bench_peers.HERE / "sglang_peer.py")]
    about = bench_peers.try_start(words)
    print(f"peers: {NAME}: {about['version']}; {about['settings']}", file=sys.stderr, flush=True)
    return shlex.join(["exec", *words])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kvferry", required=True, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--print-command", action="store_true",
                        help="print SGLang's command, measure nothing")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT")
    options = parser.parse_args()
    print(f"peers: {NAME}: install", file=sys.stderr, flush=True)
    missing, peer = None, []
    try:
        started = command()
        if options.print_command:
            print(started)
            return 0
        peer = ["--peer", f"{NAME}={started}"]
    except bench_peers.Missing as error:
        missing = error
        if options.print_command:
            print(f"peers: {NAME}: MISSING: {error}", file=sys.stderr)
            return 1
    code = subprocess.run([options.kvferry, "bench", "handoff", "--check", *peer,
                           *options.arguments], check=False).returncode
    if missing:
        print(f"peers: {NAME} is missing and was not compared: {missing}", file=sys.stderr)
    return code or (1 if missing else 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
