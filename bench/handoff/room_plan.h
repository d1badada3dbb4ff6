// What both processes know of each room without a word between them: as a router that places the
// two halves of a request, its room number fixes the binding, and its lane fixes pages and aux
// slot.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/prng.h"
#include "kvferry/ids.h"
#include "kvferry/kv_poll.h"

namespace kvferry::bench {

// How much of what arrives is compared.
enum class Content : std::uint32_t {
  kNone,   // no bytes move
  kStamp,  // the first word of each page in each region names room and page
  kFull,   // every word does, and pages that wait for their next room are watched, too
};

// A protection that an engine pair does without, so that its price shows.
enum class Without : std::uint32_t { kNothing, kCurve, kHeartbeats, kRetransmission, kFence };

// "null", "tcp-no-heartbeats"
struct EngineName {
  std::string transport;
  Without without = Without::kNothing;
};
inline std::optional<EngineName> parse_engine_name(std::string_view name) {
  constexpr std::string_view kJoint = "-no-";
  const std::size_t joint = name.find(kJoint);
  EngineName engine{std::string(name.substr(0, joint)), Without::kNothing};
  const bool is_null = engine.transport == "null";
  if (!is_null && engine.transport != "shm" && engine.transport != "tcp") return std::nullopt;
  if (joint == std::string_view::npos) return engine;
  const std::string_view lacks = name.substr(joint + kJoint.size());
  engine.without = lacks == "curve"              ? Without::kCurve
                   : lacks == "heartbeats"       ? Without::kHeartbeats
                   : lacks == "retransmission"   ? Without::kRetransmission
                   : lacks == "fence" && is_null ? Without::kFence
                                                 : Without::kNothing;
  return engine.without == Without::kNothing ? std::nullopt : std::optional(engine);
}

// One engine pair for the whole bench; goes to both workers as it is.
struct HandoffSetup {
  std::array<char, 128> registry{};  // host:port
  std::array<char, 16> transport{};  // "null", "shm", "tcp"
  std::uint32_t lanes = 1;           // rooms at one time, at most
  std::uint32_t pages_per_room = 3;
  std::uint32_t layers = 2;
  std::uint32_t item_bytes = 256;  // of a page in one region; a multiple of kItemUnit
  std::uint32_t curve = 1;
  Without without = Without::kNothing;
  std::uint32_t bootstrap_timeout_ms = 0;  // 0: the default
};
inline constexpr std::uint32_t kItemUnit = 32;
inline constexpr std::string_view kNullName = "null";

// One turn of the bench.
struct HandoffOrder {
  std::uint64_t first_room = 1;  // numbers are never used twice
  std::uint64_t rooms = 0;
  std::uint32_t concurrency = 1;     // lanes in use
  std::uint32_t abort_permille = 0;  // rooms that one side or both abort
  Content content = Content::kNone;
  std::uint32_t patience_ms = 60'000;  // rooms that have not ended by then hang
  std::uint64_t seed = 1;

  std::array<std::uint64_t, 12> numbers() const {
    return {first_room,
            rooms,
            concurrency,
            abort_permille,
            static_cast<std::uint64_t>(content),
            std::uint64_t{patience_ms},
            seed};
  }
  static HandoffOrder from(const std::array<std::uint64_t, 12>& n) {
    return {n[0],
            n[1],
            static_cast<std::uint32_t>(n[2]),
            static_cast<std::uint32_t>(n[3]),
            static_cast<Content>(n[4]),
            static_cast<std::uint32_t>(n[5]),
            n[6]};
  }
};

inline Binding binding_of(std::uint64_t room) { return Binding{0x6861'6e64'6f66'66ULL, room}; }

// Whether, on which sides and when a room is aborted.
struct AbortPlan {
  bool by_prefill = false;
  bool by_decode = false;
  // The status that the side waits for, and how many turns of its loop it lets pass then.
  KvPoll at = KvPoll::kBootstrapping;
  std::uint32_t turns = 0;
};

inline AbortPlan abort_plan_of(std::uint64_t room, const HandoffOrder& order) {
  Prng prng(order.seed * 0x9E37'79B9'7F4A'7C15ULL + room);
  AbortPlan plan;
  if (prng.below(1'000) >= order.abort_permille) return plan;
  const std::uint64_t who = prng.below(3);
  plan.by_prefill = who != 0;
  plan.by_decode = who != 1;
  constexpr std::array kAt = {KvPoll::kBootstrapping, KvPoll::kWaitingForInput,
                              KvPoll::kTransferring};
  plan.at = kAt[prng.below(kAt.size())];
  plan.turns = static_cast<std::uint32_t>(prng.below(4));
  return plan;
}

}  // namespace kvferry::bench
