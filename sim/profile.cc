#include "sim/profile.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "layout/rank_map.h"
#include "sim/draw.h"

namespace kvferry::sim {
namespace {

// How often a kind strikes when a seed has it: per thousand of its occasions, drawn log-uniformly.
// Occasions differ: a frame, a write, a query, a request; for the nemesis's kinds it is a weight.
struct RateRange {
  Fault fault;
  std::uint16_t low;
  std::uint16_t high;
};
constexpr std::array<RateRange, kFaultKinds> kRates{{
    // per frame of a control link
    {Fault::kLoss, 2, 250},
    {Fault::kDelay, 1, 20},
    {Fault::kReorder, 5, 400},
    {Fault::kDuplicate, 5, 300},
    // weights of the nemesis
    {Fault::kReplay, 50, 1'000},
    {Fault::kPartition, 50, 1'000},
    {Fault::kPartitionOneWay, 50, 1'000},
    {Fault::kIsolate, 50, 1'000},
    {Fault::kClog, 50, 1'000},
    {Fault::kSwizzleClog, 50, 1'000},
    {Fault::kReset, 50, 1'000},
    {Fault::kHalfOpen, 50, 1'000},
    // per frame
    {Fault::kSlowReader, 1, 100},
    {Fault::kTruncate, 1, 100},
    {Fault::kBitFlip, 1, 100},
    // per frame of writes, or per write
    {Fault::kSlowWrite, 5, 300},
    {Fault::kCompletionLost, 1, 30},
    {Fault::kCompletionLate, 5, 300},
    {Fault::kCompletionTwice, 5, 300},
    {Fault::kErrorLanded, 1, 30},
    {Fault::kErrorNothing, 1, 30},
    {Fault::kPartlyLanded, 1, 30},
    {Fault::kWriteOutlives, 1'000, 1'000},
    {Fault::kLaneReset, 50, 1'000},
    {Fault::kFrameTwice, 5, 300},
    {Fault::kBadKey, 5, 150},
    {Fault::kFlushStorm, 50, 1'000},
    {Fault::kSlowFence, 10, 500},
    {Fault::kStalledFrame, 1, 30},
    {Fault::kSlowCopy, 1, 100},
    // weights of the nemesis
    {Fault::kCrash, 20, 300},
    {Fault::kRestart, 20, 300},
    {Fault::kPause, 50, 1'000},
    // per event in a mailbox
    {Fault::kSlowTurn, 1, 30},
    // weights of the nemesis
    {Fault::kStop, 20, 300},
    {Fault::kRelaunch, 20, 600},
    {Fault::kRegistryDown, 20, 500},
    // per query
    {Fault::kRegistryEmpty, 10, 200},
    {Fault::kRegistryStale, 10, 500},
    {Fault::kRegistrySlow, 10, 300},
    {Fault::kRegistryMissing, 10, 200},
    {Fault::kRegistryDouble, 10, 200},
    // per timer
    {Fault::kEarlyTimer, 10, 300},
    {Fault::kLateTimer, 10, 300},
    // of the whole seed
    {Fault::kClockSkew, 1'000, 1'000},
    {Fault::kPagesExhausted, 1'000, 1'000},
    {Fault::kAuxExhausted, 1'000, 1'000},
    {Fault::kSlotsExhausted, 1'000, 1'000},
    {Fault::kTombstonesFull, 1'000, 1'000},
    {Fault::kOutboxFull, 1'000, 1'000},
    {Fault::kQuarantineFull, 1'000, 1'000},
    // per request; aborts are a weight of the nemesis, too
    {Fault::kAbort, 10, 400},
    {Fault::kAbortTwice, 10, 150},
    {Fault::kAbortAfterEnd, 10, 500},
    {Fault::kClearUnread, 10, 150},
    {Fault::kSendAfterAbort, 30, 300},
    {Fault::kRoomReused, 1'000, 1'000},
    {Fault::kDuplicateRoom, 10, 500},
    {Fault::kZeroPages, 10, 300},
    {Fault::kTooManyPages, 10, 150},
    {Fault::kWrongCount, 10, 150},
    {Fault::kBrokenAux, 10, 150},
    {Fault::kSamePageTwice, 10, 150},
    {Fault::kLateSender, 10, 150},
    {Fault::kOneRankFails, 10, 150},
    {Fault::kUnlikeGrants, 10, 150},
    {Fault::kLateReceiver, 10, 150},
}};

consteval bool is_in_order() {
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    if (static_cast<std::size_t>(kRates[i].fault) != i) {
      return false;
    }
  }
  return true;
}
static_assert(is_in_order(), "kRates follows the enumeration");

bool is_callers(std::size_t kind) {
  return kind >= static_cast<std::size_t>(Fault::kPagesExhausted);
}

void enable(Profile& profile, std::size_t kind, std::uint16_t rate) {
  profile.faults.set(kind);
  profile.rate[kind] = rate;
}

// Kinds that hardly strike unless another one does.
struct Companion {
  Fault fault;
  Fault needs;
  std::uint16_t rate;  // at least
};
constexpr Companion kCompanions[] = {
    {Fault::kWriteOutlives, Fault::kCrash, 400},      {Fault::kWriteOutlives, Fault::kRestart, 600},
    {Fault::kWriteOutlives, Fault::kSlowWrite, 300},  {Fault::kQuarantineFull, Fault::kAbort, 200},
    {Fault::kQuarantineFull, Fault::kSlowFence, 300},
};

void add_companions(Profile& profile) {
  for (const Companion& companion : kCompanions) {
    const auto needed = static_cast<std::size_t>(companion.needs);
    if (profile.faults.test(static_cast<std::size_t>(companion.fault))) {
      enable(profile, needed, std::max(profile.rate[needed], companion.rate));
    }
  }
}

// One seed in ten has nothing but its callers' faults or none at all, one in ten has one kind at a
// high rate, one in twenty has every kind, the others a random part of them.
void draw_faults(Profile& profile, Prng prng) {
  const std::uint64_t mood = prng.below(100);
  const bool quiet = mood < 10;
  const bool single = !quiet && mood < 20;
  const bool all = !quiet && !single && mood < 25;
  const std::uint64_t lone = prng.below(kFaultKinds);
  const std::uint64_t share = uniform(prng, 3, 36);
  const bool callers_err = percent(prng, 60);
  for (std::size_t kind = 0; kind < kFaultKinds; ++kind) {
    const auto rate =
        static_cast<std::uint16_t>(log_uniform(prng, kRates[kind].low, kRates[kind].high));
    const bool drawn = prng.below(100) < share;
    if (single && kind == lone) {
      enable(profile, kind, kRates[kind].high);
    } else if (quiet || single) {
      if (is_callers(kind) && callers_err && drawn) {
        enable(profile, kind, rate);
      }
    } else if (all || drawn) {
      enable(profile, kind, rate);
    }
  }
  add_companions(profile);
}

// --- topology ---

struct Split {
  std::uint32_t tp;
  std::uint32_t pp;
};
constexpr std::array<Split, 8> kSplits{
    {{1, 1}, {1, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 2}, {1, 4}, {1, 3}}};

std::vector<LayoutShape> shapes_of(const EngineShape& engine) {
  std::vector<LayoutShape> shapes;
  for (std::uint32_t pp = 0; pp < engine.pp_size; ++pp) {
    for (std::uint32_t tp = 0; tp < engine.tp_size; ++tp) {
      shapes.push_back(make_shape(engine, tp, pp));
    }
  }
  return shapes;
}

// Every decode rank has its writers, and all writers of one rank serve equally many: a grant
// announces one number of grants to all of them.
bool fits(const EngineShape& prefill, const EngineShape& decode) {
  if (prefill.pp_size > prefill.layers || decode.pp_size > decode.layers) {
    return false;
  }
  const std::vector<LayoutShape> sources = shapes_of(prefill);
  std::vector<std::uint32_t> grants(sources.size(), 0);
  std::vector<std::vector<layout::Writer>> by_target;
  for (const LayoutShape& target : shapes_of(decode)) {
    auto writers = layout::writers_for(target, sources);
    if (!writers || writers->empty()) {
      return false;
    }
    for (const layout::Writer& writer : *writers) {
      ++grants[writer.source_index];
    }
    by_target.push_back(std::move(*writers));
  }
  return std::ranges::all_of(by_target, [&](const std::vector<layout::Writer>& writers) {
    return std::ranges::all_of(writers, [&](const layout::Writer& writer) {
      return grants[writer.source_index] == grants[writers.front().source_index];
    });
  });
}

void draw_topology(Profile& profile, Prng prng) {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    const Split prefill = kSplits[prng.below(kSplits.size())];
    const Split decode = kSplits[prng.below(kSplits.size())];
    const auto layers = static_cast<std::uint32_t>(uniform(prng, 1, 4));
    const auto heads = static_cast<std::uint32_t>(uniform(prng, 1, 4));
    EngineShape source;
    source.tp_size = prefill.tp;
    source.pp_size = prefill.pp;
    source.layers = layers;
    source.heads = heads;
    EngineShape target = source;
    target.tp_size = decode.tp;
    target.pp_size = decode.pp;
    if (fits(source, target)) {
      profile.prefill = source;
      profile.decode = target;
      break;
    }
  }
  const std::uint64_t instances = prng.below(100);
  profile.prefill_instances = instances < 65 ? 1 : instances < 90 ? 2 : 3;
  const std::uint64_t transport = prng.below(4);
  profile.transport = transport < 2    ? TransportKind::kStream
                      : transport == 2 ? TransportKind::kShared
                                       : TransportKind::kOneSided;
  profile.curve = percent(prng, 75);
}

std::uint32_t ranks_of(const EngineShape& engine) { return engine.tp_size * engine.pp_size; }

std::uint32_t pairs_of(const Profile& profile) {
  return profile.prefill_instances * ranks_of(profile.prefill) * ranks_of(profile.decode);
}

// --- workload ---

// What one seed may cost, in pages times ranks that write or read them; a room costs some anyway.
constexpr std::uint64_t kBudget = 1'500;

void draw_workload(Profile& profile, Prng prng) {
  profile.max_pages = static_cast<std::uint32_t>(log_uniform(prng, 1, 64));
  profile.max_chunks = static_cast<std::uint32_t>(uniform(prng, 1, 8));
  profile.room_numbers = static_cast<std::uint32_t>(uniform(prng, 1, 8));
  const std::uint64_t mean_pages = 1 + profile.max_pages / 4;
  const std::uint64_t writers = std::max(ranks_of(profile.prefill), ranks_of(profile.decode));
  const std::uint64_t cost = writers * 4 + ranks_of(profile.prefill) * ranks_of(profile.decode) +
                             mean_pages * writers * std::max(1U, profile.prefill.layers / 2) / 2;
  const std::uint64_t most = std::clamp<std::uint64_t>(kBudget / cost, 2, 200);
  profile.rooms = static_cast<std::uint32_t>(std::min(log_uniform(prng, 1, 200), most));
  profile.mean_gap = log_uniform(prng, std::chrono::microseconds(200), milliseconds(20));
  profile.link_latency = log_uniform(prng, std::chrono::microseconds(20), milliseconds(4));
  profile.lanes = static_cast<std::uint32_t>(uniform(prng, 1, 3));
  profile.receive_threads = static_cast<std::uint32_t>(uniform(prng, 1, 3));
  profile.frame_writes = static_cast<std::uint32_t>(log_uniform(prng, 1, 32));
  // Frames of a room queue behind each other; even the largest room has to fit its deadlines.
  const std::int64_t frames = 1 + static_cast<std::int64_t>(profile.max_pages) *
                                      profile.prefill.layers /
                                      (profile.frame_writes * profile.lanes);
  const Duration slowest = std::max<Duration>(
      milliseconds(4) / std::max<std::int64_t>(frames / 4, 1), std::chrono::microseconds(40));
  profile.write_latency = log_uniform(prng, std::chrono::microseconds(20), slowest);
  profile.turn_delay =
      log_uniform(prng, std::chrono::microseconds(5), std::chrono::microseconds(500));
  const Duration span = profile.mean_gap * static_cast<std::int64_t>(profile.rooms) +
                        30 * profile.link_latency + milliseconds(20);
  profile.nemesis_gap = std::clamp<Duration>(span / static_cast<std::int64_t>(uniform(prng, 1, 6)),
                                             milliseconds(4), milliseconds(400));
}

// Small pools, so that pages are used again within a few rooms.
void draw_pools(Profile& profile, Prng prng) {
  const auto may = [&](Fault fault) {
    return profile.faults.test(static_cast<std::size_t>(fault));
  };
  const auto pool = [&](std::uint32_t largest, bool scarce) {
    const auto few = static_cast<std::uint32_t>(uniform(prng, 1, 3));
    const auto many = static_cast<std::uint32_t>(uniform(prng, 4, 12));
    return largest * (scarce ? few : many);
  };
  constexpr std::uint32_t kMostPages = 384;
  for (EngineShape* engine : {&profile.prefill, &profile.decode}) {
    // One page more than any room takes, so that a caller can give too many.
    engine->pages = std::min(pool(profile.max_pages, may(Fault::kPagesExhausted)), kMostPages) + 1;
    engine->aux_slots = pool(2, may(Fault::kAuxExhausted));
  }
  if (percent(prng, 30)) {
    profile.prefill.state_slots = pool(2, false);
    profile.decode.state_slots = pool(2, false);
  }
}

// --- options ---

void draw_limits(Options& options, const FaultSet& faults, Prng prng) {
  const auto limit = [&](Fault fault, std::uint32_t low, std::uint32_t high,
                         std::uint32_t& option) {
    const auto drawn = static_cast<std::uint32_t>(log_uniform(prng, low, high));
    if (faults.test(static_cast<std::size_t>(fault))) {
      option = drawn;
    }
  };
  limit(Fault::kSlotsExhausted, 2, 24, options.max_grant_slots);
  limit(Fault::kTombstonesFull, 3, 64, options.max_tombstones);
  limit(Fault::kTombstonesFull, 1, 64, options.max_ended_senders);
  limit(Fault::kOutboxFull, 1, 8, options.send_window_messages);
  limit(Fault::kOutboxFull, 6, 128, options.max_queued_messages);
  limit(Fault::kQuarantineFull, 1, 16, options.quarantine_max_pages);
  limit(Fault::kSlotsExhausted, 4, 64, options.max_unopened_grants);
  if (percent(prng, 10)) {
    options.max_rooms = static_cast<std::uint32_t>(log_uniform(prng, 4, 64));
  }
  if (percent(prng, 25)) {
    options.data_frame_bytes = 4'096;
    options.max_inflight_bytes = 65'536;
    options.max_queued_writes = static_cast<std::uint32_t>(log_uniform(prng, 64, 100'000));
  }
}

// Deadlines of a virtual world: short against the product's, long against latencies, and heartbeats
// rarer where there are many pairs.
void draw_deadlines(Options& options, std::uint32_t pairs, Prng prng) {
  const auto ms = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<std::uint32_t>(log_uniform(prng, low, high));
  };
  options.bootstrap_timeout_ms = ms(150, 1'500);
  options.input_timeout_ms = ms(150, 1'000);
  options.transfer_timeout_ms = ms(150, 1'500);
  options.unopened_room_timeout_ms = ms(80, 800);
  options.fence_timeout_ms = ms(20, 500);
  options.write_timeout_ms = ms(100, 800);
  options.source_hold_timeout_ms = ms(20, 400);
  options.heartbeat_interval_ms = ms(40, 100) * (4 + pairs) / 4;
  options.heartbeat_timeout_ms = options.heartbeat_interval_ms * ms(2, 6);
  options.session_grace_ms = static_cast<std::uint32_t>(
      uniform(prng, options.heartbeat_timeout_ms / 8, options.heartbeat_timeout_ms));
  // Most often a try or two fit into what is left of a session's grace.
  const bool tries_often = percent(prng, 75);
  const std::uint64_t patience = tries_often ? options.session_grace_ms / 4 + 10 : 600;
  options.redial_min_ms = ms(2, 30);
  options.redial_max_ms = options.redial_min_ms + ms(5, std::min<std::uint64_t>(patience, 200));
  options.hello_timeout_ms = ms(100, 600);
  options.handshake_timeout_ms = ms(10, patience);
  options.retransmit_min_ms = ms(10, 60);
  options.retransmit_max_ms = options.retransmit_min_ms + ms(20, 300);
  options.pause_threshold_ms = ms(20, 500);
  options.lane_timeout_ms = ms(50, 500);
  options.lane_heartbeat_ms = options.lane_timeout_ms / 4;
  options.lane_failure_limit = ms(2, 12);
  options.http_total_timeout_ms = ms(50, 500);
  options.http_try_timeout_ms = options.http_total_timeout_ms;
}

}  // namespace

core::TransportClass Profile::transport_class() const {
  const bool one_sided = transport == TransportKind::kOneSided;
  return {!one_sided, !one_sided};
}

Profile draw_profile(std::uint64_t seed, const FaultSet& allowed,
                     std::optional<std::uint32_t> rooms) {
  Prng prng(seed * 0x9E3779B97F4A7C15ULL + 0x70726F66696C65ULL);
  Profile profile;
  profile.seed = seed;
  draw_topology(profile, prng.fork());
  draw_faults(profile, prng.fork());
  draw_workload(profile, prng.fork());
  profile.faults &= allowed;
  draw_pools(profile, prng.fork());
  draw_limits(profile.options, profile.faults, prng.fork());
  draw_deadlines(profile.options, pairs_of(profile), prng.fork());
  profile.options.curve = profile.curve;
  profile.rooms = rooms.value_or(profile.rooms);
  return profile;
}

}  // namespace kvferry::sim
