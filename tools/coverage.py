#!/usr/bin/python3
"""Measures line and branch coverage of src/core, src/wire and src/layout by their unit tests.

    tools/coverage.py [--build DIR] [--json FILE|-] [--missing] [--no-run] [--jobs N]

Builds what it needs in a tree of its own (preset coverage: g++, -O0), runs the unit tests of base,
wire, layout and core and the replay of the fuzz corpora, and reports each file and each folder.
Exit 0 when every folder has lines >= 95 % and branches >= 90 %, 1 when one has not, 2 when it could
not be measured.

What is not counted as a branch, and why:
  - edges that only an exception takes (gcovr --exclude-throw-branches): the code of these folders
    throws nothing, so every such edge is bad_alloc of a call into the standard library;
  - edges on lines without code of their own (--exclude-unreachable-branches): the compiler's
    clean-up at closing braces;
  - the generated FlatBuffers header: its accessors are not ours, and the verifier has its own tests.
Nothing else is excluded: no file, function or line is marked by hand.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src/core", "src/wire", "src/layout"]
LEAST_LINES = 95.0  # percent
LEAST_BRANCHES = 90.0
TESTS = ["base", "wire", "layout", "core", "fuzz"]
REPLAYS = ["frame", "aux", "layout", "room"]


def call(*command, **options):
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, **options)


def executables(build):
    tests = {"fuzz": build / "tests/fuzz/kvferry_fuzz_test"}
    for name in TESTS:
        tests.setdefault(name, build / f"tests/unit/{name}/kvferry_{name}_test")
    runs = [[tests[name]] for name in TESTS]
    runs += [[build / f"tests/fuzz/kvferry_replay_{name}", ROOT / "tests/fuzz/corpus" / name]
             for name in REPLAYS]
    return runs


def build_and_run(build, jobs):
    call("cmake", "--preset", "coverage", "-B", build, stdout=subprocess.DEVNULL)
    runs = executables(build)
    targets = [run[0].name for run in runs]
    call("cmake", "--build", build, "-j", jobs, "--target", *targets, stdout=sys.stderr)
    for counts in build.rglob("*.gcda"):
        counts.unlink()
    for run in runs:
        print(f"coverage: {run[0].name}", file=sys.stderr)
        result = subprocess.run([str(part) for part in run], cwd=ROOT, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, check=False)
        if result.returncode != 0:
            sys.stderr.write(result.stdout[-4000:])
            raise SystemExit(f"coverage: {run[0].name} failed; figures would mean nothing")


def measure(build, jobs):
    call(sys.executable, ROOT / "tools/setup/venv.py", "coverage")
    gcovr = pathlib.Path(os.environ.get("KVFERRY_CACHE", ROOT / ".cache")) / "venv-coverage/bin/gcovr"
    filters = [option for folder in FOLDERS for option in ("--filter", f"{folder}/")]
    report = subprocess.run(
        [str(gcovr), "--root", str(ROOT), "--gcov-executable", "gcov", "-j", str(jobs),
         "--exclude-throw-branches", "--exclude-unreachable-branches",
         "--exclude", ".*kvferry_generated\\.h", "--merge-mode-functions", "separate",
         # One header is compiled into many units; a line counts as soon as one of them ran it.
         *filters, "--json", "-", str(build / "src"), str(build / "tests")],
        check=True, stdout=subprocess.PIPE, cwd=ROOT)
    return json.loads(report.stdout)


class Counts:
    """Of one file or folder."""

    def __init__(self):
        self.lines = self.lines_hit = self.branches = self.branches_hit = 0
        self.missing_lines = []
        self.missing_branches = []

    def add_line(self, line):
        if line.get("gcovr/noncode") or line.get("gcovr/excluded"):
            return
        self.lines += 1
        self.lines_hit += line["count"] > 0
        if line["count"] == 0:
            self.missing_lines.append(line["line_number"])
        branches = [branch for branch in line["branches"] if not branch.get("gcovr/excluded")]
        hit = sum(branch["count"] > 0 for branch in branches)
        self.branches += len(branches)
        self.branches_hit += hit
        if line["count"] > 0 and hit < len(branches):
            self.missing_branches.append(f"{line['line_number']}({hit}/{len(branches)})")

    def add(self, other):
        self.lines += other.lines
        self.lines_hit += other.lines_hit
        self.branches += other.branches
        self.branches_hit += other.branches_hit

    @staticmethod
    def percent(hit, count):
        return 100.0 * hit / count if count else 100.0

    def row(self, name):
        return {"name": name,
                "lines": self.lines, "lines_percent": round(self.percent(self.lines_hit, self.lines), 1),
                "branches": self.branches,
                "branches_percent": round(self.percent(self.branches_hit, self.branches), 1)}

    def is_enough(self):
        return (self.percent(self.lines_hit, self.lines) >= LEAST_LINES and
                self.percent(self.branches_hit, self.branches) >= LEAST_BRANCHES)


def merged_lines(file):
    """One entry per line: gcovr lists a line once for each function (template) that has it."""
    lines = {}
    for line in file["lines"]:
        known = lines.setdefault(line["line_number"], line)
        if known is line:
            continue
        known["count"] += line["count"]
        if len(known["branches"]) == len(line["branches"]):
            for branch, other in zip(known["branches"], line["branches"]):
                branch["count"] += other["count"]
        elif len(line["branches"]) > len(known["branches"]):
            known["branches"] = line["branches"]
    return lines.values()


def summarise(report):
    files, folders = {}, {folder: Counts() for folder in FOLDERS}
    for file in report["files"]:
        counts = files.setdefault(file["file"], Counts())
        for line in merged_lines(file):
            counts.add_line(line)
    for name, counts in files.items():
        folders[str(pathlib.PurePosixPath(name).parent)].add(counts)
    return files, folders


def print_row(row, out):
    print(f"{row['name']:38} {row['lines']:6} {row['lines_percent']:6.1f} % "
          f"{row['branches']:8} {row['branches_percent']:6.1f} %", file=out)


def show(files, folders, missing, out):
    print(f"{'file':38} {'lines':>6} {'hit':>8} {'branches':>8} {'hit':>8}", file=out)
    for name, counts in sorted(files.items()):
        print_row(counts.row(name), out)
        if missing and counts.missing_lines:
            print(f"    lines    {' '.join(map(str, counts.missing_lines))}", file=out)
        if missing and counts.missing_branches:
            print(f"    branches {' '.join(counts.missing_branches)}", file=out)
    for name, counts in folders.items():
        print_row(counts.row(name), out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/coverage",
                        help="tree to build in (default build/coverage)")
    parser.add_argument("--json", metavar="FILE", help="figures for machines; - for stdout")
    parser.add_argument("--missing", action="store_true", help="list what was not reached")
    parser.add_argument("--no-run", action="store_true", help="only report on the last run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations")
    options = parser.parse_args()
    build = options.build.resolve()
    try:
        if not options.no_run:
            build_and_run(build, options.jobs)
        files, folders = summarise(measure(build, options.jobs))
    except subprocess.CalledProcessError as error:
        print(f"coverage: {error}", file=sys.stderr)
        return 2
    if not files:
        print("coverage: no file was measured", file=sys.stderr)
        return 2
    ok = all(counts.is_enough() for counts in folders.values())
    show(files, folders, options.missing, sys.stderr if options.json == "-" else sys.stdout)
    if options.json:
        result = {"command": "coverage", "ok": ok,
                  "summary": {"least_lines_percent": LEAST_LINES,
                              "least_branches_percent": LEAST_BRANCHES,
                              "folders": [counts.row(name) for name, counts in folders.items()]},
                  "rows": [counts.row(name) for name, counts in sorted(files.items())]}
        text = json.dumps(result, indent=2) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            pathlib.Path(options.json).write_text(text, encoding="utf-8")
    print(f"coverage: {'enough' if ok else 'not enough'} (lines >= {LEAST_LINES:.0f} %, branches >= "
          f"{LEAST_BRANCHES:.0f} %)", file=sys.stderr)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
