// Strong identifiers. Two different ids never convert into each other, so that an attempt can't be
// passed where a room is wanted. All ids are values: copyable, ordered, hashable, without meaning
// beyond equality and order.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace kvferry {

template <typename Tag, typename Rep = std::uint64_t>
class StrongId {
 public:
  using rep = Rep;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }
  constexpr StrongId next() const { return StrongId(static_cast<Rep>(value_ + 1)); }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  Rep value_{};
};

// 128 bits of which only equality matters. Zero means "none" wherever that is allowed.
template <typename Tag>
struct Id128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  constexpr bool is_zero() const { return high == 0 && low == 0; }
  friend constexpr auto operator<=>(const Id128&, const Id128&) = default;

  // 32 lower-case hexadecimal digits.
  std::string to_hex() const;
  // Accepts exactly what to_hex() gives, in either case.
  static std::optional<Id128> from_hex(std::string_view text);
};

// Names given by the caller.
using RoomId = StrongId<struct RoomTag>;   // one request's transfer; may be reused at once
using Binding = Id128<struct BindingTag>;  // one request; a retry draws a new one (rule 8)

// Names drawn by a process.
using AttemptId = StrongId<struct AttemptTag>;  // one life of a room on decode; never reused
using SenderId = StrongId<struct SenderTag>;    // one KvSender of this process; never reused
using GrantId = StrongId<struct GrantTag>;      // one decode rank's leave to write; never reused
using TicketId = StrongId<struct TicketTag>;    // one posted write; never reused in a session
using GrantSlot = StrongId<struct GrantSlotTag, std::uint32_t>;  // a grant's place in one session
using Generation = StrongId<struct GenerationTag>;      // life of a slot; never reused in a session
using SessionEpoch = StrongId<struct SessionEpochTag>;  // fresh per session; 0 is "no session"
using EngineEpoch = StrongId<struct EngineEpochTag>;  // one launch of an engine, equal on all ranks
using Incarnation = Id128<struct IncarnationTag>;     // one process life

// Positions.
using PageIndex = StrongId<struct PageIndexTag, std::uint32_t>;  // item number within every KV pool
using RegionId = StrongId<struct RegionTag, std::uint32_t>;      // position in KvArgs::regions

}  // namespace kvferry

template <typename Tag, typename Rep>
struct std::hash<kvferry::StrongId<Tag, Rep>> {
  std::size_t operator()(kvferry::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};

template <typename Tag>
struct std::hash<kvferry::Id128<Tag>> {
  std::size_t operator()(const kvferry::Id128<Tag>& id) const noexcept {
    return std::hash<std::uint64_t>{}(id.high * 0x9E3779B97F4A7C15ULL ^ id.low);
  }
};
