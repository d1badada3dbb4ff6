"""What the two schedulers of a test share: KV pools with known bytes, page allocators, requests."""

import types

import host_torch
import numpy

PAGE_TOKENS = 16
HOST = "127.0.0.1"
POISON = 0xEE


class Pool:
    """KV buffers of one rank, as SGLang's pool of multi-head attention lays them out: K of each
    layer, then V of each; an item is [token][bytes of this rank's heads].

    The bytes of a page follow from the room, the page's place in the prompt, the buffer and the
    place in the whole model's row, so that any rank of any size knows what must be there.
    """

    def __init__(self, layers, pages, row_bytes, tp_rank, tp_size):
        self.layers, self.pages, self.row_bytes = layers, pages, row_bytes
        self.first_byte, self.tp_size = tp_rank * row_bytes, tp_size
        self.buffers = [numpy.zeros((pages, PAGE_TOKENS, row_bytes), numpy.uint8)
                        for _ in range(2 * layers)]
        self.free = list(range(pages - 1, 0, -1))  # page 0 is SGLang's padding

    def expected(self, room, place, buffer):
        tokens = numpy.arange(PAGE_TOKENS, dtype=numpy.uint64)[:, None]
        row = numpy.arange(self.first_byte, self.first_byte + self.row_bytes,
                           dtype=numpy.uint64)[None, :]
        seed = numpy.uint64((room * 2_654_435_761 + place * 40_503 + buffer * 977) % 2**32)
        return ((seed + tokens * numpy.uint64(131) + row * numpy.uint64(7)) >> numpy.uint64(
            1)).astype(numpy.uint8)

    def fill(self, room, first_place, pages):
        for i, page in enumerate(pages):
            for number, buffer in enumerate(self.buffers):
                buffer[page] = self.expected(room, first_place + i, number)

    def is_filled(self, room, first_place, pages):
        return all((buffer[page] == self.expected(room, first_place + i, number)).all()
                   for i, page in enumerate(pages) for number, buffer in enumerate(self.buffers))

    def poison(self, pages):
        for buffer in self.buffers:
            buffer[pages] = POISON

    def is_poisoned(self, pages):
        return all((buffer[pages] == POISON).all() for buffer in self.buffers)

    def take(self, count):
        if len(self.free) < count:
            return None
        return [self.free.pop() for _ in range(count)]


def metadata(rows):
    """SGLang's own metadata buffers, in host memory."""
    from sglang.srt.disaggregation.utils import MetadataBuffers
    return MetadataBuffers(rows, hidden_size=16, hidden_states_dtype=numpy.float32,
                           max_sampling_mask_tokens=None)


def metadata_arrays(buffers):
    return [buffers.output_ids, buffers.cached_tokens, buffers.output_token_logprobs_val,
            buffers.output_token_logprobs_idx, buffers.output_top_logprobs_val,
            buffers.output_top_logprobs_idx, buffers.output_topk_p, buffers.output_topk_index,
            buffers.output_hidden_states]


def expected_row(room, number, array):
    """Bytes of a row of one metadata array, but for the elements that SGLang itself sets."""
    length = array[0].nbytes
    return ((numpy.arange(length) * 3 + room + number) % 251).astype(numpy.uint8)


def arguments(pool, buffers, tp_rank):
    """SGLang's KVArgs, as its queues fill it."""
    from sglang.srt.disaggregation.base.conn import KVArgs
    made = KVArgs()
    aux_ptrs, aux_lens, aux_items = buffers.get_buf_infos()
    values = {
        "engine_rank": tp_rank, "kv_data_ptrs": [each.ctypes.data for each in pool.buffers],
        "kv_data_lens": [each.nbytes for each in pool.buffers],
        "kv_item_lens": [each[0].nbytes for each in pool.buffers], "kv_layer_ids": [],
        "kv_cache_dtype_str": "auto", "aux_data_ptrs": aux_ptrs, "aux_data_lens": aux_lens,
        "aux_item_lens": aux_items, "state_types": [], "state_data_ptrs": [],
        "state_data_lens": [], "state_item_lens": [], "state_layer_ids": [],
        "state_dim_per_tensor": [], "state_slice_outer_counts": [],
        "state_conv_shard_groups": [], "is_hybrid_mla_backend": False, "swa_kv_cache_layout": None,
        "ib_device": None, "gpu_id": 0, "page_size": PAGE_TOKENS, "system_dp_rank": 0,
        "rust_http_port": None, "pp_rank": 0, "prefill_start_layer": 0,
        "prefill_end_layer": pool.layers, "mla_compression_ratios": None,
    }
    for name, value in values.items():
        setattr(made, name, value)
    return made


def request(room, tokens, port):
    """What SGLang's queues read and write of a request."""
    return types.SimpleNamespace(
        rid=f"r{room}", bootstrap_room=room, bootstrap_host=HOST, bootstrap_port=port,
        origin_input_ids=list(range(tokens)), extend_end=tokens, time_stats=_Quiet(),
        sampling_params=types.SimpleNamespace(max_new_tokens=8), disagg_prefill_dp_rank=None,
        metadata_buffer_index=-1, is_retracted=False, pending_bootstrap=False,
        finished_reason=None, to_finish=None, return_logprob=False, return_sampling_mask=False,
        return_routed_experts=False, start_send_idx=0, disagg_decode_prefix_len=0,
        prefill_attempt_count=0, arrival_processed_tokens=0, cache_request_handle=None,
        hidden_states_tensor=None, cached_tokens=3, cached_tokens_device=2, cached_tokens_host=1,
        cached_tokens_storage=0, get_mm_token_counts=lambda: (0, 0, 0),
        pd_rebootstrap_forced_output_id=None, output_ids=[], finished_output=False,
        kv=types.SimpleNamespace(req_pool_idx=None, holds_kv=False, holds_mamba=False,
                                 retraction_backup=None, pages=None),
        disagg_kv_sender=None, finished=lambda: False)


class _Quiet:
    """Timestamps and traces of a request, which nobody reads here."""

    def __getattr__(self, name):
        return _Quiet()

    def __call__(self, *_, **__):
        return None


def first_token(room):
    return room % 32_000 + 7


def token_row(pages):
    """Token numbers of whole pages, as a row of SGLang's req_to_token has them."""
    return host_torch.tensor(
        [page * PAGE_TOKENS + token for page in pages for token in range(PAGE_TOKENS)],
        dtype=numpy.int64)
