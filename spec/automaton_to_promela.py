#!/usr/bin/env python3
"""Turns automata (automata/*.txt) into Promela monitors that a model is checked with.

    automaton_to_promela.py --folder automata --keys grant=2,writer=2,ticket=1 NAME... > automata.h

NAME is an automaton. The output has per automaton one byte per run, its state, and per event an
inline ev_<event>(keys) that steps every run that the event concerns (delivery: automata/events.txt)
and asserts that it is allowed. An event that no chosen automaton knows does nothing. What a search
took is printed once per transition: `kvferry: took AUTOMATON STATE EVENT`.
"""

import argparse
import itertools
import pathlib
import re
import sys

NAME = re.compile(r"^[a-z][a-z0-9_-]*$")


class AutomatonError(Exception):
    pass


class Automaton:
    """States and transitions by name. `moves` maps (state, event) to the next state."""

    def __init__(self, name):
        self.name = name
        self.key = []
        self.start = None
        self.moves = {}
        self.first_id = 0  # of its transitions, in a monitor made of several automata

    def states(self):
        names = [self.start]
        for (state, _), target in self.moves.items():
            for each in (state, target):
                if each not in names:
                    names.append(each)
        return names

    def alphabet(self):
        return sorted({event for _, event in self.moves})


def lines_of(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield number, text


def read_events(path):
    """Name -> list of key names. Keys are the words before the two spaces that end them."""
    events = {}
    for number, text in lines_of(path):
        columns = re.split(r"\s{2,}", text)
        if len(columns) < 3 or columns[0] in events:
            raise AutomatonError(f"{path}:{number}: want NAME  KEY...  WHAT, each name once")
        events[columns[0]] = columns[1].split()
    return events


def add_moves(automaton, text, where):
    match = re.fullmatch(r"(\S+) (\S+) -> (\S+)", text)
    if not match or automaton is None or automaton.start is None:
        raise AutomatonError(f"{where}: want STATE,... EVENT,... -> STATE|=, after `start`")
    for state, event in itertools.product(match[1].split(","), match[2].split(",")):
        target = state if match[3] == "=" else match[3]
        if (state, event) in automaton.moves:
            raise AutomatonError(f"{where}: {state} {event} is there already")
        if target == automaton.start:
            raise AutomatonError(f"{where}: nothing leads back to the start")
        if not all(NAME.match(name) for name in (state, event, target)):
            raise AutomatonError(f"{where}: names are lower case words joined by '-'")
        automaton.moves[state, event] = target


def read_automata(folder):
    """All automata of a folder by name, checked against events.txt."""
    events = read_events(folder / "events.txt")
    automata = {}
    for path in sorted(folder.glob("*.txt")):
        if path.name in ("events.txt", "unreached.txt"):
            continue
        current = None
        for number, text in lines_of(path):
            words = text.split()
            if words[0] == "automaton":
                current = automata[words[1]] = Automaton(words[1])
            elif words[0] == "key":
                current.key = words[1:]
            elif words[0] == "start":
                current.start = words[1]
            else:
                add_moves(current, text, f"{path}:{number}")
    for automaton in automata.values():
        for event in automaton.alphabet():
            if event not in events:
                raise AutomatonError(f"{automaton.name}: event {event} is not in events.txt")
            keys = events[event]
            size = min(len(keys), len(automaton.key))
            if keys[:size] != automaton.key[:size]:
                raise AutomatonError(f"{automaton.name}: {event} has other keys: {keys}")
    return automata, events


def index_text(keys, sizes, values):
    """Position of a run in its automaton's array, as Promela text."""
    text = "0"
    for key in keys:
        text = values[key] if text == "0" else f"({text})*{sizes[key]}+({values[key]})"
    return text


def step_text(automaton, event, run, must_exist):
    """Steps one run. A broadcast (must_exist) passes over runs that are still in their start state."""
    ids = {move: automaton.first_id + i for i, move in enumerate(automaton.moves)}
    states = automaton.states()
    array = "run_" + automaton.name
    number = {name: i for i, name in enumerate(states)}
    out = ["  if"]
    for (state, move_event), target in automaton.moves.items():
        if move_event == event:
            out.append(
                f"  :: {array}[{run}] == {number[state]} -> "
                f"c_code {{ kvferry_took({ids[state, event]}, "
                f'"{automaton.name} {state} {event}"); }}; '
                f"{array}[{run}] = {number[target]}")
    if must_exist and (automaton.start, event) not in automaton.moves:
        out.append(f"  :: {array}[{run}] == 0 -> skip")
    out.append(
        f'  :: else -> c_code {{ printf("kvferry: rejected by {automaton.name}: {event}\\n"); }}; '
        "assert(false)")
    out.append("  fi;")
    return "\n".join(out)


def inline_text(event, keys, automata, sizes):
    params = ["k_" + key for key in keys]
    body = []
    for automaton in automata:
        if event not in automaton.alphabet():
            continue
        missing = automaton.key[len(keys):]
        for choice in itertools.product(*(range(sizes[key]) for key in missing)):
            values = dict(zip(keys, params)) | dict(zip(missing, map(str, choice)))
            run = index_text(automaton.key, sizes, values)
            body.append(step_text(automaton, event, run, bool(missing)))
    if body:
        # Runs beyond the sizes are not watched.
        watched = " && ".join(f"k_{key} < {sizes[key]}" for key in keys)
        body = [f"  if\n  :: {watched} ->", *body, "  skip\n  :: else -> skip\n  fi"]
    else:
        body = ["  skip"]
    text = "\n".join(body)
    return f"inline ev_{event.replace('-', '_')}({', '.join(params)}) {{\n{text}\n}}"


TOOK = r"""c_decl {
\#include <stdio.h>
static unsigned char kvferry_taken[%d];
static void kvferry_took(int id, const char *move) {
  if (kvferry_taken[id]) return;
  kvferry_taken[id] = 1;
  printf("kvferry: took %%s\n", move);
}
}"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--keys", required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    try:
        known, events = read_automata(args.folder)
        chosen = [known[name] for name in args.names]
    except (AutomatonError, KeyError, OSError) as error:
        sys.exit(f"automaton_to_promela.py: {error}")
    sizes = {key: int(size) for key, size in
             (pair.split("=") for pair in args.keys.split(","))}
    print("/* Made by automaton_to_promela.py. */")
    total = 0
    for automaton in chosen:
        automaton.first_id = total
        total += len(automaton.moves)
    print(TOOK % max(total, 1))
    for automaton in chosen:
        runs = 1
        for key in automaton.key:
            runs *= sizes[key]
        print(f"byte run_{automaton.name}[{runs}];")
    for event, keys in events.items():
        print(inline_text(event, keys, chosen, sizes))


if __name__ == "__main__":
    main()
