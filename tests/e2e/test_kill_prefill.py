"""Prefill is killed under running requests and comes back on the same port."""

import fleet as fleets

RUNNING = 10


def test_decode_outlives_a_killed_prefill(servers):
    # A new life may take a dead one's place in the registry once its lease is over.
    cluster = servers.start_pair(prefill_delay_ms=40, more=["--lease-ms", 2000])
    decode_pid = cluster.decode.pid
    expected = cluster.complete("quick check").json()["choices"][0]["text"]

    before = cluster.computed()
    requests = [fleets.Request(cluster.router.address,
                               {"model": "synthetic", "prompt": f"request {i} " * 150,
                                "max_tokens": 8, "temperature": 0})
                for i in range(RUNNING)]
    cluster.wait_chunk(before)
    cluster.prefill.kill()

    answers = [request.result() for request in requests]
    assert all(answers), [request.problem for request in requests]
    failed = [answer for answer in answers if answer.status != 200]
    assert failed, "the kill came too late to be seen"
    for answer in failed:
        assert 500 <= answer.status < 600, answer
        assert answer.error["code"] and answer.error["message"], answer

    # Meanwhile the pair is shown as not ready, with its reason, and requests are told so.
    cluster.wait_unpaired()
    assert cluster.pairs()["pairs"][0]["reason"]
    refused = cluster.complete("too early")
    assert refused.status == 503 and "prefill" in refused.error["message"], refused

    cluster.restart_prefill()
    cluster.wait_paired()
    assert cluster.complete("quick check").json()["choices"][0]["text"] == expected
    for i in range(RUNNING):
        assert cluster.complete(f"later {i} " * 40).status == 200

    assert cluster.decode.running() and cluster.decode.pid == decode_pid
    assert fleets.ask(cluster.decode.address, "/readyz").status == 200
    counts = cluster.wait_balance()
    assert counts["granted"] > 0
