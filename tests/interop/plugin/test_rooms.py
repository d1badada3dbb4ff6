"""SGLang's own schedulers move rooms with the backend that its plug-in framework loaded."""

import os

import pytest
from fleet import Fleet
from plan import Plan

ROOMS = int(os.environ.get("KVFERRY_INTEROP_ROOMS", "150"))


def require_all_well(plan, prefill, decode, failed_at_most):
    """Every room ended, each that succeeded has its bytes, and no page came back without proof."""
    for figures in prefill + decode:
        assert figures["fault_count"] == 0, figures["faults"]
        assert figures["succeeded"] + figures["failed"] == plan.rooms
        assert figures["failed"] <= failed_at_most
    for figures in decode:
        assert figures["freed_early"] == 0
        assert figures["late_bytes"] == 0
        assert figures["timer"] == float("inf")


@pytest.mark.parametrize(("backend", "alias"), [("kvferry", None), ("nixl", "nixl")])
def test_rooms_arrive_with_a_tenth_aborted(site, sglang_python, backend, alias):
    plan = Plan(rooms=ROOMS)
    with Fleet(plan, site, sglang_python, backend, alias) as fleet:
        prefill, decode = fleet.run()
    assert plan.aborted() >= plan.rooms // 10
    require_all_well(plan, prefill, decode, plan.aborted())
    # An abort may come after the room's end, but not before anything was given.
    assert decode[0]["failed"] > plan.aborted() // 4


def test_rooms_over_tcp_with_a_cluster_token(site, sglang_python, tmp_path):
    """Signed registrations go through SGLang's bootstrap port unchanged."""
    token = tmp_path / "token"
    token.write_text("a secret of this fleet\n", encoding="utf-8")
    plan = Plan(rooms=60)
    with Fleet(plan, site, sglang_python, environment={
            "KVFERRY_CLUSTER_TOKEN_FILE": str(token), "KVFERRY_TRANSPORT": "tcp"}) as fleet:
        prefill, decode = fleet.run()
    require_all_well(plan, prefill, decode, plan.aborted())


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(2, 2), (2, 1), (1, 2)])
def test_tensor_parallel_ranks(site, sglang_python, prefill_tp, decode_tp):
    plan = Plan(rooms=min(ROOMS, 150))
    with Fleet(plan, site, sglang_python, prefill_tp=prefill_tp, decode_tp=decode_tp) as fleet:
        prefill, decode = fleet.run()
    require_all_well(plan, prefill, decode, plan.aborted())
    assert len({figures["failed"] for figures in decode}) == 1


def test_a_prefill_server_that_is_killed_and_restarted(site, sglang_python):
    """Its rooms fail with the reason, their pages come back, and the next life serves."""
    plan = Plan(rooms=40, abort_percent=0)
    patience = {"KVFERRY_HTTP_TRY_TIMEOUT_MS": "500", "KVFERRY_HTTP_TOTAL_TIMEOUT_MS": "1000"}
    with Fleet(plan, site, sglang_python, environment=patience) as fleet:
        require_all_well(plan, *fleet.run(), failed_at_most=0)
        for each in fleet.prefill:
            each.end()
        (figures,) = fleet.ask(fleet.decode, "run", 120, 1_000, seconds=180)
        assert (figures["succeeded"], figures["failed"]) == (0, plan.rooms)
        assert (figures["freed_early"], figures["late_bytes"]) == (0, 0)
        fleet.restart_prefill()
        prefill, decode = fleet.run(first_room=2_000)
        assert decode[0]["succeeded"] == plan.rooms
        require_all_well(plan, prefill, decode, failed_at_most=0)


def test_a_room_number_that_is_open_is_refused(site, sglang_python):
    """The second request with a number fails on both sides, the first one and all others arrive."""
    plan = Plan(rooms=40, abort_percent=0, twice=7)
    with Fleet(plan, site, sglang_python) as fleet:
        prefill, decode = fleet.run()
    for figures in prefill + decode:
        assert figures["fault_count"] == 0, figures["faults"]
        assert figures["failed"] == 1 and figures["succeeded"] == plan.rooms - 1
        assert "duplicate-room" in figures["causes"][0]


def test_a_release_without_proof_is_seen(site, sglang_python):
    """The control: with the release check removed SGLang frees pages that kvferry still has."""
    plan = Plan(rooms=100, abort_percent=50)
    with Fleet(plan, site, sglang_python) as fleet:
        fleet.ask(fleet.decode, "believe_without_proof")
        _, decode = fleet.run()
    assert decode[0]["freed_early"] > 0
