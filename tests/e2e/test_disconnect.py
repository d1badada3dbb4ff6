"""Clients that go away: their pages come back and nobody else notices."""

import http.client
import json

import fleet as fleets

LONG = "a long prompt that takes several chunks " * 40  # bytes are tokens here


def send(address, body):
    """Sends a request and gives the open connection."""
    connection = fleets.connect(address)
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"content-type": "application/json"})
    return connection


def test_in_mid_transfer(slow_cluster):
    cluster = slow_cluster

    def failed():
        rooms = fleets.ask(cluster.prefill.address, "/v1/kvferry/rooms").json()["rooms"]
        return sum(room["outcome"] == "failed" for room in rooms)

    for number in range(1, 5):
        before = cluster.computed()
        connection = send(cluster.router.address, {"model": "synthetic", "prompt": LONG})
        cluster.wait_chunk(before)
        connection.close()
        # Only then is every further chunk one of the next request.
        fleets.eventually(lambda expected=number: failed() == expected, "prefill has ended the room")
    counts = cluster.wait_balance()
    assert counts["granted"] > 0 and counts["held"] > 0
    assert cluster.complete("after the cancelled ones").status == 200
    assert fleets.ask(cluster.decode.address, "/readyz").status == 200
    assert fleets.ask(cluster.prefill.address, "/readyz").status == 200
    fleets.eventually(
        lambda: fleets.metric(cluster.router.address, "kvferry_router_client_gone_total") == 4,
        "the router has counted them")


def test_in_mid_stream(servers):
    cluster = servers.start_pair(more_decode=["--synthetic-step-delay-ms", 20])
    connection = send(cluster.router.address,
                      {"model": "synthetic", "prompt": "stream this", "max_tokens": 2000,
                       "stream": True, "ignore_eos": True})
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.readline()
    response.close()
    connection.close()
    fleets.eventually(
        lambda: fleets.metric(cluster.router.address, "kvferry_router_in_flight") == 0,
        "the router has let go of it")
    cluster.wait_balance()
    assert cluster.complete("after it").status == 200


def test_a_half_sent_request(cluster):
    """Neither a head without a body nor half a body keeps anything."""
    for body in (b"", b'{"model": "synthetic", "pro'):
        connection = fleets.connect(cluster.router.address)
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("content-length", "1000")
        connection.endheaders(body or None)
        connection.close()
    assert cluster.complete("still there").status == 200
    cluster.wait_balance()


def test_a_client_that_only_closes_its_sending_side(cluster):
    """A half-closed connection is a client that is gone: HTTP/1.1 clients keep it open."""
    connection = send(cluster.router.address, {"model": "synthetic", "prompt": "half closed"})
    try:
        connection.sock.shutdown(1)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        pass
    connection.close()
    assert cluster.complete("still there").status == 200
    cluster.wait_balance()
