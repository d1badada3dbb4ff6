"""Who does not belong to the fleet gets nothing, and is counted.

That a stranger's own CURVE key is refused is a test of the runtime, which has the library for it.
"""

import hashlib
import hmac
import json
import os
import secrets
import socket
import time

import fleet as fleets

SIGNATURE = b"\xff" + b"\0" * 8 + b"\x7f"


def greeting(mechanism):
    """ZMTP 3.0: signature, version, mechanism, as-server, filler."""
    return SIGNATURE + b"\x03\x00" + mechanism.ljust(20, b"\0") + b"\0" + b"\0" * 31


def control_endpoint(cluster):
    return fleets.ask(cluster.decode.address, "/v1/kvferry/pairs").json()["pairs"][0]["peer"]


def bad_handshakes(cluster):
    return fleets.metric(cluster.prefill.address, "kvferry_bad_handshakes_total")


def dial(endpoint):
    host, port = endpoint.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=fleets.DEADLINE_S)


def read_to_end(stream):
    """What comes until the other side closes."""
    got = b""
    try:
        while piece := stream.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


def test_a_plain_text_client_gets_nothing(cluster):
    endpoint = control_endpoint(cluster)
    before = bad_handshakes(cluster)
    # READY, and then a message of one frame as a peer without encryption would send it.
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    with dial(endpoint) as stream:
        try:
            stream.sendall(greeting(b"NULL"))
            stream.sendall(b"\x04" + bytes([len(ready)]) + ready)
            stream.sendall(b"\x00\x05hello")
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before it was all said
        got = read_to_end(stream)
    # At most the greeting that every connection starts with; a reset may swallow even that.
    assert b"READY" not in got
    assert len(got) <= 64, got
    assert not got or got[0] == SIGNATURE[0], got
    fleets.eventually(lambda: bad_handshakes(cluster) > before, "the handshake is counted")
    assert cluster.complete("meanwhile").status == 200


def test_other_protocols_on_the_control_port(cluster):
    endpoint = control_endpoint(cluster)
    for opening in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", os.urandom(512),
                    SIGNATURE + b"\xff" * 200):
        with dial(endpoint) as stream:
            try:
                stream.sendall(opening)
                stream.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            read_to_end(stream)
        assert cluster.complete("meanwhile").status == 200
    assert fleets.ask(cluster.prefill.address, "/readyz").status == 200


def registration():
    return json.dumps({"role": "prefill", "instance": "forged", "incarnation": secrets.token_hex(16)})


def sign(token, method, target, body):
    now, nonce = str(int(time.time())), secrets.token_hex(16)
    text = "\n".join((method, target, now, nonce, body)).encode()
    return {"X-Kvferry-Time": now, "X-Kvferry-Nonce": nonce,
            "X-Kvferry-Signature": hmac.new(token.encode(), text, hashlib.sha256).hexdigest()}


def test_forged_registrations_are_refused_and_counted(cluster):
    address = cluster.bootstrap.address

    def refused():
        return fleets.metric(address, "kvferry_registry_unauthorized_total")

    before, rows = refused(), fleets.metric(address, "kvferry_registry_rows")
    for headers in ({},
                    sign("a guess", "PUT", "/v1/ranks", registration()),
                    {**sign("a guess", "PUT", "/v1/ranks", registration()),
                     "X-Kvferry-Signature": "not hexadecimal"}):
        answer = fleets.ask(address, "/v1/ranks", registration(), "PUT", headers)
        assert answer.status == 401, answer
    # Reading is for members too, and so is leaving in another's name.
    assert fleets.ask(address, "/v1/ranks").status == 401
    assert fleets.ask(address, "/v1/ranks", registration(), "DELETE").status == 401
    assert refused() == before + 5
    assert fleets.metric(address, "kvferry_registry_rows") == rows
    assert cluster.complete("after them").status == 200


def test_a_request_can_not_name_a_registry_of_its_own(cluster):
    """A bootstrap address that comes with a request is checked against the allow-list."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.0)
        host, port = trap.getsockname()
        body = {"model": "synthetic", "prompt": "x", "bootstrap_host": host, "bootstrap_port": port,
                "bootstrap_room": 1, "kvferry_binding": secrets.token_hex(16)}
        answer = fleets.ask(cluster.decode.address, "/v1/completions", body)
        assert answer.status >= 400, answer
        try:
            trap.accept()
            raise AssertionError("decode has called an address that a request named")
        except BlockingIOError:
            pass
    assert cluster.complete("after it").status == 200
    cluster.wait_balance()
