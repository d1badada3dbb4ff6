"""What is wrong is refused in words that name it, and harms nothing."""

import json

import pytest

import fleet as fleets


# --- the command line ---

def test_model_missing(tmp_path):
    path = tmp_path / "none.gguf"
    done = fleets.run("serve", "--role", "both", "--model", path)
    assert done.returncode == 1
    assert str(path) in done.stderr


def test_model_is_not_gguf(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("This is not a model. " * 1000, encoding="ascii")
    done = fleets.run("serve", "--role", "both", "--model", path)
    assert done.returncode == 1
    assert str(path) in done.stderr and "GGUF" in done.stderr


def test_port_in_use(servers):
    port = servers.start_bootstrap().port
    for arguments in (["bootstrap", "--port", port],
                      ["serve", "--role", "both", "--engine", "synthetic", "--port", port],
                      ["router", "--port", port, "--prefill", "127.0.0.1:1", "--decode",
                       "127.0.0.1:2", "--bootstrap", "127.0.0.1:3"]):
        done = fleets.run(*arguments)
        assert done.returncode == 1, done
        assert str(port) in done.stderr and "in use" in done.stderr, done.stderr


# --- requests through the router ---

def test_too_long_prompt(cluster):
    answer = cluster.complete("x" * 5000)
    assert answer.status == 400
    assert "5000" in answer.error["message"] and "2047" in answer.error["message"], answer
    assert answer.error["code"] == "context_length_exceeded"
    # A caller's mistake is nobody's failure.
    assert cluster.pairs()["ready_pairs"] == 1
    cluster.wait_balance()


def test_body_over_the_limit(servers):
    cluster = servers.start_pair(router=["--max-body-bytes", 4096])
    answer = fleets.ask(cluster.router.address, "/v1/completions",
                        {"model": "synthetic", "prompt": "x" * 10_000})
    assert answer.status == 413, answer
    assert cluster.complete("short").status == 200


@pytest.mark.parametrize("body", ['{"prompt": "x", }', '{"prompt": "x"', "", "not JSON", "[1, 2]",
                                  '{"prompt": "\\ud800"}', "[" * 5000])
def test_invalid_json(cluster, body):
    answer = fleets.ask(cluster.router.address, "/v1/completions", body)
    assert answer.status == 400, answer
    assert "byte" in answer.error["message"], answer
    # A server that is asked directly says so, too.
    direct = fleets.ask(cluster.decode.address, "/v1/completions", body)
    assert direct.status == 400 and direct.error["message"], direct


@pytest.mark.parametrize("field, value", [
    ("n", 2), ("logprobs", True), ("tools", []), ("no_such_field", 1), ("temperature", "hot"),
    ("temperature", 3), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5),
    ("stop", [1]), ("prompt", ["a", "b"]), ("prompt", {}), ("stream", "yes")])
def test_unsupported_fields(cluster, field, value):
    answer = cluster.complete("x", **{field: value}) if field != "prompt" else cluster.complete(value)
    assert answer.status == 400, answer
    assert field in answer.error["message"], answer


def test_the_routers_own_fields(cluster):
    for field in ("bootstrap_host", "bootstrap_port", "bootstrap_room", "kvferry_binding",
                  "kvferry_prefill"):
        answer = cluster.complete("x", **{field: "1"})
        assert answer.status == 400 and field in answer.error["message"], answer


def test_requests_past_the_router(cluster):
    answer = fleets.ask(cluster.decode.address, "/v1/completions", {"prompt": "x"})
    assert answer.status == 400 and "router" in answer.error["message"], answer


def test_unknown_routes(cluster):
    assert fleets.ask(cluster.router.address, "/v1/unknown").status == 404
    assert fleets.ask(cluster.router.address, "/v1/completions").status == 405
    assert fleets.ask(cluster.router.address, "/v1/models", "{}").status in (404, 405)


# --- requests as SGLang's router makes them ---

def sglang_room(cluster, **fields):
    host, port = cluster.bootstrap.address.rsplit(":", 1)
    return {"text": "x", "bootstrap_host": host, "bootstrap_port": int(port),
            "bootstrap_room": 7, **fields}


def test_fields_of_generate(cluster):
    """Each server names what is wrong by itself, so that no router waits for the other one."""
    cases = [
        ("bootstrap_room", None), ("bootstrap_room", -1), ("bootstrap_room", 1.5),
        ("bootstrap_room", "7"), ("bootstrap_room", [7]), ("bootstrap_room", [None, None]),
        ("bootstrap_room", 2 ** 64), ("bootstrap_room", True), ("bootstrap_room", {}),
        ("bootstrap_host", None), ("bootstrap_host", ""), ("bootstrap_host", 1),
        ("bootstrap_host", "203.0.113.1"), ("bootstrap_host", "127.0.0.1:1@203.0.113.1"),
        ("bootstrap_host", "x" * 100_000), ("bootstrap_host", ["127.0.0.1"]),
        ("bootstrap_port", 0), ("bootstrap_port", 65536), ("bootstrap_port", "80"),
        ("bootstrap_port", [80]), ("text", ["a", "b"]), ("text", {}), ("text", ""),
        ("input_ids", [1]), ("rid", 1), ("rid", "r" * 1000), ("stream", 1),
        ("sampling_params", []), ("sampling_params", "x"), ("image_data", "x"),
        ("return_logprob", True), ("routed_dp_rank", 3), ("no_such_field", "x")]
    cases += [("sampling_params", {name: value}) for name, value in [
        ("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_p", 2), ("top_k", 0),
        ("max_new_tokens", 0), ("max_new_tokens", 2 ** 40), ("n", 2), ("stop", [1]),
        ("stop", [""]), ("regex", "a"), ("no_such_parameter", 1)]]
    for field, value in cases:
        for server in (cluster.prefill, cluster.decode):
            answer = fleets.ask(server.address, "/generate",
                                sglang_room(cluster, **{field: value}))
            assert answer.status == 400, (server.name, field, value, answer)
            assert field in answer.error["message"] + answer.error["param"], (field, answer)
    # A port of another service on a host that is known.
    for server in (cluster.prefill, cluster.decode):
        answer = fleets.ask(server.address, "/generate", sglang_room(cluster, bootstrap_port=1))
        assert answer.status == 400 and "127.0.0.1:1'" in answer.error["message"], answer
    for body in ("", "[", "[" * 5000, "null", '{"text": "\\ud800"}'):
        assert fleets.ask(cluster.decode.address, "/generate", body).status == 400
    assert fleets.metric(cluster.decode.address, "kvferry_pool_pages_taken_total") == 0
    assert cluster.complete("all are well").status == 200
    assert fleets.ask(cluster.prefill.address, "/readyz").status == 200


def test_half_a_room_ends(servers):
    """A room that only one server hears of fails there by a deadline, and harms nobody."""
    cluster = servers.start_pair(more=["--bootstrap-timeout-ms", 1000, "--queue-timeout-ms", 1000,
                                       "--unopened-room-timeout-ms", 1000])
    for number, server in enumerate((cluster.decode, cluster.prefill)):
        body = sglang_room(cluster, bootstrap_room=number)
        answer = fleets.ask(server.address, "/generate", body)
        assert answer.status == 504 and answer.error["message"], answer
    # The other half comes too late: it may not meet what another request left behind.
    late = fleets.ask(cluster.prefill.address, "/generate", sglang_room(cluster, bootstrap_room=0))
    assert late.status == 504 and late.error["code"] == "room-unknown", late
    cluster.wait_balance()
    assert cluster.complete("after them").status == 200


# --- pairs that do not fit ---

def test_page_sizes_that_differ(servers):
    servers.start_bootstrap()
    servers.prefill = servers.start_serve("prefill", "prefill", "--page-size-tokens", 32)
    servers.decode = servers.start_serve("decode", "decode", "--page-size-tokens", 64)
    servers.start_router()

    def reason():
        pair = servers.pairs()["pairs"][0]
        assert not pair["ready"]
        return pair["reason"] if "page_size_tokens" in pair["reason"] else None

    shown = fleets.eventually(reason, lambda: f"the pair's reason: {servers.pairs()}")
    assert "32" in shown and "64" in shown, shown
    refused = servers.complete("x")
    assert refused.status == 503 and "page_size_tokens" in refused.error["message"], refused
    # Each server by itself is sound.
    for server in (servers.prefill, servers.decode, servers.router):
        assert fleets.ask(server.address, "/readyz").status == 200


def test_numerics_that_differ_warn_or_refuse(servers):
    servers.start_bootstrap()
    servers.prefill = servers.start_serve("prefill", "prefill", "--prefill-chunk-tokens", 64)
    servers.decode = servers.start_serve("decode", "decode", "--prefill-chunk-tokens", 128)
    strict = servers.start_serve("strict", "decode", "--prefill-chunk-tokens", 128,
                                 "--require-identical")
    servers.start_router(None, [servers.decode, strict])

    def settled():
        pairs = {pair["decode"]: pair for pair in servers.pairs()["pairs"]}
        refused = pairs[strict.address]
        good = (pairs[servers.decode.address]["ready"] and not refused["ready"]
                and "chunk" in refused["reason"])
        return refused["reason"] if good else None

    shown = fleets.eventually(settled, lambda: f"the pairs: {servers.pairs()}")
    assert "64" in shown and "128" in shown, shown
    assert servers.complete("x").status == 200


def test_bodies_with_all_bytes(cluster):
    """Text that is not plain goes through unchanged or is refused, and nothing breaks."""
    text = "".join(chr(point) for point in range(1, 0x250)) + "\u2028 \U0001f600 \\ \" \x7f"
    assert cluster.complete(text).status == 200
    raw = b'{"model":"synthetic","prompt":"\xff\xfe"}'
    assert fleets.ask(cluster.router.address, "/v1/completions", raw).status == 400
    assert json.loads(cluster.complete("x").body)["usage"]["prompt_tokens"] == 1
