#!/usr/bin/env python3
"""Runs the cases of cases.txt with SPIN; run.sh starts it.

    check.py --spin SPIN --cc CC [--build DIR] [--jobs N] [--only TEXT]

Exit: 0 all cases as they must be, 1 some are not, 2 the cases can't be run.
"""

import argparse
import concurrent.futures
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import time

from automaton_to_promela import AutomatonError, read_automata

HERE = pathlib.Path(__file__).resolve().parent
TIME_LIMIT_S = 240
DEPTH_LIMIT = 20000
KINDS = {"base": 5, "progress": 4, "automata": 4, "mutant": 5, "rejected": 4}


class SetupError(Exception):
    pass


@dataclasses.dataclass
class Case:
    kind: str
    name: str
    file: str
    flags: list
    keys: str = ""
    automata: list = dataclasses.field(default_factory=list)
    places: list = dataclasses.field(default_factory=list)
    claim: str = ""
    guard: str = "-"

    @property
    def progress(self):
        return "-DPROGRESS" in self.flags


@dataclasses.dataclass
class Outcome:
    ok: bool
    text: str
    states: int = 0
    seconds: float = 0.0
    took: set = dataclasses.field(default_factory=set)


def read_cases(path):
    cases, bases, keys, owners = [], {}, {}, {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        columns = re.split(r"\s{2,}", line.strip())
        if not line.strip() or line.startswith("#"):
            continue
        kind = columns[0]
        if len(columns) != KINDS.get(kind):
            raise SetupError(f"{path}:{number}: want {KINDS.get(kind)} columns of a known kind")
        if kind in ("base", "progress"):
            flags = [] if columns[3] == "-" else columns[3].split()
            case = bases[columns[1]] = Case(kind, columns[1], columns[2], flags)
            case.places = columns[4].split() if kind == "base" else []
        else:
            if columns[1] not in bases:
                raise SetupError(f"{path}:{number}: no base {columns[1]}")
            base = bases[columns[1]]
            case = Case(kind, "", base.file, list(base.flags))
            if kind == "automata":
                case.keys, case.automata = columns[2], columns[3].split()
                for name in case.automata:
                    keys[columns[1], name] = case.keys
                case.name = f"{columns[1]} accepts {case.automata[0]}"
                case.name += f" +{len(case.automata) - 1}" if len(case.automata) > 1 else ""
            elif kind == "mutant":
                case.guard, mutant, case.claim = columns[2:]
                case.flags.append(f"-DWITHOUT_{mutant}")
                case.name = f"{columns[1]} WITHOUT_{mutant}"
            else:
                mutant, case.claim = columns[2:]
                name = case.claim.split(":")[0]
                if (columns[1], name) not in keys:
                    raise SetupError(f"{path}:{number}: the base is not checked with {name}")
                case.automata, case.keys = [name], keys[columns[1], name]
                case.flags += [f"-DWITHOUT_{mutant}", "-DJUDGED_BY_AUTOMATA"]
                case.name = f"{columns[1]} WITHOUT_{mutant}, by {name}"
        mutants = [flag[2:] for flag in case.flags if flag.startswith("-DWITHOUT_")]
        if any(not re.search(rf"\b{m}\b", (HERE / case.file).read_text()) for m in mutants):
            raise SetupError(f"{path}:{number}: {case.file} does not know {mutants[0]}")
        if case.name in owners:
            raise SetupError(f"{path}:{number}: as line {owners[case.name]}")
        owners[case.name] = number
        cases.append(case)
    return cases


def guards_of(path):
    """The names in guards.h; none when this is not the whole tree."""
    return set(re.findall(r"^  (k\w+),", path.read_text(), re.M)) if path.exists() else None


def run(command, folder, limit=TIME_LIMIT_S):
    """Output of a command; an overrun counts as a failure of the case."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit,
                              check=False)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        return -1, f"not done within {limit} s"


def build(case, folder, tools):
    """Makes the verifier; returns what went wrong, or nothing."""
    shutil.copy(HERE / "common.h", folder)
    shutil.copy(HERE / case.file, folder)
    flags = list(case.flags)
    if case.kind == "base":
        flags.append("-DWITH_REACH")
    if case.automata:
        code, text = run([sys.executable, str(HERE / "automaton_to_promela.py"), "--folder",
                          str(HERE / "automata"), "--keys", case.keys, *case.automata], folder)
        if code != 0:
            return text
        (folder / "automata.h").write_text(text)
        flags.append("-DWITH_AUTOMATA")
    code, text = run([tools.spin, *flags, "-a", case.file], folder)
    if code != 0 or "rror" in text:
        return text
    # Searches take seconds and are no faster with -O2, which takes nine times as long to compile.
    level = "-O0"
    kind = ["-DNFAIR=4"] if case.progress else ["-DSAFETY"]
    code, text = run([tools.cc, "-w", level, *kind, "-DNOREDUCE", "-o", "pan", "pan.c"], folder)
    return text if code != 0 else ""


def judge(case, text):
    errors = re.search(r"errors: (\d+)", text)
    states = re.search(r"(\d+) states, stored", text)
    outcome = Outcome(False, "", int(states[1]) if states else 0)
    outcome.took = set(re.findall(r"^kvferry: took (.*)$", text, re.M))
    reached = set(re.findall(r"^kvferry: reached (.*)$", text, re.M))
    verdict = re.search(r"^kvferry: (violated|rejected by) (.*)$", text, re.M)
    found = verdict[2] if verdict else ""
    if "invalid end state (at" in text:
        found = "end"
    elif "acceptance cycle (at" in text:
        found = "cycle"
    if errors is None:
        outcome.text = text.strip()[-300:] or "no output"
    elif case.kind in ("mutant", "rejected"):
        outcome.ok = int(errors[1]) > 0 and found == case.claim
        outcome.text = f"caught by {found}" if found else "not caught"
        outcome.text += "" if outcome.ok else f", want {case.claim}"
    else:
        incomplete = "max search depth too small" in text or "Search not completed" in text
        missing = [place for place in case.places if place not in reached]
        outcome.ok = int(errors[1]) == 0 and not incomplete and not missing
        outcome.text = f"errors: {errors[1]}" + (f" ({found})" if found else "")
        outcome.text += ", search not complete" if incomplete else ""
        outcome.text += f", never reached: {' '.join(missing)}" if missing else ""
        outcome.text += f", {len(case.places)} places reached" if outcome.ok and case.places else ""
    return outcome


def check(case, number, tools):
    folder = tools.build / f"{number:03}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.monotonic()
    problem = build(case, folder, tools)
    if problem:
        outcome = Outcome(False, "build failed: " + problem.strip()[-300:])
    else:
        options = ["-a", "-f"] if case.progress else []
        _, text = run(["./pan", f"-m{DEPTH_LIMIT}", "-w22", *options], folder)
        (folder / "output.txt").write_text(text)
        outcome = judge(case, text)
    outcome.seconds = time.monotonic() - begin
    return outcome


def dead_transitions(automata, outcomes):
    """Transitions that no model takes and unreached.txt gives no reason for, and wrong entries."""
    taken = set().union(*(outcome.took for outcome in outcomes))
    entries = {}
    for line in (HERE / "automata" / "unreached.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            moves, _, reason = line.partition(":")
            name, states, events = moves.split()
            for state in states.split(","):
                for event in events.split(","):
                    entries[f"{name} {state} {event}"] = reason.strip()
    known = {f"{a.name} {state} {event}" for a in automata.values() for state, event in a.moves}
    problems = [f"dead: {move}" for move in sorted(known - taken - set(entries))]
    problems += [f"listed as unreached, but taken: {move}" for move in sorted(taken & set(entries))]
    problems += [f"listed, but unknown: {move}" for move in sorted(set(entries) - known)]
    problems += [f"listed without a reason: {m}" for m in sorted(entries) if not entries[m]]
    summary = f"{len(known & taken)} transitions taken, {len(known - taken)} not, each with a reason"
    return problems, summary


def check_all(cases, tools):
    """Longest first, so that no core idles at the end; lines come out as cases end."""
    order = sorted(range(len(cases)), key=lambda i: cases[i].kind != "automata")
    outcomes = [None] * len(cases)
    with concurrent.futures.ThreadPoolExecutor(tools.jobs) as pool:
        running = {pool.submit(check, cases[i], i, tools): i for i in order}
        for future in concurrent.futures.as_completed(running):
            i = running[future]
            outcomes[i] = outcome = future.result()
            print(f"{'ok  ' if outcome.ok else 'FAIL'} {cases[i].kind:8} {cases[i].name:52} "
                  f"{outcome.text}  [{outcome.states} states, {outcome.seconds:.1f} s]", flush=True)
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spin", required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    tools = parser.parse_args()
    begin = time.monotonic()
    try:
        automata, _ = read_automata(HERE / "automata")
        cases = read_cases(HERE / "cases.txt")
        guards = guards_of(HERE.parent / "src" / "core" / "guards.h")
        for case in cases:
            if case.guard != "-" and guards is not None and case.guard not in guards:
                raise SetupError(f"cases.txt: guards.h has no {case.guard}")
    except (SetupError, AutomatonError, OSError) as error:
        print(f"spec: {error}", file=sys.stderr)
        return 2
    cases = [case for case in cases if tools.only in case.name]
    outcomes = check_all(cases, tools)
    failed = sum(not outcome.ok for outcome in outcomes)
    if not tools.only:
        problems, summary = dead_transitions(automata, outcomes)
        for problem in problems:
            print(f"FAIL automata {problem}")
        failed += len(problems)
        if not problems:
            print(f"ok   automata {summary}")
    count = {kind: sum(case.kind == kind for case in cases) for kind in KINDS}
    places = sum(len(case.places) for case in cases)
    print(f"spec: {len(cases)} cases ({', '.join(f'{n} {k}' for k, n in count.items())}), "
          f"{places} places, {failed} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
