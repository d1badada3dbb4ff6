#include "wire/aux_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>

namespace kvferry::wire {
namespace {

// Offsets of the fields. What lies between them is zero and covered by the CRC, so that a later
// version may use it.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kFirstTokenAt = 4;
constexpr std::size_t kFirstLogprobAt = 8;
constexpr std::size_t kPromptTokensAt = 12;
constexpr std::size_t kCachedTokensAt = 16;
constexpr std::size_t kRoomAt = 24;
constexpr std::size_t kBindingHighAt = 32;
constexpr std::size_t kBindingLowAt = 40;
constexpr std::size_t kCrcAt = kAuxRecordBytes - 4;

// "KVA1" in memory order.
constexpr std::uint32_t kMagic = 0x3141'564B;

template <std::unsigned_integral T>
void store(std::span<std::byte> slot, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    slot[at + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <std::unsigned_integral T>
T load(std::span<const std::byte> slot, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(slot[at + i]) << (8 * i));
  }
  return value;
}

// Tables of CRC32C (Castagnoli, reflected), for four bytes at a time: what a byte leaves behind,
// followed by so many zero bytes. Made at compile time: libraries keep theirs in a function-local
// static, and pure code has none.
using CrcTables = std::array<std::array<std::uint32_t, 256>, 4>;
constexpr CrcTables make_crc_tables() {
  constexpr std::uint32_t kReflectedPolynomial = 0x82F63B78;
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (CrcTables::value_type& table : tables) {
      for (int bit = 0; bit < 8; ++bit) {
        remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kReflectedPolynomial : 0);
      }
      table[byte] = remainder;
    }
  }
  return tables;
}
constexpr CrcTables kCrc = make_crc_tables();

std::uint32_t crc_of(std::span<const std::byte> slot) {
  static_assert(kCrcAt % sizeof(std::uint32_t) == 0);
  std::uint32_t remainder = 0xFFFFFFFF;
  for (std::size_t at = 0; at < kCrcAt; at += sizeof(std::uint32_t)) {
    remainder ^= load<std::uint32_t>(slot, at);
    remainder = kCrc[3][remainder & 0xFF] ^ kCrc[2][(remainder >> 8) & 0xFF] ^
                kCrc[1][(remainder >> 16) & 0xFF] ^ kCrc[0][remainder >> 24];
  }
  return ~remainder;
}

tl::unexpected<Failure> invalid(std::string what) {
  return fail(FailureCode::kAuxInvalid, std::move(what));
}

}  // namespace

void encode_aux(std::span<std::byte> slot, RoomId room, Binding binding, const AuxRecord& record) {
  std::fill(slot.begin(), slot.end(), std::byte{0});
  store<std::uint32_t>(slot, kMagicAt, kMagic);
  store<std::uint32_t>(slot, kFirstTokenAt, static_cast<std::uint32_t>(record.first_token));
  store<std::uint32_t>(slot, kFirstLogprobAt, std::bit_cast<std::uint32_t>(record.first_logprob));
  store<std::uint32_t>(slot, kPromptTokensAt, record.prompt_tokens);
  store<std::uint32_t>(slot, kCachedTokensAt, record.cached_tokens);
  store<std::uint64_t>(slot, kRoomAt, room.value());
  store<std::uint64_t>(slot, kBindingHighAt, binding.high);
  store<std::uint64_t>(slot, kBindingLowAt, binding.low);
  store<std::uint32_t>(slot, kCrcAt, crc_of(slot));
}

Result<BoundAux> read_aux(std::span<const std::byte> slot) {
  if (slot.size() < kAuxRecordBytes) {
    return invalid(
        fmt::format("aux slot has {} bytes, a record has {}", slot.size(), kAuxRecordBytes));
  }
  if (const auto magic = load<std::uint32_t>(slot, kMagicAt); magic != kMagic) {
    return invalid(fmt::format("aux record starts with {:08x}, not {:08x}", magic, kMagic));
  }
  const auto stored = load<std::uint32_t>(slot, kCrcAt);
  if (const std::uint32_t computed = crc_of(slot); stored != computed) {
    return invalid(fmt::format("aux CRC is {:08x}, its bytes give {:08x}", stored, computed));
  }
  BoundAux aux;
  aux.room = RoomId(load<std::uint64_t>(slot, kRoomAt));
  aux.binding = {load<std::uint64_t>(slot, kBindingHighAt),
                 load<std::uint64_t>(slot, kBindingLowAt)};
  aux.record.first_token = static_cast<std::int32_t>(load<std::uint32_t>(slot, kFirstTokenAt));
  aux.record.first_logprob = std::bit_cast<float>(load<std::uint32_t>(slot, kFirstLogprobAt));
  aux.record.prompt_tokens = load<std::uint32_t>(slot, kPromptTokensAt);
  aux.record.cached_tokens = load<std::uint32_t>(slot, kCachedTokensAt);
  return aux;
}

Result<AuxRecord> decode_aux(std::span<const std::byte> slot, RoomId room, Binding binding,
                             std::uint32_t vocab_size) {
  const Result<BoundAux> aux = read_aux(slot);
  if (!aux) {
    return tl::unexpected(aux.error());
  }
  if (aux->room != room) {
    return invalid(
        fmt::format("aux record is of room {}, not {}", aux->room.value(), room.value()));
  }
  if (aux->binding != binding) {
    return invalid(fmt::format("aux record is of binding {}, not {}", aux->binding.to_hex(),
                               binding.to_hex()));
  }
  const std::int32_t token = aux->record.first_token;
  if (vocab_size > 0 && (token < 0 || static_cast<std::uint32_t>(token) >= vocab_size)) {
    return invalid(fmt::format("aux token {} is outside the vocabulary of {}", token, vocab_size));
  }
  return aux->record;
}

}  // namespace kvferry::wire
