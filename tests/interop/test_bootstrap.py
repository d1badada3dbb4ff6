"""Real SGLang ranks register at kvferry's bootstrap routes and find each other through them."""


def start_registry(tool):
    registry = tool("serve")
    word, address = registry.read().split()
    assert word == "listening"
    return int(address.rsplit(":", 1)[1])


def test_decode_finds_the_ranks_that_prefill_registered(tool, sglang):
    port = start_registry(tool)
    decode = sglang("decode", port)
    assert decode.ask("topology") is None, "nobody has registered"

    prefills = [sglang("prefill", port, 2, 0)]
    assert decode.ask("topology") is None, "one of two has registered"
    prefills.append(sglang("prefill", port, 2, 1))

    topology = decode.ask("topology")
    assert topology["attn_tp_size"] == 2 and topology["page_size"] == 16
    assert topology["target_tp_ranks"] == [0, 1]
    assert topology["required_prefill_response_num"] == 2
    assert topology["prefill_http_port"] == 30000

    found = decode.ask("open_receiver", 42)
    assert [each["rank_port"] for each in found] == [each.ask("rank_port") for each in prefills]
    assert [each["rank_ip"] for each in found] == ["127.0.0.1"] * 2


def test_a_room_goes_through_between_ranks_that_met_here(tool, sglang):
    port = start_registry(tool)
    prefills = [sglang("prefill", port, 2, rank) for rank in range(2)]
    decode = sglang("decode", port)
    assert decode.ask("topology") is not None
    for prefill in prefills:
        prefill.ask("open_sender", 7)
    decode.ask("open_receiver", 7)
    assert decode.ask("await_status", 7, "WaitingForInput") == "WaitingForInput"
    decode.ask("send_metadata", 7)
    for prefill in prefills:
        assert prefill.ask("await_status", 7, "WaitingForInput") == "WaitingForInput"
        prefill.ask("send", 7)
    assert decode.ask("await_status", 7, "Success") == "Success"


def test_a_room_has_the_data_parallel_rank_that_prefill_gave_it(tool, sglang):
    port = start_registry(tool)
    prefill, decode = sglang("prefill", port), sglang("decode", port)
    assert decode.ask("query_dp_ranks", [7, 8]) == {}
    prefill.ask("open_sender", 7)
    prefill.ask("register_dp_rank", 7)
    assert decode.ask("query_dp_ranks", [7, 8]) == {"7": 0}
