#include "dialect/sglang/aux_buffers.h"

#include <fmt/format.h>

#include <cstring>

#include "wire/aux_record.h"

namespace kvferry::sglang {
namespace {

// Positions from the front; the room comes last, or last but one.
constexpr std::size_t kOutputIds = 0;
constexpr std::size_t kCachedTokens = 1;
constexpr std::size_t kLogprob = 2;
constexpr std::size_t kLogprobToken = 3;
constexpr std::size_t kFixed = 4;

// As SGLang's tensors lie in memory: in the byte order of the host.
template <typename T>
void store(std::vector<std::byte>& item, T value) {
  std::memcpy(item.data(), &value, sizeof value);
}
template <typename T>
T load(std::span<const std::byte> item) {
  T value{};
  std::memcpy(&value, item.data(), sizeof value);
  return value;
}

}  // namespace

std::size_t room_buffer(const AuxBuffers& buffers) {
  return buffers.item_bytes.size() - (buffers.has_checksum ? 2 : 1);
}

Status check(const AuxBuffers& buffers) {
  const std::size_t least = kFixed + (buffers.has_checksum ? 2 : 1);
  if (buffers.item_bytes.size() < least) {
    return fail(FailureCode::kInvalidArgument, fmt::format("{} aux buffers, SGLang has at least {}",
                                                           buffers.item_bytes.size(), least));
  }
  for (std::size_t i = 0; i < buffers.item_bytes.size(); ++i) {
    const std::size_t field = i < kFixed                  ? sizeof(std::int32_t)
                              : i >= room_buffer(buffers) ? sizeof(std::uint64_t)
                                                          : 1;
    if (buffers.item_bytes[i] < field) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("aux buffer {} has {} bytes for a slot, its field {}", i,
                              buffers.item_bytes[i], field));
    }
  }
  return {};
}

Result<std::vector<std::vector<std::byte>>> split_aux(const AuxBuffers& buffers,
                                                      std::span<const std::byte> slot) {
  const Result<wire::BoundAux> aux = wire::read_aux(slot);
  if (!aux) {
    return tl::unexpected(aux.error());
  }
  std::vector<std::vector<std::byte>> items;
  for (const std::uint32_t bytes : buffers.item_bytes) {
    items.emplace_back(bytes, std::byte{0});
  }
  store(items[kOutputIds], aux->record.first_token);
  store(items[kCachedTokens], static_cast<std::int32_t>(aux->record.cached_tokens));
  store(items[kLogprob], aux->record.first_logprob);
  store(items[kLogprobToken], aux->record.first_token);
  store(items[room_buffer(buffers)], aux->room.value());
  return items;
}

AuxRecord join_aux(std::span<const std::span<const std::byte>> items) {
  AuxRecord record;
  record.first_token = load<std::int32_t>(items[kOutputIds]);
  record.first_logprob = load<float>(items[kLogprob]);
  record.cached_tokens = load<std::uint32_t>(items[kCachedTokens]);
  return record;
}

}  // namespace kvferry::sglang
