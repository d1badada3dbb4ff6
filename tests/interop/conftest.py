"""Processes of real SGLang and of kvferry's tool, which the tests talk to by lines of JSON."""

import collections.abc
import itertools
import json
import os
import pathlib
import subprocess
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETUP_SECONDS = 600
HEADS, HEAD_BYTES, TOKENS, BUFFERS = 8, 16, 16, 4  # of all ranks' pools

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

    def kill(self) -> None:
        """As a crash ends it; await its end with that."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def make_environment(name: str) -> None:
    made = subprocess.run(["/usr/bin/python3", str(ROOT / "tools/setup/venv.py"), "--no-deps", name],
                          check=False, timeout=SETUP_SECONDS, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        lines = made.stdout.strip().splitlines() or ["it said nothing"]
        pytest.skip(f"the environment {name} can't be made (tools/setup/venv.py): {lines[-1]}")


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """Python of the pinned environment with SGLang; KVFERRY_SGLANG_PYTHON names another one."""
    named = os.environ.get("KVFERRY_SGLANG_PYTHON")
    if named:
        return named
    make_environment("peer-sglang")
    return str(ROOT / ".cache" / "venv-peer-sglang" / "bin" / "python")


@pytest.fixture(scope="module", params=["mooncake", "nixl"])
def flavour(request: pytest.FixtureRequest) -> str:
    """SGLang's transfer backend, for tests that hold for each of them."""
    if request.param == "nixl":
        make_environment("peer-nixl")
    return request.param


class Peers:
    """Starts processes in a folder for their logs; end() ends them."""

    def __init__(self, folder: pathlib.Path, python: str = "", flavour: str = "mooncake") -> None:
        self.folder = folder
        self.python = python
        self.flavour = flavour
        self.started: list[Peer] = []

    def spawn(self, *command: Any) -> Peer:
        log = self.folder / f"{len(self.started)}.log"
        self.started.append(Peer([str(word) for word in command], log))
        return self.started[-1]

    def tool(self, verb: str) -> Peer:
        """kvferry_sglang_tool with a verb."""
        return self.spawn(os.environ["KVFERRY_SGLANG_TOOL"], verb)

    def registry(self) -> int:
        """The port of SGLang's bootstrap routes in a process of their own."""
        word, address = self.tool("serve").read().split()
        assert word == "listening"
        return int(address.rsplit(":", 1)[1])

    def sglang(self, role: str, port: int = 0, tp_size: int = 1, tp_rank: int = 0,
               **settings: Any) -> Peer:
        """A rank of SGLang that is ready. settings: of sglang_peer_main.py."""
        return self.ready(self.python, HERE / "sglang_peer_main.py", role, port, tp_size, tp_rank,
                          json.dumps({"BACKEND": self.flavour} | settings))

    def kvferry(self, registry: str, tp_size: int = 1, tp_rank: int = 0, port: int = 0,
                pages: int = 64, aux_slots: int = 16) -> Peer:
        """A kvferry prefill rank with SGLang's dialect."""
        return self.ready(os.environ["KVFERRY_SGLANG_RANK"], registry, port, tp_size, tp_rank,
                          pages, aux_slots)

    def kvferry_decode(self, registry: str, tp_size: int = 1, tp_rank: int = 0, pages: int = 64,
                       aux_slots: int = 16, patience_ms: int = 5_000) -> Peer:
        """A kvferry decode rank with SGLang's dialect; with NIXL in a process that has an agent."""
        program = [os.environ["KVFERRY_SGLANG_DECODE"]]
        if self.flavour == "nixl":
            library = os.environ.get("KVFERRY_SGLANG_DECODE_LIBRARY")
            if not library:
                pytest.skip("a sanitized build makes no library for Python")
            program = [self.python, HERE / "nixl_decode_main.py", library]
        return self.ready(*program, registry, tp_size, tp_rank, pages, aux_slots, patience_ms)

    def ready(self, *command: Any) -> Peer:
        peer = self.spawn(*command)
        assert json.loads(peer.read()) == {"value": "ready"}
        return peer

    def end(self) -> None:
        for peer in reversed(self.started):
            peer.end()


def heads_of(ranks: list[Peer], page: int) -> dict[tuple[int, int, int], bytes]:
    """Every head of the page as (buffer, token, head) -> bytes, put together of the ranks' shares."""
    whole = {}
    share = HEADS // len(ranks)
    for number, rank in enumerate(ranks):
        for buffer, text in enumerate(rank.ask("bytes", page)):
            data = bytes.fromhex(text)
            for token, head in itertools.product(range(TOKENS), range(share)):
                at = (token * share + head) * HEAD_BYTES
                whole[buffer, token, number * share + head] = data[at:at + HEAD_BYTES]
    assert len(whole) == BUFFERS * TOKENS * HEADS
    return whole


@pytest.fixture
def peers(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> collections.abc.Iterator[Peers]:
    made = Peers(tmp_path)
    if "sglang" in request.fixturenames:
        made.python = request.getfixturevalue("sglang_python")
    if "flavour" in request.fixturenames:
        made.flavour = request.getfixturevalue("flavour")
    yield made
    made.end()


@pytest.fixture
def spawn(peers: Peers) -> Spawn:
    """Starts processes; the test's end ends them."""
    return peers.spawn


@pytest.fixture
def tool(peers: Peers) -> collections.abc.Callable[[str], Peer]:
    return peers.tool


@pytest.fixture
def sglang(peers: Peers) -> Spawn:
    """sglang("prefill", port, tp_size, tp_rank, PAGES=64): a rank that is ready."""
    return peers.sglang


@pytest.fixture
def kvferry(peers: Peers) -> Spawn:
    """kvferry(registry, tp_size, tp_rank): a prefill rank that is ready."""
    return peers.kvferry
