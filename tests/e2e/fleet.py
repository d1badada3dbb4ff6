"""Starts and stops kvferry's servers, and asks them over HTTP.

Every wait ends by an event or by a deadline that only a hang reaches; nothing here sleeps for a fixed
time to let something happen.
"""

import http.client
import json
import os
import pathlib
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("KVFERRY_E2E_PROGRAM", str(ROOT / "build" / "release" / "kvferry"))
DEADLINE_S = 90
POLL_S = 0.02


def eventually(condition, what, deadline_s=DEADLINE_S):
    """Polls until condition() is true and gives its value; fails with what, or what(), at the end."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what() if callable(what) else what}")
        time.sleep(POLL_S)


def environment():
    """The caller's, without its kvferry settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KVFERRY_")}


def run(*arguments, deadline_s=DEADLINE_S, env=None):
    """Runs the command to its end."""
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          timeout=deadline_s, env={**environment(), **(env or {})}, check=False)


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]

    def __repr__(self):
        return f"<{self.status} {self.body[:300]!r}>"


def connect(address, timeout_s=DEADLINE_S):
    host, port = address.rsplit(":", 1)
    return http.client.HTTPConnection(host, int(port), timeout=timeout_s)


def ask(address, target, body=None, method=None, headers=None, timeout_s=DEADLINE_S):
    """One request; a dict is sent as JSON."""
    if isinstance(body, dict):
        body = json.dumps(body)
    connection = connect(address, timeout_s)
    try:
        connection.request(method or ("GET" if body is None else "POST"), target, body,
                           {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()},
                      response.read().decode("utf-8", "replace"))
    finally:
        connection.close()


def try_ask(address, target, **arguments):
    """None when nobody answers."""
    try:
        return ask(address, target, **arguments)
    except (OSError, http.client.HTTPException):
        return None


def metric(address, name, labels=""):
    """Sum over all label sets that contain labels; 0 while there is none."""
    total = 0.0
    for line in ask(address, "/metrics").body.splitlines():
        match = re.fullmatch(r"([a-zA-Z_:]+)(\{.*\})? ([^ ]+)", line)
        if match and match[1] == name and labels in (match[2] or ""):
            total += float(match[3])
    return total


class Request(threading.Thread):
    """One completion in the background."""

    def __init__(self, address, body, target="/v1/completions"):
        super().__init__(daemon=True)
        self.address, self.body, self.target = address, body, target
        self.answer = None
        self.problem = None
        self.start()

    def run(self):
        try:
            self.answer = ask(self.address, self.target, self.body)
        except (OSError, http.client.HTTPException) as problem:
            self.problem = problem

    def result(self):
        self.join(DEADLINE_S)
        assert not self.is_alive(), "no answer"
        return self.answer


class Server:
    """One process; its stdout is read for the ready line, its stderr goes to a file."""

    def __init__(self, name, arguments, log_path):
        self.name = name
        self.arguments = [str(argument) for argument in arguments]
        self.log_path = log_path
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, *self.arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=log, env=environment())
        self.address = None

    @property
    def pid(self):
        return self.process.pid

    @property
    def port(self):
        return int(self.address.rsplit(":", 1)[1])

    def running(self):
        return self.process.poll() is None

    def wait_ready(self):
        text = b""
        end = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in text:
                assert time.monotonic() < end, f"{self.name} is not ready"
                if not selector.select(0.5):
                    continue
                piece = os.read(self.process.stdout.fileno(), 4096)
                assert piece, f"{self.name} ended with {self.process.wait()} before it was ready"
                text += piece
        match = re.fullmatch(rb"kvferry (\w+) listening on (\S+:\d+)\n", text)
        assert match, text
        self.address = match[2].decode()
        return self

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait_end(self):
        return self.process.wait(DEADLINE_S)

    def log(self):
        return pathlib.Path(self.log_path).read_text(encoding="utf-8", errors="replace")


class Fleet:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.token_file = self.folder / "cluster-token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
        self.servers = []
        self.bootstrap = self.prefill = self.decode = self.router = None

    # --- starting ---

    def start(self, name, *arguments, ready=True):
        server = Server(name, [*arguments, "--exit-with-parent"], self.folder / f"{name}.log")
        self.servers.append(server)
        return server.wait_ready() if ready else server

    def start_bootstrap(self):
        self.bootstrap = self.start("bootstrap", "bootstrap", "--port", 0, "--cluster-token-file",
                                    self.token_file)
        return self.bootstrap

    def start_serve(self, name, role, *more, port=0, engine="synthetic", ready=True):
        shared = ["serve", "--role", role, "--engine", engine, "--port", port]
        if role != "both":
            shared += ["--instance", name, "--bootstrap-addresses", self.bootstrap.address,
                       "--cluster-token-file", self.token_file]
        return self.start(name, *shared, *more, ready=ready)

    def start_router(self, prefill=None, decode=None, *more):
        self.router = self.start(
            "router", "router", "--port", 0, "--poll-interval-ms", 50,
            "--prefill", ",".join(server.address for server in prefill or [self.prefill]),
            "--decode", ",".join(server.address for server in decode or [self.decode]),
            "--bootstrap", self.bootstrap.address, *more)
        return self.router

    def start_pair(self, prefill_delay_ms=0, engine="synthetic", more=(), more_prefill=(),
                   more_decode=(), router=()):
        self.start_bootstrap()
        if engine == "synthetic":
            more = [*more, "--synthetic-prefill-delay-ms", prefill_delay_ms]
        self.prefill = self.start_serve("prefill", "prefill", *more, *more_prefill, engine=engine,
                                        ready=False)
        self.decode = self.start_serve("decode", "decode", *more, *more_decode, engine=engine,
                                       ready=False)
        self.prefill.wait_ready()
        self.decode.wait_ready()
        self.start_router(None, None, *router)
        self.wait_paired()
        return self

    def restart_prefill(self):
        """A new life of the same server: same arguments, same HTTP port, another incarnation."""
        old = self.prefill
        arguments = list(old.arguments)
        arguments[arguments.index("--port") + 1] = str(old.port)
        self.prefill = Server("prefill", arguments, old.log_path)
        self.servers.append(self.prefill)
        return self.prefill.wait_ready()

    # --- asking ---

    def pairs(self):
        return ask(self.router.address, "/v1/kvferry/pairs").json()

    def wait_paired(self, count=1):
        eventually(lambda: self.pairs()["ready_pairs"] >= count, lambda: f"paired: {self.pairs()}")
        assert ask(self.router.address, "/readyz").status == 200

    def wait_unpaired(self):
        eventually(lambda: self.pairs()["ready_pairs"] == 0, "no pair is ready")

    def complete(self, prompt, **fields):
        return ask(self.router.address, "/v1/completions",
                   {"model": "synthetic", "prompt": prompt, "max_tokens": 16, "temperature": 0,
                    **fields})

    def computed(self):
        """Prompt tokens that prefill has computed so far."""
        return metric(self.prefill.address, "kvferry_prompt_tokens_total")

    def wait_chunk(self, before):
        """Until a chunk more than before is computed, so that its pages are on their way."""
        eventually(lambda: self.computed() > before, "a chunk of the prompt is computed")

    def balance(self):
        return {
            "granted": metric(self.decode.address, "kvferry_pages_granted_total"),
            "returned": metric(self.decode.address, "kvferry_pages_returned_total"),
            "held": metric(self.prefill.address, "kvferry_pages_held_total"),
            "released": metric(self.prefill.address, "kvferry_pages_released_total"),
            "quarantined": metric(self.decode.address, "kvferry_quarantined_pages"),
        }

    def wait_balance(self):
        """All pages are back on both sides; gives the counters."""
        def balanced():
            counts = self.balance()
            good = (counts["granted"] == counts["returned"] and counts["held"] == counts["released"]
                    and counts["quarantined"] == 0)
            return counts if good else None
        return eventually(balanced, lambda: f"pages back: {self.balance()}")

    # --- ending ---

    def stop(self):
        """Ends what still runs, the router first; gives what did not end as it should."""
        problems = []
        for server in reversed(self.servers):
            if server.running():
                server.terminate()
                try:
                    code = server.process.wait(DEADLINE_S)
                    if code != 0:
                        problems.append(f"{server.name} ended with {code}")
                except subprocess.TimeoutExpired:
                    server.kill()
                    problems.append(f"{server.name} did not end after SIGTERM")
            server.process.stdout.close()
        return problems

    def print_logs(self):
        for log in sorted(self.folder.glob("*.log")):
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]
            print(f"--- end of {log.name}", *tail, sep="\n", file=sys.stderr)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
