"""The official OpenAI client, unmodified, against the router."""

import openai
import pytest

import fleet as fleets


def client_of(cluster):
    # Without retries, so that each error is seen as it was answered.
    return openai.OpenAI(base_url=f"http://{cluster.router.address}/v1", api_key="unused",
                         max_retries=0, timeout=fleets.DEADLINE_S)


@pytest.fixture
def client(cluster):
    with client_of(cluster) as made:
        yield made


MESSAGES = [{"role": "user", "content": "Why is snow white although ice is clear?"}]


def test_models(client):
    models = client.models.list().data
    assert [model.id for model in models] == ["synthetic"]


def test_chat(client):
    answer = client.chat.completions.create(model="synthetic", messages=MESSAGES, max_tokens=20,
                                            temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 0
    assert 0 < answer.usage.completion_tokens <= 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_gives_the_same_text(client):
    whole = client.chat.completions.create(model="synthetic", messages=MESSAGES, max_tokens=20,
                                           temperature=0)
    stream = client.chat.completions.create(model="synthetic", messages=MESSAGES, max_tokens=20,
                                            temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    text, reasons, usage = "", [], None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason]
    assert usage == whole.usage


def test_completion_streamed_and_not(client):
    arguments = {"model": "synthetic", "prompt": "Once upon a time " * 20, "max_tokens": 20,
                 "temperature": 0}
    whole = client.completions.create(**arguments)
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**arguments, stream=True)
              if chunk.choices]
    assert "".join(pieces) == whole.choices[0].text


def test_sampled_answers_repeat_with_their_seed(client):
    arguments = {"model": "synthetic", "prompt": "Roll the dice.", "max_tokens": 20,
                 "temperature": 1.0, "seed": 7}
    first = client.completions.create(**arguments).choices[0].text
    assert client.completions.create(**arguments).choices[0].text == first


def test_an_error_names_what_is_wrong(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="synthetic", messages=MESSAGES, n=3)
    assert "n" in caught.value.message
    assert caught.value.body["type"] == "invalid_request_error"


def test_with_the_real_model_both_ways_agree(servers, model):
    """One process and a pair give the same answer, letter by letter."""
    options = ["--model", model]
    reference = servers.start_serve("reference", "both", *options, engine="llama")
    question = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0}

    def answer(address):
        with openai.OpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0,
                           timeout=fleets.DEADLINE_S) as client:
            name = client.models.list().data[0].id
            return client.chat.completions.create(model=name, **question)

    expected = answer(reference.address)
    reference.terminate()
    assert reference.wait_end() == 0
    servers.start_pair(engine="llama", more=[*options, "--require-identical"])
    got = answer(servers.router.address)
    assert got.choices[0].message.content == expected.choices[0].message.content
    assert got.choices[0].finish_reason == expected.choices[0].finish_reason
    assert got.usage == expected.usage
    servers.wait_balance()
