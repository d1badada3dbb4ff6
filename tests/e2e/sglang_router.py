"""SGLang's own router, unmodified, in front of a fleet of kvferry's servers."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess

import fleet as fleets

PYTHON = pathlib.Path(os.environ.get("KVFERRY_E2E_ROUTER_PYTHON")
                      or fleets.ROOT / ".cache" / "venv-router" / "bin" / "python")
PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class SglangRouter:
    """One router process in PD mode; ends with the test, also when that is killed."""

    def __init__(self, cluster, log_path, name_port=True):
        assert PYTHON.exists(), f"{PYTHON} is missing; fix: tools/setup/venv.py router"
        self.address = f"127.0.0.1:{fleets.free_port()}"
        bootstrap_port = [str(cluster.bootstrap.port)] if name_port else []
        command = [
            PYTHON, "-m", "sglang_router.launch_router", "--pd-disaggregation",
            "--prefill", f"http://{cluster.prefill.address}", *bootstrap_port,
            "--decode", f"http://{cluster.decode.address}",
            "--host", "127.0.0.1", "--port", self.address.rsplit(":", 1)[1],
            "--prometheus-port", str(fleets.free_port()), "--policy", "random",
            "--disable-retries"]  # so that each error is seen as it was answered
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**fleets.environment(), "NO_COLOR": "1"}, preexec_fn=die_with_parent)

    def wait_ready(self):
        """Until it has asked both servers what they are and found them healthy."""
        def ready():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}"
            answer = fleets.try_ask(self.address, "/readiness")
            return answer is not None and answer.status == 200 \
                and answer.json()["healthy_workers"] == 2
        fleets.eventually(ready, "SGLang's router is ready")
        return self

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(fleets.DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def events(body):
    """What a stream said, parsed; it must have ended as streams do."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert lines and lines[-1] == "[DONE]", body
    return [json.loads(line) for line in lines[:-1]]
