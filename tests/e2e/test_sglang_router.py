"""kvferry's servers behind SGLang's router, as it comes: the answers of kvferry's own router."""

import json

import pytest

import fleet as fleets
from sglang_router import SglangRouter, events

PROMPT = "The capital of France is Paris. The capital of Italy is Rome. " * 12
MESSAGES = [{"role": "user", "content": "Why is snow white although ice is clear?"}]
TOKENS = 24


@pytest.fixture
def behind(servers, tmp_path):
    """Starts SGLang's router before a cluster that is paired."""
    started = []

    def start(cluster, **options):
        started.append(SglangRouter(cluster, tmp_path / "sglang-router.log", **options))
        return started[-1].wait_ready()

    yield start
    for router in started:
        router.stop()


def generate(router, text, **fields):
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, **fields.pop("sampling", {})}
    return fleets.ask(router.address, "/generate",
                      {"text": text, "sampling_params": sampling, **fields})


def test_with_the_real_model_answers_are_those_of_our_own_router(servers, behind, model):
    cluster = servers.start_pair(engine="llama", more=["--model", model, "--require-identical"])
    name = fleets.ask(cluster.router.address, "/v1/models").json()["data"][0]["id"]
    chat = {"model": name, "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0}
    completion = {"model": name, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}

    def ask(router, target, body):
        answer = fleets.ask(router.address, target, body)
        assert answer.status == 200, answer
        return answer

    expected_chat = ask(cluster.router, "/v1/chat/completions", chat).json()
    expected = ask(cluster.router, "/v1/completions", completion).json()
    text = expected["choices"][0]["text"]
    assert len(text) > 20
    # That its answers differ by prompt is what makes equal ones worth something.
    other = ask(cluster.router, "/v1/completions", {**completion, "prompt": "Once upon a time"})
    assert other.json()["choices"][0]["text"] != text

    router = behind(cluster)
    # Chat, whole and streamed.
    got = ask(router, "/v1/chat/completions", chat).json()
    assert got["choices"] == expected_chat["choices"]
    assert got["usage"] == expected_chat["usage"]
    chunks = events(ask(router, "/v1/chat/completions", {**chat, "stream": True}).body)
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert len(deltas) > 2
    assert "".join(deltas) == expected_chat["choices"][0]["message"]["content"]
    # Completions, whole and streamed.
    got = ask(router, "/v1/completions", completion).json()
    assert got["choices"] == expected["choices"] and got["usage"] == expected["usage"]
    chunks = events(ask(router, "/v1/completions", {**completion, "stream": True}).body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    # SGLang's own route, whole and streamed.
    got = generate(router, PROMPT)
    assert got.status == 200, got
    whole = got.json()
    assert whole["text"] == text
    assert whole["meta_info"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
    assert whole["meta_info"]["finish_reason"]["type"] == expected["choices"][0]["finish_reason"]
    chunks = events(generate(router, PROMPT, stream=True).body)
    assert len(chunks) > 2
    assert chunks[-1]["text"] == text and chunks[-1]["output_ids"] == whole["output_ids"]
    assert chunks[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]
    cluster.wait_balance()


def test_all_through_the_transfer(cluster, behind):
    """Each answer came over a room of its own, and prefill's part was prefill's."""
    router = behind(cluster)
    assert fleets.ask(router.address, "/workers").json()["stats"] == {
        "prefill_count": 1, "decode_count": 1, "regular_count": 0}
    for number in range(5):
        answer = generate(router, f"{number} " * 100, rid=f"request-{number}")
        assert answer.status == 200, answer
        assert answer.json()["meta_info"]["id"] == f"request-{number}"
    for server in (cluster.prefill, cluster.decode):
        rooms = fleets.ask(server.address, "/v1/kvferry/rooms").json()["rooms"]
        assert [room["outcome"] for room in rooms] == ["success"] * 5
        assert len({room["binding"] for room in rooms}) == 5
    assert cluster.computed() > 0
    cluster.wait_balance()


def test_the_port_of_the_registry_may_be_left_out(cluster, behind):
    router = behind(cluster, name_port=False)
    answer = generate(router, "no port is named")
    assert answer.status == 200, answer


def test_stop_strings_and_token_prompts(cluster, behind):
    router = behind(cluster)
    whole = generate(router, "stop somewhere", sampling={"ignore_eos": True}).json()
    stop = whole["text"][5:7]
    cut = generate(router, "stop somewhere", sampling={"stop": [stop], "ignore_eos": True}).json()
    assert cut["text"] == whole["text"][:whole["text"].index(stop)]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    ids = fleets.ask(router.address, "/generate",
                     {"input_ids": list(b"stop somewhere"), "sampling_params": {
                         "temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}})
    assert ids.status == 200, ids
    assert ids.json()["meta_info"]["prompt_tokens"] == 14


def test_refusals_reach_the_client(cluster, behind):
    router = behind(cluster)
    for fields, named in (({"return_logprob": True}, "return_logprob"),
                          ({"sampling": {"top_k": 40}}, "top_k"),
                          ({"sampling": {"n": 2}}, "sampling_params.n"),
                          ({"lora_path": "x"}, "lora_path"),
                          ({"text": "x" * 5000}, "5000")):
        answer = generate(router, fields.pop("text", "x"), **fields)
        assert answer.status == 400, answer
        assert named in answer.error["message"], answer
    # Of a chat with two answers the router makes a batch.
    chat = fleets.ask(router.address, "/v1/chat/completions",
                      {"model": "synthetic", "messages": MESSAGES, "n": 2})
    assert chat.status == 400, chat
    assert generate(router, "x").status == 200
    cluster.wait_balance()


def begin_long_request(cluster, router):
    """Returns its connection, once prefill has computed a chunk of it."""
    before = cluster.computed()
    connection = fleets.connect(router.address)
    connection.request("POST", "/generate",
                       json.dumps({"text": "a long prompt of several chunks " * 40}),
                       {"content-type": "application/json"})
    cluster.wait_chunk(before)
    return connection


def test_a_client_that_leaves(servers, behind):
    cluster = servers.start_pair(prefill_delay_ms=40)
    router = behind(cluster)
    connection = begin_long_request(cluster, router)
    connection.close()
    for server in (cluster.prefill, cluster.decode):
        fleets.eventually(
            lambda server=server: fleets.metric(server.address, "kvferry_requests_active") == 0,
            f"{server.name} has let go of it")
    cluster.wait_balance()
    assert generate(router, "after it").status == 200


def test_a_prefill_server_that_is_killed(servers, behind):
    cluster = servers.start_pair(prefill_delay_ms=40)
    router = behind(cluster)
    connection = begin_long_request(cluster, router)
    cluster.prefill.kill()
    assert connection.getresponse().status >= 500
    connection.close()
    cluster.wait_unpaired()  # else the dead one's pair is taken for the new one's
    cluster.restart_prefill()
    cluster.wait_paired()
    fleets.eventually(lambda: generate(router, "with the new one").status == 200,
                      "the router uses the new one")
