"""Starts the ranks of a test and takes rooms through them."""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import secrets
import socket
import subprocess
import time
from multiprocessing import connection

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 120
# A host that is busy with other tests must not look like a dead peer.
PATIENCE = {"KVFERRY_BOOTSTRAP_TIMEOUT_MS": "60000", "KVFERRY_HTTP_TOTAL_TIMEOUT_MS": "30000",
            "KVFERRY_HEARTBEAT_TIMEOUT_MS": "20000", "KVFERRY_LANE_TIMEOUT_MS": "20000"}


class Rank:
    """One process. given: what rank.py takes, links as connections."""

    def __init__(self, python, site, given, environment):
        self.name = f"{given['role']} {given['tp_rank']}"
        self.control, theirs = multiprocessing.Pipe()
        inherited = [theirs, *given["links"]]
        words = given | {"control": theirs.fileno(),
                         "links": [each.fileno() for each in given["links"]]}
        self.process = subprocess.Popen(
            [python, HERE / "rank.py", json.dumps(words)],
            pass_fds=[each.fileno() for each in inherited],
            env=os.environ | {"PYTHONPATH": str(site)} | environment)
        for each in inherited:
            each.close()

    def ask(self, *words):
        self.control.send(words)

    def take(self):
        try:
            answer = self.control.recv()
        except EOFError:
            raise RuntimeError(f"{self.name} ended") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self):
        self.process.kill()
        self.process.wait()


def answers(ranks, seconds):
    """Returns what each says; raises what the first says that failed, whoever else still waits."""
    said, end = {}, time.monotonic() + seconds
    while len(said) < len(ranks):
        waiting = {each.control: each for each in ranks if each not in said}
        ready = connection.wait(list(waiting), max(0, end - time.monotonic()))
        if not ready:
            raise TimeoutError(f"{', '.join(each.name for each in waiting.values())}: no answer in "
                               f"{seconds} s")
        for each in ready:
            said[waiting[each]] = waiting[each].take()
    return [said[each] for each in ranks]


def _links(size):
    """By rank: connections to the other ranks of its engine."""
    links = [[] for _ in range(size)]
    for low in range(size):
        for high in range(low + 1, size):
            mine, theirs = multiprocessing.Pipe()
            links[low].append(mine)
            links[high].append(theirs)
    return links


class Fleet:
    """One prefill and one decode engine. site: a folder with the installed package and its entry
    point. python: the interpreter that has SGLang."""

    def __init__(self, plan, site, python, backend="kvferry", alias=None, prefill_tp=1, decode_tp=1,
                 environment=None):
        self.plan = plan
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        shared = {"SGLANG_HOST_IP": "127.0.0.1", "SGLANG_PLUGINS": "kvferry",
                  "KVFERRY_BOOTSTRAP_ALLOW": f"*:{port}",
                  "KVFERRY_STOP_TIMEOUT_MS": "500"} | ({} if alias is None else
                                                       {"KVFERRY_SGLANG_ALIAS": alias})
        self._site, self._python = site, python
        self._given = {"port": port, "plan": dataclasses.asdict(plan), "backend": backend}
        self._environment = PATIENCE | shared | (environment or {})
        self.prefill = self._engine("prefill", prefill_tp)
        self.decode = self._engine("decode", decode_tp)
        try:
            answers(self.ranks, START_SECONDS)
        except BaseException:
            self.close()
            raise

    def _engine(self, role, size):
        """Starts one launch of an engine."""
        epoch = {"KVFERRY_ENGINE_EPOCH": str(secrets.randbits(63) | 1)} if size > 1 else {}
        return [Rank(self._python, self._site, self._given | {
            "role": role, "tp_rank": tp_rank, "tp_size": size, "links": links},
            self._environment | epoch) for tp_rank, links in enumerate(_links(size))]

    def restart_prefill(self):
        """The next life of prefill, at the same bootstrap address."""
        self.prefill = self._engine("prefill", len(self.prefill))
        answers(self.prefill, START_SECONDS)

    @property
    def ranks(self):
        return self.prefill + self.decode

    def ask(self, ranks, *words, seconds=START_SECONDS):
        for each in ranks:
            each.ask(*words)
        return answers(ranks, seconds)

    def run(self, seconds=120, first_room=None):
        """Returns (figures of the prefill ranks, figures of the decode ranks)."""
        said = self.ask(self.ranks, "run", seconds, first_room, seconds=seconds + START_SECONDS)
        return said[:len(self.prefill)], said[len(self.prefill):]

    def close(self):
        for each in self.ranks:
            each.end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

