"""SIGTERM: running requests finish, new ones are told so, the process ends with 0."""

import json
import signal

import fleet as fleets

SLOW = ["--synthetic-step-delay-ms", 30]
BODY = {"model": "synthetic", "prompt": "drain me", "max_tokens": 60, "ignore_eos": True,
        "stream": True}


def open_stream(address):
    """A streamed answer whose first event has come, so that it surely runs."""
    connection = fleets.connect(address)
    connection.request("POST", "/v1/completions", json.dumps(BODY),
                       {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.readline()
    return connection, response


def drains(server):
    answer = fleets.try_ask(server.address, "/readyz")
    return answer is not None and answer.status == 503


def test_the_router_drains(servers):
    cluster = servers.start_pair(more_decode=SLOW)
    connection, response = open_stream(cluster.router.address)
    cluster.router.terminate()
    fleets.eventually(lambda: drains(cluster.router), "the router drains")
    refused = fleets.try_ask(cluster.router.address, "/v1/completions", body=BODY)
    if refused is not None:  # it may just have ended
        assert refused.status == 503 and refused.error["code"] == "draining", refused
    assert response.read().rstrip().endswith(b"data: [DONE]")
    connection.close()
    assert cluster.router.wait_end() == 0


def test_decode_drains(servers):
    cluster = servers.start_pair(more_decode=SLOW)
    connection, response = open_stream(cluster.router.address)
    cluster.decode.terminate()
    cluster.wait_unpaired()
    refused = cluster.complete("too late")
    assert refused.status == 503, refused
    assert response.read().rstrip().endswith(b"data: [DONE]")
    connection.close()
    assert cluster.decode.wait_end() == 0


def test_prefill_drains(servers):
    cluster = servers.start_pair(prefill_delay_ms=60)
    before = cluster.computed()
    request = fleets.Request(cluster.router.address,
                             {"model": "synthetic", "prompt": "long " * 300, "max_tokens": 4})
    cluster.wait_chunk(before)
    cluster.prefill.terminate()
    assert request.result().status == 200, request.answer
    assert cluster.prefill.wait_end() == 0


def test_bootstrap_ends(servers):
    bootstrap = servers.start_bootstrap()
    bootstrap.process.send_signal(signal.SIGINT)
    assert bootstrap.wait_end() == 0


def test_a_second_signal_ends_at_once(servers):
    cluster = servers.start_pair(more_decode=SLOW)
    connection, response = open_stream(cluster.router.address)
    cluster.router.terminate()
    fleets.eventually(lambda: drains(cluster.router), "the router drains")
    cluster.router.terminate()
    assert cluster.router.wait_end() == 1
    response.close()
    connection.close()


def test_servers_end_with_their_parent(servers, tmp_path):
    """A server that was told so does not outlive the process that started it."""
    import subprocess
    import sys
    script = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.argv[1], 'bootstrap', '--exit-with-parent'],\n"
        "                         stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os._exit(0)\n")
    parent = subprocess.run([sys.executable, "-c", script, fleets.PROGRAM], stdout=subprocess.PIPE,
                            timeout=fleets.DEADLINE_S, env=fleets.environment(), check=True)
    pid = int(parent.stdout)

    def gone():
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    fleets.eventually(gone, "the server has ended with its parent")
