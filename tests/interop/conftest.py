"""Processes of real SGLang and of kvferry's tool, which the tests talk to by lines of JSON."""

import collections.abc
import json
import os
import pathlib
import subprocess
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETUP_SECONDS = 600

Spawn = collections.abc.Callable[..., "Peer"]


class Peer:
    """A process that answers each line with one."""

    def __init__(self, command: list[str], log: pathlib.Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors, text=True)

    def read(self) -> str:
        line = self.process.stdout.readline()
        assert line, f"the process ended:\n{self.log.read_text(errors='replace')}"
        return line.strip()

    def write(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def ask(self, verb: str, *arguments: Any) -> Any:
        answer = json.loads(self.write(json.dumps([verb, *arguments])))
        assert "error" not in answer, f"{verb}: {answer['error']}\n{self.log.read_text()}"
        return answer["value"]

    def end(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """Python of the pinned environment with SGLang; KVFERRY_SGLANG_PYTHON names another one."""
    named = os.environ.get("KVFERRY_SGLANG_PYTHON")
    if named:
        return named
    made = subprocess.run(["/usr/bin/python3", str(ROOT / "tools/setup/venv.py"), "--no-deps",
                           "peer-sglang"], check=False, timeout=SETUP_SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        lines = made.stdout.strip().splitlines() or ["it said nothing"]
        pytest.skip(f"SGLang's environment can't be made (tools/setup/venv.py): {lines[-1]}")
    return str(ROOT / ".cache" / "venv-peer-sglang" / "bin" / "python")


@pytest.fixture
def spawn(tmp_path: pathlib.Path) -> collections.abc.Iterator[Spawn]:
    """Starts processes; the test's end ends them."""
    peers: list[Peer] = []

    def start(*command: Any) -> Peer:
        peers.append(Peer([str(word) for word in command], tmp_path / f"{len(peers)}.log"))
        return peers[-1]

    yield start
    for peer in reversed(peers):
        peer.end()


@pytest.fixture
def tool(spawn: Spawn) -> collections.abc.Callable[[str], Peer]:
    """kvferry_sglang_tool with a verb."""
    program = os.environ["KVFERRY_SGLANG_TOOL"]
    return lambda verb: spawn(program, verb)


@pytest.fixture
def sglang(spawn: Spawn, sglang_python: str) -> Spawn:
    """sglang("prefill", port, tp_size, tp_rank): a rank that is ready."""

    def start(role: str, port: int = 0, tp_size: int = 1, tp_rank: int = 0) -> Peer:
        peer = spawn(sglang_python, HERE / "sglang_peer_main.py", role, port, tp_size, tp_rank)
        assert json.loads(peer.read()) == {"value": "ready"}
        return peer

    return start
