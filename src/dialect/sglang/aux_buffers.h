// SGLang's side data of a room ("metadata buffers"): a number of buffers with one item for each aux
// slot, in an order that both engines derive from their settings; the wire names addresses only.
// kvferry has one record (AuxRecord). Here one becomes the other. Pure.
//
// As in SGLang 0.5.23, from the front: output_ids, cached_tokens, output_token_logprobs_val,
// output_token_logprobs_idx, then what is not known here and stays zero (top logprobs, sampling
// masks, hidden states, ...), then bootstrap_room, then kv_checksum where it is switched on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::sglang {

struct AuxBuffers {
  // Bytes of an item of each buffer. SGLang's defaults with a hidden size of 0; an engine asks its
  // own SGLang (MetadataBuffers.get_buf_infos(), the third list), since both sides must agree.
  std::vector<std::uint32_t> item_bytes;
  bool has_checksum = false;  // --disaggregation-enable-kv-checksum: one more buffer at the end
};

// Fails with kInvalidArgument when there are too few buffers, or one is too small for its field.
Status check(const AuxBuffers& buffers);

// Which buffer has the room's number, as a u64 in front. SGLang takes 0 for one not yet written.
std::size_t room_buffer(const AuxBuffers& buffers);

// One item for each buffer, made of the record in an aux slot of this rank (wire/aux_record.h).
// Fails with kAuxInvalid for a slot without a sound record.
Result<std::vector<std::vector<std::byte>>> split_aux(const AuxBuffers& buffers,
                                                      std::span<const std::byte> slot);
// The other way round: from the front of each buffer's item. The number of the prompt's tokens is
// not among them.
AuxRecord join_aux(std::span<const std::span<const std::byte>> items);

}  // namespace kvferry::sglang
