#!/usr/bin/python3
"""Shows that the checks of this folder can fail: feeds them good and deliberately broken input.

    tools/checks_can_fail.py [--compiler g++]

A check that never fails is worth nothing; this runs each on samples in a temporary folder and
demands that the good one passes and that each broken one is refused with the right words.
"""

import argparse
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

TOOLS = pathlib.Path(__file__).resolve().parent
PYTHON = sys.executable


class Failures:
    def __init__(self):
        self.count = 0
        self.cases = 0

    def expect(self, name, result, want_failure, words):
        self.cases += 1
        output = result.stdout + result.stderr
        failed = result.returncode != 0
        missing = [word for word in words if word not in output]
        crashed = "Traceback" in output
        if failed == want_failure and not missing and not crashed:
            return
        self.count += 1
        print(f"{name}: exit {result.returncode}, wanted {'a failure' if want_failure else 'success'}"
              + (f"; not in its output: {missing}" if missing else ""))
        print("".join(f"  | {line}\n" for line in output.splitlines()), end="")


def run(*command, **arguments):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, **arguments)


# File -> content of one added or replaced file, and the words its refusal must contain.
GOOD_TREE = {
    "include/kvferry/ids.h": "#include <cstdint>\n",
    "include/kvferry/status.h": '#include "kvferry/ids.h"\n',
    "include/kvferry/kv_manager.h": '#include "kvferry/status.h"\n',
    "src/base/clock.h": '#include <mutex>\n#include "kvferry/status.h"\n',
    "src/wire/codec.h": '#include <vector>\n#include "base/prng.h"\n',
    "src/wire/codec.cc": '#include "wire/codec.h"\n#include "wire/kvferry_generated.h"\n',
    "src/layout/plan.h": "#include <span>\n#include <kvferry/ids.h>\n",
    "src/core/event.h": '#include <chrono>\n#include "layout/plan.h"\n#include "wire/codec.h"\n'
                        '// #include "net/link.h"\n/* #include <thread>\n#include <mutex>\n*/\n',
    "src/net/link.h": '#include <zmq.hpp>\n#include <sys/socket.h>\n#include "core/event.h"\n',
    "src/runtime/driver.h": '#include "kvferry/kv_manager.h"\n#include "net/link.h"\n',
    "python/src/gil.h": "#include <Python.h>\n",
    "python/src/manager.cc": '#include "gil.h"\n#include "kvferry/kv_manager.h"\n',
}
BROKEN_FILES = [
    ("upwards", "src/core/bad.h", '#pragma once\n#include "net/link.h"\n',
     ["src/core/bad.h:2:", "'core' (level 2)", "'net' (level 3)", "lower levels only"]),
    ("siblings", "src/wire/bad.h", '#include "layout/plan.h"\n',
     ["src/wire/bad.h:1:", "'layout' (level 1)", "one level"]),
    ("object from below", "src/net/bad.cc", '#include <kvferry/kv_manager.h>\n',
     ["src/net/bad.cc:1:", "public objects", "(level 4)"]),
    ("value needs object", "include/kvferry/ids.h", '#include "kvferry/kv_manager.h"\n',
     ["include/kvferry/ids.h:1:", "public values", "level 4"]),
    ("public needs private", "include/kvferry/kv_manager.h", '#include "base/clock.h"\n',
     ["public headers only"]),
    ("unknown public header", "include/kvferry/new.h", "\n", ["new.h:1:", "has no level"]),
    ("unknown folder", "src/extra/a.h", "\n", ["src/extra/a.h:1:", "has no level"]),
    ("thread in core", "src/core/bad.cc", "#include <thread>\n",
     ["src/core/bad.cc:1:", "<thread>", "threads and locks"]),
    ("socket in wire", "src/wire/bad.cc", "#  include <sys/socket.h>\n", ["operating system"]),
    ("log in layout", "src/layout/bad.cc", "#include <spdlog/spdlog.h>\n", ["spdlog/spdlog.h"]),
    ("file in values", "include/kvferry/ids.h", "#include <fstream>\n", ["input and output"]),
    ("generated header in a header", "src/wire/bad.h", '#include "wire/kvferry_generated.h"\n',
     ["behind the codec"]),
    ("generated header in core", "src/core/bad.cc", '#include "wire/kvferry_generated.h"\n',
     ["behind the codec"]),
    ("path upwards", "src/core/bad.cc", '#include "../net/link.h"\n', ["without '..'"]),
    ("neighbour by bare name", "src/core/bad.cc", '#include "event.h"\n', ["core/event.h"]),
    ("private header in bindings", "python/src/bad.cc", '#include "gil.h"\n#include "base/clock.h"\n',
     ["python/src/bad.cc:2:", "'python' (level 7)", "public headers only"]),
    ("bindings from below", "src/runtime/bad.cc", '#include "python/gil.h"\n',
     ["src/runtime/bad.cc:1:", "'python' (level 7)", "lower levels only"]),
    ("macro", "src/core/bad.cc", "#include HEADER\n", ["through a macro"]),
]


def write_tree(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def try_layers(folder, failures):
    check = TOOLS / "check_layers.py"
    write_tree(folder / "good", GOOD_TREE)
    failures.expect("layers: good tree", run(PYTHON, check, "--root", folder / "good"), False, [])
    for name, path, content, words in BROKEN_FILES:
        tree = folder / name.replace(" ", "-")
        write_tree(tree, {**GOOD_TREE, path: content})
        failures.expect(f"layers: {name}", run(PYTHON, check, "--root", tree), True, words)
    (folder / "empty").mkdir()
    failures.expect("layers: empty tree", run(PYTHON, check, "--root", folder / "empty"), True, [])


GOOD_UNIT = """
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>
namespace kvferry {
int helper(int value);
const char* const kNames[] = {"granted", "covered"};
constexpr int kLimit = 4;
struct Room { virtual ~Room() = default; virtual int step(int now) { return now + kLimit; } };
struct Protocol {
  std::map<int, std::string> names; std::unordered_map<int, std::vector<int>> rooms;
  int step(int now) {
    rooms[now].push_back(helper(now));
    names.emplace(now, kNames[now & 1]);
    return static_cast<int>(rooms.at(now).size() + names.at(now).size()) + Room().step(now);
  }
};
int run(Protocol& protocol, int now) { return protocol.step(now); }
}
"""
# Bodies of broken units, and words that the refusal must contain.
BROKEN_UNITS = [
    ("reads the clock", "#include <chrono>\nlong f() { return "
     "std::chrono::steady_clock::now().time_since_epoch().count(); }",
     ["std::chrono::", "now()", "reads a clock"]),
    ("C time", "#include <ctime>\nlong f() { return time(nullptr); }", ["calls time", "clock"]),
    ("lock", "#include <mutex>\nvoid f(std::mutex& m) { std::lock_guard<std::mutex> lock(m); }",
     ["pthread_mutex_lock"]),
    ("thread", "#include <thread>\nvoid f() { std::thread([] {}).detach(); }", ["std::thread"]),
    ("sleep", "#include <thread>\nvoid f(long n) { "
     "std::this_thread::sleep_for(std::chrono::seconds(n)); }", ["sleep"]),
    ("socket", "#include <sys/socket.h>\nint f() { return socket(1, 1, 0); }", ["calls socket"]),
    ("print", "#include <cstdio>\nvoid f(int n) { printf(\"%d\", n); }", ["printf"]),
    ("environment", "#include <cstdlib>\nchar* f() { return getenv(\"HOME\"); }", ["getenv"]),
    ("randomness", "#include <random>\nunsigned f() { return std::random_device()(); }",
     ["std::random_device"]),
    ("unjudged call", "extern \"C\" int strange(int); int f() { return strange(1); }",
     ["calls strange", "on no list", "How to decide"]),
    ("unjudged call with a string", "#include <string>\nvoid strange(std::string); "
     "void f() { strange(std::string()); }", ["calls strange(", "on no list"]),
    ("higher folder", "namespace kvferry { int above(); } int f() { return kvferry::above(); }",
     ["kvferry::above()", "not defined in"]),
    ("mutable global", "int counter; int f() { return ++counter; }", ["mutable global counter"]),
    ("initialised global", "namespace { int seed = 7; } int f() { return ++seed; }",
     ["mutable global (anonymous namespace)::seed"]),
    ("function's static", "int f() { static int calls = 0; return ++calls; }",
     ["mutable global f()::calls"]),
    ("inline variable", "inline int shared = 0; int f() { return ++shared; }",
     ["mutable global shared"]),
    ("per-thread object", "thread_local int mine; int f() { return ++mine; }",
     ["mutable global mine"]),
    ("static with a constructor", "#include <string>\nconst std::string& f() { "
     "static const std::string text(40, 'x'); return text; }", ["__cxa_guard", "::text in .bss"]),
    ("impure helper", "namespace kvferry { long tick(); } long f() { return kvferry::tick(); }",
     ["impure.o", "reads a clock", "needed by"]),
]
HELPERS = {
    "pure": "namespace kvferry { int helper(int value) { return value * 3; } }",
    "impure": "#include <ctime>\nnamespace kvferry { long tick() { return time(nullptr); } }",
}


def make_archive(folder, compiler, name, units):
    objects = []
    for unit, source in units.items():
        path = folder / f"{unit}.cc"
        path.write_text(source, encoding="utf-8")
        compiled = run(compiler, "-std=c++20", "-O1", "-fPIC", "-c", path, "-o", folder / f"{unit}.o")
        if compiled.returncode != 0:
            sys.exit(f"checks_can_fail: sample {unit} does not compile:\n{compiled.stderr}")
        objects.append(folder / f"{unit}.o")
    archive = folder / f"lib{name}.a"
    subprocess.run(["ar", "rcs", archive, *objects], check=True)
    return archive


def try_symbols(folder, compiler, failures):
    check = TOOLS / "check_core_symbols.py"
    base = make_archive(folder, compiler, "base", HELPERS)
    good = make_archive(folder, compiler, "good", {"good": GOOD_UNIT})
    failures.expect("symbols: good archive", run(PYTHON, check, "--closure", base, good), False, [])
    failures.expect("symbols: helper left out", run(PYTHON, check, good), True,
                    ["kvferry::helper(int)", "not defined in"])
    for number, (name, source, words) in enumerate(BROKEN_UNITS):
        archive = make_archive(folder, compiler, f"bad{number}", {f"bad{number}": source})
        failures.expect(f"symbols: {name}", run(PYTHON, check, "--closure", base, archive), True,
                        words)


LAB_MUTANTS = 'return Words{"ack-early", "Too early."}; return Words{"no-claim", "None."};'
LAB_UNIT = 'namespace kvferry::sim { const char* f() { return "ack-early no-claim"; } }'
# Bodies of the product and of the lab, and words that the refusal must contain.
LAB_SAMPLES = [
    ("simulator in the product", LAB_UNIT, LAB_UNIT, ["symbols of the lab", "kvferry::sim::f()"]),
    ("mutant's name in the product", 'const char* f() { return "no-claim"; }', LAB_UNIT,
     ["names of mutants: no-claim"]),
    ("lab without symbols", GOOD_UNIT, 'const char* f() { return "ack-early no-claim"; }',
     ["no symbol of the lab"]),
    ("lab without a mutant", GOOD_UNIT, 'namespace kvferry::lab { const char* f() { return '
     '"ack-early"; } }', ["lacks names of mutants: no-claim"]),
]
# Objects of kvferry and of kvferry-lab in the build folder, of which b.o and c.o have the switches.
LAB_BUILDS = [
    ("clean build", "a.o", "a.o b.o", []),
    ("switches in the product", "a.o c.o", "b.o", ["kvferry is made from 1 objects", "as c.o"]),
    ("lab without switches", "a.o", "a.o", ["kvferry-lab is made from no object"]),
]


def try_lab_symbols(folder, compiler, failures):
    check = TOOLS / "check_lab_symbols.py"
    mutants = folder / "mutants.cc"
    mutants.write_text(LAB_MUTANTS, encoding="utf-8")
    lab = make_archive(folder, compiler, "lab", {"lab": LAB_UNIT})
    good = make_archive(folder, compiler, "product", {"product": GOOD_UNIT})

    def check_with(lab_file, product, *more):
        return run(PYTHON, check, "--lab", lab_file, "--mutants", mutants, *more, product)

    failures.expect("lab symbols: good product", check_with(lab, good), False, [])
    for number, (name, product, lab_body, words) in enumerate(LAB_SAMPLES):
        failures.expect(f"lab symbols: {name}", check_with(
            make_archive(folder, compiler, f"lab{number}", {f"lab{number}": lab_body}),
            make_archive(folder, compiler, f"product{number}", {f"product{number}": product})),
            True, words)
    for number, (name, product, lab_objects, words) in enumerate(LAB_BUILDS):
        build = folder / f"build{number}"
        write_tree(build, {
            "build.ninja": "rule make\n  command = make\n"
                           + "".join(f"build {unit}.o: make {unit}.cc\n" for unit in "abc")
                           + f"build kvferry: make {product}\nbuild kvferry-lab: make {lab_objects}\n",
            "compile_commands.json": json.dumps(
                [{"command": f"g++{switch} -o {unit}.o -c {unit}.cc"} for unit, switch in
                 (("a", " -DKVFERRY_LABEL"), ("b", " -DKVFERRY_LAB"), ("c", " -DKVFERRY_LAB"))])})
        failures.expect(f"lab symbols: {name}", check_with(lab, good, "--build", build), bool(words),
                        words)


FAKE_NPM = """#!/bin/sh
# Stands in for npm: 'pack' hands out the prepared archive and leaves a note that it was called.
[ "$1" = pack ] || exit 0
echo called >>"$FAKE_NPM_LOG"
cp "$FAKE_NPM_ARCHIVE" .
"""


def try_artefacts(folder, failures):
    """A private copy of the setup scripts with a stand-in for npm; no network."""
    setup = folder / "tools" / "setup"
    setup.mkdir(parents=True)
    for path in (TOOLS / "setup").glob("*.py"):
        (setup / path.name).write_bytes(path.read_bytes())
    content = b"library\n"
    archive = folder / "package.tgz"
    with tarfile.open(archive, "w:gz") as file:
        entry = tarfile.TarInfo("package/lib.so")
        entry.size = len(content)
        file.addfile(entry, io.BytesIO(content))
    npm = folder / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(FAKE_NPM, encoding="utf-8")
    npm.chmod(0o755)
    log = folder / "calls"
    environment = {"PATH": f"{npm.parent}:/usr/bin:/bin", "FAKE_NPM_LOG": str(log),
                   "FAKE_NPM_ARCHIVE": str(archive), "HOME": os.environ.get("HOME", "/")}

    def artefact(archive_hash, file_hash):
        manifest = setup / "artefacts.json"
        manifest.write_text(json.dumps({"artefacts": [{
            "name": "sample", "title": "a sample", "kind": "npm", "package": "sample",
            "version": "1.0.0", "bytes": 100, "sha256": archive_hash, "into": "sample",
            "files": [{"from": "package/lib.so", "to": "lib.so", "sha256": file_hash}],
            "links": {"liblink.so": "lib.so"}}]}), encoding="utf-8")
        return run(PYTHON, setup / "artefacts.py", env=environment)

    def calls():
        return len(log.read_text().splitlines()) if log.exists() else 0

    right_archive = hashlib.sha256(archive.read_bytes()).hexdigest()
    right_file = hashlib.sha256(content).hexdigest()
    place = folder / ".cache" / "sample" / "lib.so"

    def expect_state(name, present, call_count):
        failures.cases += 1
        if place.exists() != present or calls() != call_count:
            failures.count += 1
            print(f"artefacts: {name}: file present {place.exists()}, wanted {present}; client calls "
                  f"{calls()}, wanted {call_count}")

    failures.expect("artefacts: wrong archive", artefact("0" * 64, right_file), True,
                    ["wrong content", "expected: SHA-256 " + "0" * 64, "found:    SHA-256 "
                     + right_archive, "fix:"])
    expect_state("wrong archive is not used", False, 1)
    failures.expect("artefacts: wrong file", artefact(right_archive, "0" * 64), True,
                    ["wrong content", "package/lib.so"])
    expect_state("wrong file is not used", False, 2)
    failures.expect("artefacts: right archive", artefact(right_archive, right_file), False, [])
    expect_state("right archive is used", True, 3)
    failures.expect("artefacts: second run", artefact(right_archive, right_file), False, [])
    expect_state("second run calls no client", True, 3)
    place.write_bytes(b"damaged\n")
    failures.expect("artefacts: damaged cache", artefact(right_archive, right_file), False,
                    ["is damaged"])
    expect_state("damaged file is fetched again", True, 4)


GOOD_RULES = """groups:
  - name: one
    rules:
      - alert: Stuck
        expr: kvferry_rooms_oldest_seconds > 60
        labels: {severity: ticket}
        annotations:
          summary: "a room is stuck"
          action: Look at it.
"""
# What is replaced in the good rules, by what, and the words of the refusal.
BROKEN_RULES = {
    "unknown metric": ("rooms_oldest", "rooms_eldest", ["kvferry_rooms_eldest_seconds"]),
    "no action": ("          action: Look at it.\n", "", ["Stuck has no action"]),
    "no metric of ours": ("kvferry_rooms_oldest_seconds", "up", ["no metric of kvferry"]),
    "no alert": ("alert:", "record:", ["there is no alert"]),
}


def try_alerts(folder, failures):
    check = TOOLS / "check_alerts.py"
    metrics = folder / "metrics.md"
    metrics.write_text("| `rooms_oldest_seconds` | gauge |\n", encoding="utf-8")
    rules = folder / "rules.yml"

    def try_rules(name, text, words):
        rules.write_text(text, encoding="utf-8")
        failures.expect(f"alerts: {name}", run(PYTHON, check, "--rules", rules, "--metrics", metrics),
                        bool(words), words)

    try_rules("good rules", GOOD_RULES, [])
    for name, (old, new, words) in BROKEN_RULES.items():
        try_rules(name, GOOD_RULES.replace(old, new), words)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--compiler", default="g++")
    options = parser.parse_args()
    failures = Failures()
    with tempfile.TemporaryDirectory(prefix="kvferry-checks-") as name:
        folder = pathlib.Path(name)
        for part in ("layers", "symbols", "lab", "artefacts", "alerts"):
            (folder / part).mkdir()
        try_layers(folder / "layers", failures)
        try_symbols(folder / "symbols", options.compiler, failures)
        try_lab_symbols(folder / "lab", options.compiler, failures)
        try_artefacts(folder / "artefacts", failures)
        try_alerts(folder / "alerts", failures)
    if failures.count:
        print(f"checks_can_fail: {failures.count} of {failures.cases} cases went the wrong way")
        return 1
    print(f"checks_can_fail: {failures.cases} cases, each as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
