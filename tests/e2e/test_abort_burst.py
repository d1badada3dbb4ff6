"""A thousand clients go away at once, in bursts: nobody else pays for it.

In the field such a burst made control messages interleave; it became 500s, the router's breaker left
the server out, and every later request got 503.
"""

import http.client
import json
import threading

import fleet as fleets

BURSTS = 10
CLIENTS = 100
LONG = "a long prompt that takes several chunks " * 40  # bytes are tokens here


class Bystander(threading.Thread):
    """Asks again and again while the others leave."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster = cluster
        self.leave = threading.Event()
        self.statuses = []
        self.start()

    def run(self):
        while not self.leave.is_set():
            self.statuses.append(self.cluster.complete(f"bystander {len(self.statuses)}").status)

    def result(self):
        self.leave.set()
        self.join(fleets.DEADLINE_S)
        assert not self.is_alive(), "the bystander's request hangs"
        return self.statuses


def send(address, body):
    connection = fleets.connect(address)
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"content-type": "application/json"})
    return connection


def test_an_abort_burst_of_a_thousand_requests(servers):
    cluster = servers.start_pair(prefill_delay_ms=5)
    router = cluster.router.address
    expected = cluster.complete("quick check").json()["choices"][0]["text"]
    bystander = Bystander(cluster)
    for burst in range(BURSTS):
        before = cluster.computed()
        connections = [send(router, {"model": "synthetic", "prompt": f"{burst} {client} {LONG}"})
                       for client in range(CLIENTS)]
        cluster.wait_chunk(before)
        for connection in connections:
            connection.close()
    fleets.eventually(
        lambda: fleets.metric(router, "kvferry_router_client_gone_total") == BURSTS * CLIENTS,
        lambda: f"{fleets.metric(router, 'kvferry_router_client_gone_total')} clients are gone")
    statuses = bystander.result()
    assert statuses and set(statuses) == {200}, statuses
    assert fleets.metric(router, "kvferry_router_answers_total", 'class="5xx"') == 0
    for server in (cluster.prefill, cluster.decode):
        assert fleets.ask(server.address, "/readyz").status == 200
        assert fleets.metric(server.address, "kvferry_sessions_ended_total") == 0
    assert cluster.pairs()["ready_pairs"] == 1
    assert cluster.complete("quick check").json()["choices"][0]["text"] == expected
    counts = cluster.wait_balance()
    assert counts["granted"] > 0 and counts["held"] > 0


def test_a_reset_burst(servers):
    """The same by resets in mid-answer, which a client library sends when it is closed with data."""
    cluster = servers.start_pair(more_decode=["--synthetic-step-delay-ms", 10])
    connections = []
    for client in range(CLIENTS):
        connection = send(cluster.router.address,
                          {"model": "synthetic", "prompt": f"stream {client}", "stream": True,
                           "max_tokens": 200, "ignore_eos": True})
        connections.append(connection)
    for connection in connections:
        try:
            response = connection.getresponse()
            response.readline()
        except http.client.HTTPException:
            pass
        connection.sock.close() if connection.sock else connection.close()
    for connection in connections:
        connection.close()
    fleets.eventually(
        lambda: fleets.metric(cluster.router.address, "kvferry_router_in_flight") == 0,
        "the router has let go of them")
    assert fleets.metric(cluster.router.address, "kvferry_router_answers_total", 'class="5xx"') == 0
    assert cluster.complete("after it").status == 200
    cluster.wait_balance()
