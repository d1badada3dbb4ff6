#!/usr/bin/python3
"""Builds and runs the fuzz targets, and keeps their stored corpora small.

    tests/fuzz/fuzz.py run TARGET [--seconds N] [--build DIR]     fuzz; exit 1 on a finding
    tests/fuzz/fuzz.py merge [TARGET...] [--from DIR...]          rewrite tests/fuzz/corpus/TARGET

`run` starts from the stored corpus; what it learns stays in BUILD/corpus/TARGET, a finding in
BUILD/findings/TARGET-... (the tree is never written to). `merge` takes the seeds of the encoders,
the stored corpus and what was learnt, and keeps the fewest inputs that reach the same code, at most
200 files of at most 4 KiB.
Exit 0 without a finding, 1 with one, 2 when it could not be run.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"
TARGETS = ["frame", "aux", "layout", "room", "sglang"]
MAX_FILES = 200
MAX_BYTES = 4096
# Longer inputs of these add nothing but time.
MAX_LEN = {"frame": 4096, "aux": 256, "layout": 512, "room": 600, "sglang": 2048}
INPUT_TIMEOUT_S = 20  # one input; a hang is a finding
# Small inputs, many of them: the allocator's quarantine would only fill memory.
ASAN = "quarantine_size_mb=8:detect_leaks=1"


def configure(build, targets, jobs):
    quiet = {"cwd": ROOT, "check": True, "stdout": sys.stderr}
    subprocess.run(["cmake", "--preset", "fuzz", "-B", str(build)], **quiet)
    names = [f"kvferry_fuzz_{target}" for target in targets] + ["kvferry_fuzz_seeds"]
    subprocess.run(["cmake", "--build", str(build), "-j", str(jobs), "--target", *names], **quiet)


def environment():
    return {**os.environ, "ASAN_OPTIONS": ASAN, "UBSAN_OPTIONS": "print_stacktrace=1"}


def run_target(build, target, seconds):
    learnt = build / "corpus" / target
    findings = build / "findings"
    learnt.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    result = subprocess.run(
        [build / f"tests/fuzz/kvferry_fuzz_{target}", f"-max_total_time={seconds}",
         f"-max_len={MAX_LEN[target]}", "-len_control=0", f"-timeout={INPUT_TIMEOUT_S}",
         f"-artifact_prefix={findings}/{target}-", "-print_final_stats=1", "-verbosity=1",
         learnt, CORPUS / target],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False)
    lines = result.stdout.splitlines()
    if result.returncode != 0:
        # The learning before it is noise; the report is not.
        report = [line for line in lines if not line.startswith("#") or "0x" in line]
        print("\n".join(report[-60:]))
        print(f"fuzz {target}: FINDING (exit {result.returncode}), input under {findings}")
        return 1
    runs = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
    last = next((line for line in reversed(lines) if "DONE" in line), "")
    print(f"fuzz {target}: no finding in {seconds} s, {runs} inputs; {last.strip()}")
    return 0


def merge(build, target, sources):
    with tempfile.TemporaryDirectory() as scratch:
        seeds, out = pathlib.Path(scratch) / "seeds", pathlib.Path(scratch) / "out"
        out.mkdir()
        subprocess.run([build / "tests/fuzz/kvferry_fuzz_seeds", seeds], check=True,
                       env=environment())
        learnt = [folder for folder in (CORPUS / target, build / "corpus" / target, *sources)
                  if folder.is_dir()]
        # By edges alone, the fewest files: counters of loops would keep thousands.
        subprocess.run(
            [build / f"tests/fuzz/kvferry_fuzz_{target}", "-set_cover_merge=1", "-use_counters=0",
             f"-max_len={MAX_LEN[target]}", f"-timeout={INPUT_TIMEOUT_S}", out, seeds / target,
             *learnt], check=True, env=environment(), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        files = sorted(out.iterdir(), key=lambda path: path.stat().st_size)
        files = [path for path in files if path.stat().st_size <= MAX_BYTES][:MAX_FILES]
        shutil.rmtree(CORPUS / target, ignore_errors=True)
        (CORPUS / target).mkdir(parents=True)
        for path in files:
            shutil.copy(path, CORPUS / target / path.name[:16])
    print(f"fuzz {target}: {len(files)} inputs stored")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="fuzz one target")
    running.add_argument("target", choices=TARGETS)
    running.add_argument("--seconds", type=int, default=60)
    merging = commands.add_parser("merge", help="rewrite the stored corpora")
    merging.add_argument("targets", nargs="*", choices=[*TARGETS, []])
    merging.add_argument("--from", dest="sources", type=pathlib.Path, action="append", default=[],
                         metavar="DIR", help="another folder with inputs of the one target")
    options = parser.parse_args()
    build = options.build.resolve()
    targets = [options.target] if options.command == "run" else options.targets or TARGETS
    if shutil.which("clang++-19") is None:
        print("fuzz: clang++-19 is missing; fix: tools/setup/packages.sh fuzz", file=sys.stderr)
        return 2
    try:
        configure(build, targets, options.jobs)
        if options.command == "run":
            return run_target(build, options.target, options.seconds)
        return max(merge(build, target, options.sources) for target in targets)
    except subprocess.CalledProcessError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
