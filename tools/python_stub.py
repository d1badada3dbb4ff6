#!/usr/bin/env python3
"""Writes the stub of the Python module, python/kvferry/_kvferry.pyi, from the module itself.

    tools/python_stub.py [--output FILE]

Run it with a Python that has nanobind and the built kvferry package (tools/python_module.py makes one)
after a signature or a docstring in python/src has changed; tests/python compares the file.
"""

import argparse
import pathlib

import kvferry._kvferry
from nanobind import stubgen

ROOT = pathlib.Path(__file__).resolve().parent.parent
STUB = ROOT / "python" / "kvferry" / "_kvferry.pyi"
PATTERNS = ROOT / "python" / "stub_patterns.txt"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=pathlib.Path, default=STUB, help=f"default: {STUB}")
    options = parser.parse_args()
    generator = stubgen.StubGen(module=kvferry._kvferry, quiet=True,
                                patterns=stubgen.load_pattern_file(str(PATTERNS)))
    generator.put(kvferry._kvferry)
    text = "\n".join(line.rstrip() for line in generator.get().splitlines()).rstrip() + "\n"
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
