// An aux slot as it lies in decode's memory. Either the bytes are the input's own, or a good record
// is encoded and up to five of its bits are flipped, which a CRC32C over so few bytes always shows
// (its Hamming distance is 6 here): a damaged record is never taken for a whole one.
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "input.h"
#include "target.h"
#include "wire/aux_record.h"

namespace kvferry::fuzz {
namespace {

constexpr std::uint32_t kMaxFlips = 5;
constexpr std::size_t kTailBytes = 8;  // slots may be longer than a record

bool equal_bits(const AuxRecord& a, const AuxRecord& b) {
  // By bits: a logprob may be a NaN.
  return a.first_token == b.first_token &&
         std::bit_cast<std::uint32_t>(a.first_logprob) ==
             std::bit_cast<std::uint32_t>(b.first_logprob) &&
         a.prompt_tokens == b.prompt_tokens && a.cached_tokens == b.cached_tokens;
}

void run_raw(Input& input) {
  const RoomId room(input.raw<std::uint64_t>());
  const Binding binding{input.raw<std::uint64_t>(), input.raw<std::uint64_t>()};
  const auto rest = input.rest();
  // A copy of its own size, so that the sanitizer sees a read past its end.
  const std::vector<std::uint8_t> bytes(rest.begin(), rest.end());
  const auto slot = std::as_bytes(std::span(bytes));
  const auto record = wire::decode_aux(slot, room, binding, 0);
  if (!record) {
    require(record.error().code == FailureCode::kAuxInvalid, "a bad record is kAuxInvalid");
    require(!record.error().what.empty(), "a bad record says what is wrong");
    return;
  }
  std::vector<std::byte> again(slot.size());
  wire::encode_aux(again, room, binding, *record);
  const auto second = wire::decode_aux(again, room, binding, 0);
  require(second && equal_bits(*record, *second), "a record survives a round trip");
}

void run_flipped(Input& input) {
  const RoomId room(input.raw<std::uint64_t>());
  const Binding binding{input.raw<std::uint64_t>(), input.raw<std::uint64_t>()};
  AuxRecord record;
  record.first_token = static_cast<std::int32_t>(input.raw<std::uint32_t>());
  record.first_logprob = std::bit_cast<float>(input.raw<std::uint32_t>());
  record.prompt_tokens = input.raw<std::uint32_t>();
  record.cached_tokens = input.raw<std::uint32_t>();
  std::vector<std::byte> slot(kAuxRecordBytes + input.below(kTailBytes + 1));
  wire::encode_aux(slot, room, binding, record);
  std::set<std::uint32_t> flipped;
  for (std::uint32_t flips = input.below(kMaxFlips + 1); flips > 0; --flips) {
    const std::uint32_t bit = input.raw<std::uint16_t>() % (kAuxRecordBytes * 8);
    if (flipped.insert(bit).second) {
      slot[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
  }
  const std::uint32_t vocab_size = input.raw<std::uint32_t>();
  const auto decoded = wire::decode_aux(slot, room, binding, vocab_size);
  const bool token_fits =
      vocab_size == 0 ||
      (record.first_token >= 0 && static_cast<std::uint32_t>(record.first_token) < vocab_size);
  require(decoded.has_value() == (flipped.empty() && token_fits),
          "a record is taken exactly when it is whole and its token in the vocabulary");
  if (decoded) {
    require(equal_bits(*decoded, record), "a record survives a round trip");
    require(!wire::decode_aux(slot, room.next(), binding, vocab_size), "the room is checked");
    require(!wire::decode_aux(slot, room, {binding.high, binding.low + 1}, vocab_size),
            "the binding is checked");
  }
}

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvferry::fuzz::Input input({data, size});
  if (input.coin()) {
    kvferry::fuzz::run_flipped(input);
  } else {
    kvferry::fuzz::run_raw(input);
  }
  return 0;
}
