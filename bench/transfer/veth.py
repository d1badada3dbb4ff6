#!/usr/bin/python3
"""Runs `kvferry bench transfer` over a veth pair between two network namespaces.

    bench/transfer/veth.py [--kvferry BINARY] [-- OPTIONS of kvferry bench transfer]

The source and the target enter one namespace each; the pair is all that joins them, so that every
byte takes the path of an Ethernet device instead of the loopback's. Only tcp (with its raw stream) is
measured unless OPTIONS say otherwise. Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2; where
they are missing it says so and exits with 3. Else its exit code is the bench's.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_RUN = 3
# Documentation's network (RFC 5737), which nobody has.
ADDRESSES = {"a": "192.0.2.1", "b": "192.0.2.2"}


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, stdout=subprocess.DEVNULL,
                   stderr=None if check else subprocess.DEVNULL)


@contextlib.contextmanager
def two_networks(mtu):
    """Names of two namespaces, joined by a veth pair; gone afterwards, whatever happens."""
    names = {end: f"kvferry-{os.getpid()}-{end}" for end in ADDRESSES}
    device = {end: f"kvf{os.getpid() % 1000000}{end}" for end in ADDRESSES}
    try:
        for name in names.values():
            ip("netns", "add", name)
        ip("link", "add", device["a"], "netns", names["a"], "mtu", str(mtu), "type", "veth",
           "peer", "name", device["b"], "netns", names["b"], "mtu", str(mtu))
        for end, address in ADDRESSES.items():
            ip("-n", names[end], "address", "add", f"{address}/24", "dev", device[end])
            ip("-n", names[end], "link", "set", device[end], "up")
            ip("-n", names[end], "link", "set", "lo", "up")
        yield names
    finally:
        for name in names.values():
            ip("netns", "delete", name, check=False)  # and its end of the pair


def why_not():
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian package iproute2)"
    if os.geteuid() != 0:
        return "it takes root to make network namespaces"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kvferry", default=str(ROOT / "build/release/kvferry"), metavar="BINARY")
    parser.add_argument("--mtu", type=int, default=1500, metavar="BYTES",
                        help="of the pair (default: 1500)")
    parser.add_argument("options", nargs="*", metavar="OPTIONS", help="of kvferry bench transfer")
    arguments = parser.parse_args()
    reason = why_not()
    if reason is None:
        try:
            with two_networks(arguments.mtu) as names:
                return subprocess.run(
                    [arguments.kvferry, "bench", "transfer", "--engines", "tcp", "--host",
                     ADDRESSES["b"], "--namespaces", f"{names['a']},{names['b']}",
                     *arguments.options], check=False).returncode
        except subprocess.CalledProcessError as error:
            reason = f"this machine does not allow it: {' '.join(error.cmd)} failed"
    print(f"veth: not run: {reason}", file=sys.stderr)
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
