#include "sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kvferry::sim {
namespace {

// More happenings than this and a run is a livelock (L5).
constexpr std::uint64_t kMaxEvents = 3'000'000;
constexpr Duration kSlice = milliseconds(20);
constexpr std::uint64_t kCanaryEvent = 100;

class Simulation {
 public:
  explicit Simulation(const RunOptions& options)
      : options_(options),
        world_(draw_profile(options.seed, options.faults, options.rooms), options.missing,
               options.log),
        choices_(options.seed ^ 0x7068617365735F31ULL) {}

  RunResult run() {
    break_it();
    heal_it();
    demand_an_end();
    count_rooms();
    probe();
    clean_up();
    return take_result();
  }

 private:
  const Options& limits() const { return world_.profile.options; }
  bool is_over() const { return stopped_ || world_.oracle.has_failed(); }

  // Runs until the condition holds, at most for so long; true when it holds.
  template <typename Condition>
  bool run_until(Duration limit, Condition condition) {
    const Instant end = world_.agenda.now() + limit;
    while (!is_over() && !condition()) {
      if (world_.agenda.now() >= end) {
        return false;
      }
      const Instant slice = std::min(end, world_.agenda.now() + kSlice);
      while (!is_over() && world_.agenda.run_one(slice)) {
        after_event();
      }
    }
    return true;
  }
  void run_for(Duration time) {
    run_until(time, [] { return false; });
  }

  void after_event() {
    world_.trace.next_event();
    const std::uint64_t event = world_.trace.event();
    if (event == options_.until_event) {
      stopped_ = true;
    } else if (event >= kMaxEvents) {
      world_.oracle.violate("L5", fmt::format("{} events and no end", event));
    } else if (options_.canary && event == kCanaryEvent) {
      world_.oracle.writing(*world_.decode_places().front(), WriteName{SessionEpoch(1), {}, {}},
                            RegionId(0), 0, 0, 1);
    }
  }

  void break_it() {
    world_.workload.start();
    world_.nemesis.start();
    const Duration gaps =
        world_.profile.mean_gap * static_cast<std::int64_t>(20 + 10 * world_.profile.rooms);
    run_until(gaps, [this] { return world_.workload.all_opened(); });
    run_for(milliseconds(choices_.below(limits().transfer_timeout_ms)));
  }

  void heal_it() {
    if (is_over()) {
      return;
    }
    world_.trace.line(LogLevel::kBrief, world_.agenda.now(), "--- healed ---");
    world_.faults.disable_all();
    world_.workload.stop_misbehaving();
    leaves_stalled_ = choices_.below(4) == 0;
    world_.network.heal();
    world_.registry.heal();
    world_.fabric.heal(leaves_stalled_);
    world_.nemesis.heal();
    world_.oracle.healed();
  }

  // L1. Twice the configured timeouts of everything that a room can wait for in turn.
  Duration longest_room() const {
    const Options& o = limits();
    return milliseconds(2ULL * (o.bootstrap_timeout_ms + o.input_timeout_ms +
                                o.transfer_timeout_ms + o.unopened_room_timeout_ms +
                                o.heartbeat_timeout_ms + o.write_timeout_ms + o.retransmit_max_ms));
  }

  void demand_an_end() {
    if (!run_until(longest_room(), [this] { return world_.workload.all_ended(); })) {
      const std::vector<std::string> left = world_.workload.unfinished();
      world_.oracle.violate("L1", left.empty() ? "a room does not end" : left.front());
    }
  }

  void count_rooms() {
    if (is_over()) {
      return;
    }
    for (const auto& request : world_.workload.requests()) {
      bool all_succeeded = !request->decode.empty();
      bool any_unknown = false;
      for (const Part& part : request->decode) {
        const End end = world_.workload.end_of(part);
        all_succeeded = all_succeeded && end == End::kSucceeded;
        any_unknown = any_unknown || end == End::kUnknown;
      }
      ++(all_succeeded ? result_.rooms_succeeded
         : any_unknown ? result_.rooms_unknown
                       : result_.rooms_failed);
    }
  }

  bool is_healthy_instance(std::uint32_t instance) {
    for (const Place* prefill : world_.prefill_places(instance)) {
      for (const Place* decode : world_.decode_places()) {
        if (!world_.nemesis.is_healthy_pair(prefill->index, decode->index)) {
          return false;
        }
      }
    }
    return true;
  }

  bool is_all_healthy() {
    for (std::uint32_t i = 0; i < world_.profile.prefill_instances; ++i) {
      if (!is_healthy_instance(i)) {
        return false;
      }
    }
    return true;
  }

  // Without a fence pages of a writer that is lost for good stay in quarantine, lawfully, and so do
  // tickets whose end nobody will ever know.
  bool may_leave_rest() {
    return world_.profile.transport == TransportKind::kOneSided &&
           (!is_all_healthy() || leaves_stalled_);
  }

  // Over shared memory a target that stands still for good in the midst of a copy keeps its end
  // open, and its source can't know that nothing reads it any more.
  bool holds_frames() {
    return world_.profile.transport == TransportKind::kShared &&
           std::ranges::any_of(world_.decode_places(), [this](const Place* place) {
             const Node* node = world_.node_at(place->index);
             return node != nullptr && !node->is_running();
           });
  }

  // Rule 7: an old hello replaces nothing.
  void replay_hellos() {
    std::vector<std::pair<std::uint32_t, SessionEpoch>> live;
    for (const auto& place : world_.places()) {
      const Node* node = world_.node_at(place->index);
      if (node == nullptr || !world_.nemesis.is_healthy(place->index)) {
        continue;
      }
      for (const core::PeerView& peer : node->brief().peers) {
        const Place* other = world_.place_at(peer.endpoint);
        if (peer.state == "live" && world_.nemesis.is_healthy_pair(place->index, other->index)) {
          live.emplace_back(place->index, peer.epoch);
        }
      }
    }
    world_.network.replay_hellos();
    run_for(milliseconds(10));
    for (const auto& [place, epoch] : live) {
      const Node* node = world_.node_at(place);
      if (!is_over() && !node->holds_session(epoch)) {
        world_.oracle.violate("rule 7", node->name() + ": an old hello ended a session");
      }
    }
  }

  // Rule 7: a session that one side has ended is never resumed. Prefill loses its connection first
  // and ends the session when its grace is over; decode, whose grace has not, comes back.
  void part_a_session() {
    const Duration grace = milliseconds(limits().session_grace_ms);
    if (milliseconds(limits().heartbeat_timeout_ms) < 2 * grace) {
      return;  // silence would end both
    }
    for (const Place* decode : world_.decode_places()) {
      for (const auto& prefill : world_.places()) {
        const std::uint32_t p = prefill->index;
        const std::uint32_t d = decode->index;
        const bool both = prefill->role == Role::kPrefill && world_.nemesis.is_healthy_pair(p, d);
        if (!both || !share_session(*world_.node_at(p), *world_.node_at(d))) {
          continue;
        }
        world_.network.block(p, d);
        world_.network.block(d, p);
        world_.network.reset(p, d, false);
        run_for(grace * 7 / 10);
        world_.network.reset(d, p, false);
        run_for(grace * 6 / 10);
        world_.network.unblock(p, d);
        world_.network.unblock(d, p);
        run_for(milliseconds(limits().hello_timeout_ms) + 2 * grace);
        return;
      }
    }
  }

  static bool share_session(const Node& a, const Node& b) {
    return std::ranges::any_of(a.brief().peers, [&](const core::PeerView& peer) {
      return peer.state == "live" && b.holds_session(peer.epoch);
    });
  }

  bool has_quarantine() {
    return std::ranges::any_of(world_.decode_places(), [this](const Place* place) {
      const Node* node = world_.node_at(place->index);
      return node != nullptr && node->is_running() && node->brief().quarantined_pages > 0;
    });
  }

  // L3 and L4: every healthy pair is usable again, without any help.
  void probe() {
    const Options& o = limits();
    run_for(milliseconds(2ULL * (o.heartbeat_timeout_ms + o.session_grace_ms + o.redial_max_ms +
                                 o.hello_timeout_ms + o.handshake_timeout_ms)));
    if (is_over() || may_leave_rest()) {
      return;
    }
    if (!run_until(longest_room(), [this] { return !has_quarantine(); })) {
      world_.oracle.violate("L2", "pages stay in quarantine");
    }
    replay_hellos();
    part_a_session();
    for (std::uint32_t instance = 0; instance < world_.profile.prefill_instances; ++instance) {
      if (!is_healthy_instance(instance)) {
        continue;
      }
      world_.workload.start_probe(instance);
      if (!run_until(longest_room(), [this] { return world_.workload.all_ended(); })) {
        world_.oracle.violate("L4", "a probe does not end");
      }
      const Request& request = *world_.workload.requests().back();
      for (const Part& part : request.decode) {
        if (!is_over() && world_.workload.end_of(part) != End::kSucceeded) {
          world_.oracle.violate(
              "L4", fmt::format("the probe of instance {} fails: {}", instance, why_failed(part)));
        }
      }
    }
  }

  std::string why_failed(const Part& part) {
    const Node* node = world_.node_at(part.place);
    if (node == nullptr || part.owner == 0 || !node->cells().contains(part.owner)) {
      return "it was never opened";
    }
    const Cell& cell = node->cell(part.owner);
    return cell.failure ? to_string(*cell.failure) : std::string(to_string(cell.status));
  }

  void clean_up() {
    if (is_over()) {
      return;
    }
    world_.workload.clear_all();
    const Options& o = limits();
    run_for(milliseconds(2ULL * (o.source_hold_timeout_ms + o.fence_timeout_ms +
                                 o.write_timeout_ms + o.heartbeat_timeout_ms + o.session_grace_ms) +
                         8ULL * o.retransmit_max_ms));
    if (is_over()) {
      return;
    }
    world_.oracle.check_aborts();
    const bool rest = may_leave_rest();
    for (const auto& place : world_.places()) {
      Node* node = world_.node_at(place->index);
      if (node != nullptr && node->is_running() && world_.nemesis.is_healthy(place->index)) {
        world_.oracle.check_quiescence(*node, rest || leaves_stalled_ || holds_frames());
      }
    }
    const std::vector<std::string> missing = world_.workload.missing_pages();
    if (!rest && !missing.empty()) {
      world_.oracle.violate("L2", missing.front());
    }
    check_message_count();
  }

  // L5, crudely: per room and pair a constant; heartbeats and retransmissions by time.
  void check_message_count() {
    const std::uint64_t places = world_.places().size();
    const std::uint64_t requests = world_.workload.requests().size();
    const auto lived = std::chrono::duration_cast<milliseconds>(world_.agenda.now().since_start());
    const std::uint64_t beats =
        static_cast<std::uint64_t>(lived.count()) / limits().retransmit_min_ms + 1;
    const std::uint64_t bound =
        10'000 + 100 * requests * places * places + 4 * beats * places * places;
    if (world_.network.frames_sent() > bound) {
      world_.oracle.violate("L5", fmt::format("{} frames for {} rooms of {} processes",
                                              world_.network.frames_sent(), requests, places));
    }
  }

  RunResult take_result() {
    const Profile& p = world_.profile;
    result_.violation = world_.oracle.violation();
    result_.events = world_.trace.event();
    result_.hash = world_.trace.hash();
    result_.ended = world_.agenda.now();
    result_.fired = world_.faults.fired();
    result_.fired_list = world_.faults.list_of_fired();
    result_.cells = world_.cells.counts();
    constexpr std::array<const char*, 3> kTransports = {"stream", "shared", "one-sided"};
    result_.profile_text =
        fmt::format("{}x{}x{} prefill, {}x{} decode ranks, {}, {}, {} rooms", p.prefill_instances,
                    p.prefill.tp_size, p.prefill.pp_size, p.decode.tp_size, p.decode.pp_size,
                    kTransports.at(static_cast<std::size_t>(p.transport)),
                    p.curve ? "curve" : "plain", p.rooms);
    return std::move(result_);
  }

  const RunOptions& options_;
  World world_;
  Prng choices_;
  RunResult result_;
  bool stopped_ = false;
  bool leaves_stalled_ = false;
};

}  // namespace

RunResult run_seed(const RunOptions& options) { return Simulation(options).run(); }

}  // namespace kvferry::sim
