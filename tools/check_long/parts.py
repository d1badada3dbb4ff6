"""The parts of make check-long: what each needs installed, what it builds, what it runs."""

import dataclasses
import os
import sys

JOBS = os.environ.get("JOBS") or str(os.cpu_count())
FUZZ_SECONDS = 60
SIM_SEEDS = 20_000
ASAN_SEEDS = 500
HOSTILE_FRAMES = 1_000_000
DRILL_ROUNDS = 3
DRILL_TARGETS = ("kvferry", "kvferry-lab")
HOSTILE_TESTS = ("hostile_control_test", "hostile_lane_test")


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    what: str
    groups: tuple  # of tools/setup/packages
    commands: tuple  # each a list; {out} is the part's own folder


def _configured(preset):
    """Configures only what is not configured: later changes are noticed by the build."""
    return ["bash", "-c", f"[ -f build/{preset}/build.ninja ] || cmake --preset {preset}"]


def _build(preset, *targets):
    command = ["cmake", "--build", f"build/{preset}", "-j", JOBS]
    return command + (["--target", *targets] if targets else [])


def _sim(preset, *options):
    return [f"build/{preset}/kvferry", "sim", *options, "--json", "{out}/result.json"]


def _fuzz(target):
    return Part(f"fuzz-{target}", f"{FUZZ_SECONDS} s of the fuzz target '{target}'",
                ("build", "demo", "fuzz"),
                ([sys.executable, "tests/fuzz/fuzz.py", "--jobs", JOBS, "run", target,
                  "--seconds", str(FUZZ_SECONDS)],))


def _drills(preset, *options):
    return [sys.executable, "tools/check_long/drills.py", "--tree", f"build/{preset}", *options]


def _drills_under(name, preset, sanitizers, group, *before):
    """Sanitizers make processes slow: outcomes, order and reports count, not times."""
    return Part(name, f"all drills under {sanitizers}, short and long", ("build", "demo", group),
                (ARTEFACTS, *before, _configured(preset), _build(preset, *DRILL_TARGETS),
                 _drills(preset, "--wide", "--out", "{out}/short"),
                 _drills(preset, "--wide", "--long", "--out", "{out}/long")))


ARTEFACTS = [sys.executable, "tools/setup/artefacts.py"]

PARTS = (
    Part("sim", f"{SIM_SEEDS} seeds of the simulator", ("build", "demo"),
         (ARTEFACTS, _configured("release"), _build("release"),
          _sim("release", "--seeds", str(SIM_SEEDS)))),
    Part("mutants", "every mutant must be killed", ("build", "demo"),
         (ARTEFACTS, _configured("release"), _build("release"), _sim("release", "--mutants"))),
    Part("scenarios", "scenarios under AddressSanitizer and UndefinedBehaviorSanitizer",
         ("build", "demo", "sanitize"),
         (ARTEFACTS, _configured("asan"), _build("asan"),
          ["ctest", "--test-dir", "build/asan", "--output-on-failure", "--no-tests=error", "-j",
           JOBS, "-L", "scenario"])),
    Part("asan-sim", f"{ASAN_SEEDS} seeds under AddressSanitizer and UndefinedBehaviorSanitizer",
         ("build", "demo", "sanitize"),
         (ARTEFACTS, _configured("asan"), _build("asan"),
          _sim("asan", "--seeds", str(ASAN_SEEDS)))),
    Part("conformance", "the data plane's contract in long form, over every transport",
         ("build", "demo"),
         (ARTEFACTS, _configured("release"), _build("release", "transport_conformance"),
          ["env", "KVFERRY_CONFORMANCE=long", "build/release/tests/conformance/transport_conformance",
           "--gtest_brief=1"])),
    Part("hostile", f"{HOSTILE_FRAMES:,} damaged frames for each listener under AddressSanitizer and "
         "UndefinedBehaviorSanitizer", ("build", "demo", "sanitize"),
         (ARTEFACTS, _configured("asan"), _build("asan", *HOSTILE_TESTS),
          *(["env", f"KVFERRY_HOSTILE_FRAMES={HOSTILE_FRAMES}", f"build/asan/tests/hostile/{test}",
             "--gtest_brief=1"] for test in HOSTILE_TESTS))),
    Part("drills", f"all drills {DRILL_ROUNDS} times, once without their guards", ("build", "demo"),
         (ARTEFACTS, _configured("release"), _build("release", *DRILL_TARGETS),
          _drills("release", "--rounds", str(DRILL_ROUNDS), "--out", "{out}/short"),
          _drills("release", "--guard", "off", "--out", "{out}/guard-off"))),
    Part("drills-long", f"all drills {DRILL_ROUNDS} times in long form", ("build", "demo"),
         (ARTEFACTS, _configured("release"), _build("release", *DRILL_TARGETS),
          _drills("release", "--long", "--rounds", str(DRILL_ROUNDS), "--out", "{out}/rounds"))),
    _drills_under("drills-asan", "asan", "AddressSanitizer and UndefinedBehaviorSanitizer",
                  "sanitize"),
    _drills_under("drills-tsan", "tsan", "ThreadSanitizer", "tsan",
                  [sys.executable, "tools/setup/tsan_libzmq.py"]),
    Part("tsan", "everything that has threads under ThreadSanitizer", ("build", "demo", "tsan"),
         (ARTEFACTS, [sys.executable, "tools/tsan.py", "--jobs", JOBS])),
    Part("coverage", "lines and branches of core, wire and layout",
         ("build", "demo", "coverage"),
         (ARTEFACTS, [sys.executable, "tools/coverage.py", "--jobs", JOBS, "--missing", "--json",
                      "{out}/result.json"])),
    _fuzz("frame"),
    _fuzz("aux"),
    _fuzz("layout"),
    _fuzz("room"),
    _fuzz("sglang"),
    Part("tidy", "clang-tidy without a finding", ("build", "demo", "tidy"),
         (ARTEFACTS, [sys.executable, "tools/tidy.py", "--jobs", JOBS])),
)
