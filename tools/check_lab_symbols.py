#!/usr/bin/python3
"""Proves that the product holds none of the lab: no mutants, no simulator, no guard that can be missing.

    tools/check_lab_symbols.py --lab BINARY --mutants lab/mutants.cc
                               [--build DIR --target NAME --lab-target NAME] PRODUCT...

A PRODUCT is a binary or an archive. Three marks of the lab are looked for, none of which may be there:
  symbols   of the namespaces kvferry::sim and kvferry::lab;
  names     of the mutants, as text (the table in lab/mutants.cc);
  objects   compiled with KVFERRY_LAB (then core/guards.h asks each guard at run time) among all that
            the target NAME of a Ninja build folder is made from.
The lab's own binary must have all three, or this check could not see them.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

LAB_SYMBOL = re.compile(r"\bkvferry::(sim|lab)::")
MUTANT_NAME = re.compile(r'Words\{"([a-z-]+)"')
LAB_DEFINE = re.compile(r"-D\s*KVFERRY_LAB\b")
OUTPUT = re.compile(r" -o (\S+)")


def symbols_of(path):
    # Of archives, each member's; undefined ones count, too.
    result = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"lab_symbols: nm {path} failed: {result.stderr.strip()}")
    lines = result.stdout.splitlines()
    if not lines:
        sys.exit(f"lab_symbols: {path} has no symbols; a stripped file proves nothing")
    return [line for line in lines if LAB_SYMBOL.search(line)]


def names_in(path, names):
    content = pathlib.Path(path).read_bytes()
    return [name for name in names if name.encode() in content]


def objects_with_switches(build):
    """Objects of the build folder that are compiled with KVFERRY_LAB, as Ninja names them."""
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    return {OUTPUT.search(entry["command"]).group(1) for entry in commands
            if LAB_DEFINE.search(entry["command"])}


def inputs_of(build, target):
    result = subprocess.run(["ninja", "-C", build, "-t", "inputs", target], capture_output=True,
                            text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"lab_symbols: ninja -t inputs {target} failed: {result.stdout}{result.stderr}")
    return set(result.stdout.splitlines())


def check_objects(build, target, lab_target):
    errors = []
    switched = objects_with_switches(build)
    if found := sorted(switched & inputs_of(build, target)):
        errors.append(f"{target} is made from {len(found)} objects that are compiled with KVFERRY_LAB, "
                      f"as {found[0]}")
    if not switched & inputs_of(build, lab_target):
        errors.append(f"{lab_target} is made from no object that is compiled with KVFERRY_LAB: the check "
                      "for them sees nothing")
    return errors


def check_product(path, names):
    errors = []
    if found := symbols_of(path):
        errors.append(f"{path} has {len(found)} symbols of the lab, as {found[0].strip()}")
    if found := names_in(path, names):
        errors.append(f"{path} has names of mutants: {', '.join(found)}")
    return errors


def check_lab(path, names):
    errors = []
    if not symbols_of(path):
        errors.append(f"{path} has no symbol of the lab: the check for them sees nothing")
    if missing := sorted(set(names) - set(names_in(path, names))):
        errors.append(f"{path} lacks names of mutants: {', '.join(missing)}")
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("products", nargs="+", metavar="PRODUCT")
    parser.add_argument("--lab", required=True, help="the lab's binary")
    parser.add_argument("--mutants", required=True, help="source with the table of mutants")
    parser.add_argument("--build", type=pathlib.Path, help="Ninja build folder")
    parser.add_argument("--target", default="kvferry", help="the product's binary in it")
    parser.add_argument("--lab-target", default="kvferry-lab", help="the lab's binary in it")
    options = parser.parse_args()

    names = MUTANT_NAME.findall(pathlib.Path(options.mutants).read_text(encoding="utf-8"))
    if not names:
        print(f"lab_symbols: {options.mutants} names no mutant")
        return 1
    errors = check_lab(options.lab, names)
    for path in options.products:
        errors += check_product(path, names)
    if options.build:
        errors += check_objects(options.build, options.target, options.lab_target)
    for error in errors:
        print(error)
    if errors:
        print("Rule: the product links kvferry_core and never kvferry_core_lab, kvferry_sim_lab or "
              "kvferry_lab; only those define KVFERRY_LAB.")
        print(f"lab_symbols: {len(errors)} errors")
        return 1
    print(f"lab_symbols: {len(options.products)} files of the product, none of {len(names)} mutants in "
          "them; all in the lab")
    return 0


if __name__ == "__main__":
    sys.exit(main())
