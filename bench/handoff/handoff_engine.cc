#include "bench/handoff/handoff_engine.h"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "bench/handoff/null_transport.h"
#include "bench/handoff/room_sides.h"
#include "bench/handoff/usage.h"
#include "runtime/manager_state.h"

namespace kvferry::bench {
namespace {

constexpr std::chrono::seconds kHandoffPatience{30};
constexpr std::chrono::seconds kSettle{10};
constexpr std::chrono::milliseconds kLook{2};
constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kPollRounds = 20'000;
constexpr std::uint64_t kPolledRoom = 1ULL << 48;  // the first number of rooms that are only polled

std::uint64_t count_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator at("/proc/self/fd", error);
  return static_cast<std::uint64_t>(std::distance(at, std::filesystem::directory_iterator{}));
}

bool is_null(const HandoffSetup& setup) {
  return std::string_view(setup.transport.data()) == kNullName;
}

KvArgs engine_args(Role role, const HandoffSetup& setup, const RoomMemory& memory) {
  KvArgs args;
  args.role = role;
  args.instance = role == Role::kPrefill ? kPrefillInstance : "decode";
  args.model_fingerprint = "bench";
  args.page_size_tokens = kPageTokens;
  args.total_layers = setup.layers;
  args.total_kv_heads = 1;
  args.head_dim = setup.item_bytes / kPageTokens / dtype_bytes(DType::kF16);
  args.dtype = DType::kF16;
  args.layers = {0, setup.layers};
  args.heads = {0, 1};
  args.regions = memory.regions();
  return args;
}

// The defaults, with room for so many rooms at one time.
Options options_of(const HandoffSetup& setup) {
  Options options;
  options.bootstrap_addresses = {setup.registry.data()};
  options.curve = setup.curve != 0 && setup.without != Without::kCurve;
  // As good as never.
  constexpr std::uint32_t kHourMs = 3'600'000;
  if (setup.without == Without::kHeartbeats) {
    options.heartbeat_interval_ms = kHourMs;
    options.heartbeat_timeout_ms = 4 * kHourMs;
  } else if (setup.without == Without::kRetransmission) {
    options.retransmit_min_ms = kHourMs;
    options.retransmit_max_ms = kHourMs;
  }
  if (setup.bootstrap_timeout_ms > 0) options.bootstrap_timeout_ms = setup.bootstrap_timeout_ms;
  // A side may be a whole set of lanes ahead of the other.
  const std::uint32_t rooms = setup.lanes * 2;
  options.max_rooms = std::max(options.max_rooms, rooms);
  options.max_unopened_grants = std::max(options.max_unopened_grants, rooms);
  options.max_ended_senders = std::max(options.max_ended_senders, rooms);
  options.max_grant_slots = std::max(options.max_grant_slots, rooms);
  options.max_tombstones = std::max(options.max_tombstones, rooms);
  options.max_queued_calls = std::max(options.max_queued_calls, rooms * 4);
  options.max_queued_messages = std::max(options.max_queued_messages, rooms * 2);
  if (!is_null(setup)) options.transport = setup.transport.data();
  return options;
}

data_plane::TransportMaker transport_maker(const HandoffSetup& setup) {
  if (!is_null(setup)) return {};
  return [pages = setup.pages_per_room, fences = setup.without != Without::kFence](
             const data_plane::TransportConfig&,
             data_plane::CompletionSink& sink) -> Result<std::unique_ptr<data_plane::Transport>> {
    return std::make_unique<NullTransport>(sink, pages, fences);
  };
}

}  // namespace

Result<std::unique_ptr<HandoffEngine>> HandoffEngine::start(Role role, const HandoffSetup& setup,
                                                            data_plane::Fd others) {
  auto memory =
      others.is_open() ? RoomMemory::adopt(setup, std::move(others)) : RoomMemory::create(setup);
  if (!memory) return tl::unexpected(memory.error());
  std::unique_ptr<HandoffEngine> engine(new HandoffEngine(role, setup, std::move(*memory)));
  auto manager = runtime::ManagerState::create_manager(engine_args(role, setup, engine->memory_),
                                                       options_of(setup), transport_maker(setup));
  if (!manager) return tl::unexpected(manager.error());
  engine->manager_ = std::move(*manager);
  return engine;
}

Result<SideResult> HandoffEngine::run(const HandoffOrder& order,
                                      const std::function<void()>& started) {
  if (order.concurrency > setup_.lanes) {
    return fail(FailureCode::kInvalidArgument, "a turn with more rooms at one time than lanes");
  }
  const Duration before = cpu_used();
  SideResult result;
  if (role_ == Role::kPrefill) {
    PrefillSide side(*manager_, memory_, setup_, order);
    result = RoomLoop(*manager_, side, order, setup_.pages_per_room).run(started);
  } else {
    DecodeSide side(*manager_, memory_, setup_, order);
    result = RoomLoop(*manager_, side, order, setup_.pages_per_room).run(started);
    result.wrong_items = side.wrong_items();
    result.touched_items = side.touched_items();
  }
  result.cpu = cpu_used() - before;
  settle(result);
  return result;
}

// What is left of the turn, once nothing changes any more or too long has passed.
void HandoffEngine::settle(SideResult& result) const {
  const Instant end = monotonic_now() + kSettle;
  while (true) {
    const std::vector<MetricSample> samples = manager_->metrics();
    const auto count = [&](std::string_view name) {
      double sum = 0;
      for (const MetricSample& sample : samples) {
        if (sample.name == name) sum += sample.value;
      }
      return static_cast<std::uint64_t>(sum);
    };
    result.open_handles = count("open_handles");
    result.open_rooms = count("rooms_live");
    result.open_grants = count("grants");
    result.open_tickets = count("tickets");
    result.quarantine_pages = count("quarantined_pages");
    result.descriptors = count_descriptors();
    const std::uint64_t left = result.open_handles + result.open_rooms + result.open_grants +
                               result.open_tickets + result.quarantine_pages;
    if (left == 0 || monotonic_now() >= end) return;
    std::this_thread::sleep_for(kLook);
  }
}

Result<PollTimes> HandoffEngine::measure_polls(std::uint32_t rooms) {
  std::vector<std::unique_ptr<KvReceiver>> receivers;
  std::vector<std::uint64_t> ids;
  for (std::uint32_t i = 0; i < rooms; ++i) {
    const RoomId room(kPolledRoom + i);
    receivers.push_back(std::make_unique<KvReceiver>(*manager_, room, binding_of(room.value())));
    const Status named = receivers.back()->init(setup_.registry.data(), kPrefillInstance);
    if (!named) return tl::unexpected(named.error());
    ids.push_back(receivers.back()->id());
  }
  Prng prng(1);
  for (std::size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[prng.below(i)]);
  std::vector<KvPoll> statuses(rooms, KvPoll::kBootstrapping);
  const Instant end = monotonic_now() + kHandoffPatience;
  const auto all_wait = [&] {
    manager_->poll_many(ids, statuses);
    return std::all_of(statuses.begin(), statuses.end(),
                       [](KvPoll status) { return status == KvPoll::kWaitingForInput; });
  };
  while (!all_wait()) {
    if (monotonic_now() >= end) {
      return fail(FailureCode::kUnspecified, "rooms that are to be polled do not wait for input");
    }
    std::this_thread::sleep_for(kLook);
  }
  Latencies times;
  times.reserve(kPollRounds);
  for (std::uint32_t i = 0; i < kPollRounds; ++i) {
    const Instant before = monotonic_now();
    manager_->poll_many(ids, statuses);
    times.add(monotonic_now() - before);
  }
  return PollTimes{times.quantile(0.5), times.quantile(0.99), times.max()};
}

}  // namespace kvferry::bench
