"""kvferry's rank formulas against SGLang's own, over all sizes that an engine has."""

import itertools
import json

SIZES = (1, 2, 4, 8)
KINDS = ("heads", "latents", "hybrid")


def compare(tool, sglang, cases):
    """cases: prefill's (tp, cp, pp, layer split, sharding), decode's (tp, pp, rank, pp rank), kind,
    all CP ranks. Returns how many were compared and how many both refused."""
    ours, theirs = tool("ranks"), sglang("mapping")
    refused = 0
    for prefill, decode, kind, all_cp in cases:
        (tp, cp, pp, split, sharding), (to, pp_size, rank, pp_rank) = prefill, decode
        expected = theirs.ask("mapping", {
            "attn_tp_size": tp, "attn_cp_size": cp, "pp_size": pp,
            "enable_dsa_cache_layer_split": bool(split),
            "enable_kv_cache_sharding": bool(sharding)}, {
            "attn_tp_size": to, "attn_cp_size": 1, "attn_cp_rank": 0, "pp_size": pp_size,
            "pp_rank": pp_rank, "engine_rank": rank, "is_mla_backend": kind == "latents",
            "is_hybrid_mla_backend": kind == "hybrid",
            "enable_all_cp_ranks_for_transfer": bool(all_cp)})
        words = (tp, cp, pp, split, sharding, to, pp_size, rank, pp_rank, kind, all_cp)
        answer = json.loads(ours.write(" ".join(str(word) for word in words)))
        if expected is None:
            refused += 1
            expected = {"error": "refused"}
        assert answer == expected, words
    return len(cases), refused


def test_all_pairs_of_tp_sizes(tool, sglang):
    cases = [((tp, 1, 1, 0, sharding), (to, 1, rank, 0), kind, 0)
             for tp, to, kind, sharding in itertools.product(SIZES, SIZES, KINDS, (0, 1))
             for rank in range(2 * to)]  # beyond the group, too: SGLang takes it modulo
    compared, refused = compare(tool, sglang, cases)
    assert compared == 720
    # Latents that are sharded over TP need equal sizes, which SGLang asserts.
    assert refused == sum(2 * to for tp, to in itertools.product(SIZES, SIZES) if tp != to)


def test_context_and_pipeline_parallelism(tool, sglang):
    cases = [((tp, cp, pp, split, sharding), (1, pp_size, 0, pp_size - 1), kind, all_cp)
             for tp, cp, pp, pp_size, split, sharding, kind, all_cp in itertools.product(
                 (1, 2), (1, 2), (1, 2, 4), (1, 2, 4), (0, 1), (0, 1), KINDS, (0, 1))]
    compared, refused = compare(tool, sglang, cases)
    assert 0 < refused < compared


def test_the_comparison_can_fail(tool):
    """Its control: the tool's answers differ where sizes do."""
    ranks = tool("ranks")
    two, four = (json.loads(ranks.write(f"{tp} 1 1 0 0 1 1 0 0 heads 0")) for tp in (2, 4))
    assert two["target_tp_ranks"] == [0, 1] and four["target_tp_ranks"] == [0, 1, 2, 3]
    assert "error" in json.loads(ranks.write("6 1 1 0 0 4 1 0 0 heads 0"))
    assert "error" in json.loads(ranks.write("nonsense"))
