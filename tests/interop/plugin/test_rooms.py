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
    aborted = sum(plan.is_aborted_by(number, role) for number in range(plan.rooms)
                  for role in ("prefill", "decode"))
    assert aborted >= plan.rooms // 10
    require_all_well(plan, prefill, decode, aborted)
    # An abort may come after the room's end, but not each of them.
    assert decode[0]["failed"] > aborted // 4


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(2, 2), (2, 1), (1, 2)])
def test_tensor_parallel_ranks(site, sglang_python, prefill_tp, decode_tp):
    plan = Plan(rooms=min(ROOMS, 150))
    with Fleet(plan, site, sglang_python, prefill_tp=prefill_tp, decode_tp=decode_tp) as fleet:
        prefill, decode = fleet.run()
    require_all_well(plan, prefill, decode, plan.rooms // 5)
    assert len({figures["failed"] for figures in decode}) == 1


def test_a_release_without_proof_is_seen(site, sglang_python):
    """The control: with the release check removed SGLang frees pages that kvferry still has."""
    plan = Plan(rooms=100, abort_percent=50)
    with Fleet(plan, site, sglang_python) as fleet:
        fleet.ask(fleet.decode, "believe_without_proof")
        _, decode = fleet.run()
    assert decode[0]["freed_early"] > 0
