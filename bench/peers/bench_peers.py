#!/usr/bin/python3
"""Installs and builds the peers, says which of them are there, and compares kvferry with those.

    bench_peers.py --kvferry FILE [--peers "NAME..."] [-- ARGUMENTS of kvferry bench transfer]

Each peer stands once with its default settings and once with tuned ones (NAME-tuned). One that
can't be installed or does not start is named with its error and the others are measured all the
same; the exit code is then 1 whatever the figures say, since nothing was shown about that one.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "peers"
SETUP = ROOT / "tools" / "setup"
BUILD = ROOT / "build"
CACHE = ROOT / ".cache"
START_SECONDS = 120
ERROR_LINES = 5


class Missing(Exception):
    """Why a peer can't be measured here."""


def call(*command):
    result = subprocess.run([str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False)
    if result.returncode != 0:
        lines = result.stdout.strip().splitlines()[-ERROR_LINES:]
        raise Missing(f"{pathlib.Path(str(command[0])).name} failed: " + " | ".join(lines))


def venv(name):
    """Makes a pinned environment once and returns its Python."""
    call(sys.executable, SETUP / "venv.py", "--no-deps", name)
    return CACHE / f"venv-{name}" / "bin" / "python"


def build(folder, peer, *settings):
    call("cmake", "-S", HERE, "-B", BUILD / folder, "-G", "Ninja", f"-DPEERS={peer}", *settings)
    call("cmake", "--build", BUILD / folder)
    return [BUILD / folder / f"{peer}_peer"]


def ucx():
    return build("peers-ucx", "ucx")


def ucx_new():
    python = venv("peer-ucx")
    root = next((python.parents[1] / "lib").glob("python3*/site-packages/libucx"), None)
    if root is None:
        raise Missing(f"no libucx below {python.parents[1]}")
    return build("peers-ucx-new", "ucx", f"-DUCX_ROOT={root}")


def libfabric():
    return build("peers-fabric", "fabric")


def mooncake():
    return [venv("peer-mooncake"), HERE / "mooncake_peer.py"]


def nixl():
    return [venv("peer-nixl"), HERE / "nixl_peer.py"]


PEERS = {"ucx": ucx, "ucx-new": ucx_new, "libfabric": libfabric, "mooncake": mooncake, "nixl": nixl}


def try_start(command):
    """Returns what the peer says of itself; its figures come later."""
    try:
        result = subprocess.run(command, input="quit\n", stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, timeout=START_SECONDS,
                                check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"not ready within {START_SECONDS} s") from None
    line = result.stdout.strip().splitlines()[0] if result.stdout.strip() else ""
    if line.startswith("ready "):
        return json.loads(line.removeprefix("ready "))
    errors = result.stderr.strip().splitlines()[-ERROR_LINES:]
    raise Missing(line or " | ".join(errors) or f"ended with exit code {result.returncode}")


def gather(names):
    """Returns the commands of the peers that work, and the errors of the others by name."""
    commands, missing = {}, {}
    try:
        call(SETUP / "packages.sh", "build", "peers")
    except Missing as error:  # What is installed already may still do.
        print(f"peers: packages: {error}", file=sys.stderr)
    for name in names:
        print(f"peers: {name}: install", file=sys.stderr, flush=True)
        try:
            base = [str(word) for word in PEERS[name]()]
            for suffix, options in (("", []), ("-tuned", ["--tuned"])):
                about = try_start([*base, *options])
                print(f"peers: {name}{suffix}: {about['version']}; {about['settings']}",
                      file=sys.stderr, flush=True)
                commands[name + suffix] = shlex.join(["exec", *base, *options])
        except Missing as error:
            missing[name] = str(error)
            print(f"peers: {name}: MISSING: {error}", file=sys.stderr, flush=True)
    return commands, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kvferry", required=True, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--peers", default="", metavar="NAMES", help=f"of {' '.join(PEERS)}")
    parser.add_argument("--print-commands", action="store_true",
                        help="print NAME=COMMAND lines, measure nothing")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT")
    options = parser.parse_args()
    names = options.peers.split() or list(PEERS)
    for name in names:
        if name not in PEERS:
            parser.error(f"no peer '{name}'; there are: {' '.join(PEERS)}")

    commands, missing = gather(names)
    if options.print_commands:
        print("\n".join(f"{name}={command}" for name, command in commands.items()))
        code = 0
    else:
        peers = [word for name, command in commands.items() for word in ("--peer",
                                                                         f"{name}={command}")]
        code = subprocess.run([options.kvferry, "bench", "transfer", "--check", *peers,
                               *options.arguments], check=False).returncode
    for name, error in missing.items():
        print(f"peers: {name} is missing and was not compared: {error}", file=sys.stderr)
    return code or (1 if missing else 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
