// F4 for a minute. Again and again peers are stopped and cut off, all the while one address takes
// connections and never reads, one swallows every connect, and each queue to them is full. Judged
// are the calls of three engines: d0 (a process, opens rooms), p0 (a process, sends to a decode
// rank that is stopped) and d2 (in this process: polls room by room, asks for status dumps). At
// last engines of this process are ended while every peer is dead.
#include "lab/drills/silent_long.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "data_plane/tcp/socket.h"
#include "lab/drills/steps.h"
#include "lab/rig/full_listener.h"
#include "lab/rig/own_engine.h"
#include "lab/rig/registry_access.h"
#include "net/control_link.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr milliseconds kPatience{15'000};
constexpr double kStoryMs = 60'000;
constexpr double kLoadMs = 2'000;  // of a round, at least, under the load that fills every queue
constexpr double kLoadMarginMs = 100;    // it ends so long before silence is death
constexpr double kAfterDeathMs = 7'000;  // of a round; then all come back
constexpr double kEndMs = 1'000;         // of stop() and of the destructor
// An engine's call that takes so long is a hang, and nobody waits for the rest.
constexpr double kHungMs = 1'000;
constexpr milliseconds kStep{40};
constexpr std::uint64_t kRoomsPerPeer = 8;
constexpr std::uint64_t kSends = 40;
// What allocators keep of the first engine of this process, and of one more.
constexpr std::int64_t kFirstGrowthKib = 32'768;
constexpr std::int64_t kGrowthKib = 2'048;
constexpr RoomPlan kUnreachable{1, 1, 4, false, false};
// Loads of rooms that their callers give up.
constexpr std::uint32_t kFillPages = 8'192;
constexpr std::uint32_t kSteadyPages = 4;

double ms_since(Instant began) {
  return std::chrono::duration<double, std::milli>(monotonic_now() - began).count();
}

CallBounds bounds_of(const CallFigures& figures) {
  CallBounds bounds;
  bounds.calls = static_cast<std::int64_t>(figures.calls);
  bounds.p999_ms = figures.p999_ms;
  bounds.max_ms = std::max(figures.max_ms, figures.running_ms);
  bounds.slowest = figures.slowest;
  return bounds;
}

class LongSilence {
 public:
  explicit LongSilence(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    if (Status started = start(); !started) return started;
    const Instant began = monotonic_now();
    for (int round = 1; ms_since(began) < kStoryMs; ++round) {
      if (Status done = run_round(round == 1); !done) return done;
      if (is_over()) break;
    }
    if (Status judged = judge_calls(ms_since(began)); !judged) return judged;
    if (!scene_.findings().empty()) return {};
    if (Status ended = end_with_peers_dead(); !ended) return ended;
    const auto verdict = scene_.check();
    return verdict ? Status{} : tl::unexpected(verdict.error());
  }

 private:
  LabRank& p(std::size_t number) { return *prefill_[number]; }
  bool is_over() const { return is_hung_ || !scene_.findings().empty(); }
  std::uint64_t next_room() { return next_room_++; }
  double timeout_ms() const { return static_cast<double>(silence_timeout(scene_).count()); }

  // --- the beginning ---

  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const std::vector<std::string> options = {"--pages=4096", "--page-bytes=256"};
    for (std::size_t i = 0; i < prefill_.size(); ++i) {
      auto rank = cluster_.start({fmt::format("p{}", i), Role::kPrefill, options, ""});
      if (!rank) return tl::unexpected(rank.error());
      prefill_[i] = *rank;
    }
    auto d0 = cluster_.start({"d0", Role::kDecode, soon_full_options(scene_), scene_.missing()});
    auto d1 = cluster_.start({"d1", Role::kDecode, options, ""});
    for (const auto* rank : {&d0, &d1}) {
      if (!*rank) return tl::unexpected(rank->error());
    }
    d0_ = *d0;
    d1_ = *d1;
    auto relays = relay_everything(cluster_, {p(2), *d0_});
    if (!relays) return tl::unexpected(relays.error());
    cut_ = std::move(*relays);
    if (Status listed = list_unreachable(); !listed) return listed;
    if (Status paired = await_pairs({0, 1, 2, 3}); !paired) return paired;
    auto engine = OwnEngine::start({"d2", cluster_.registry_address(), prefill_names()});
    if (!engine) return tl::unexpected(engine.error());
    engine_ = std::move(*engine);
    if (Status paired = await_engine(*engine_, "d2", prefill_.size()); !paired) return paired;
    scene_.say(
        "p0 to p3 and d0 are pairs, so are p0 and d1; d2 lives in this process; p4's "
        "address swallows every connect");
    for (LabRank* rank : {d0_, &p(0)}) {
      if (auto reset = rank->child().ask("restart_times", {}); !reset) {
        return tl::unexpected(reset.error());
      }
    }
    return {};
  }

  // p4 has a row in the registry and an address where nothing is answered or refused.
  Status list_unreachable() {
    auto made = FullListener::make();
    if (!made) return tl::unexpected(made.error());
    unreachable_ = std::make_unique<FullListener>(std::move(*made));
    row_.role = Role::kPrefill;
    row_.instance = "p4";
    row_.endpoint = unreachable_->endpoint();
    row_.public_key = net::CurveKeys::generate().public_key;
    row_.incarnation = Incarnation{random_u64() | 1, random_u64()};
    row_.engine_epoch = EngineEpoch(random_u64() | 1);
    return register_rank(cluster_.registry_address(), row_);
  }

  std::vector<std::string> prefill_names() const { return {"p0", "p1", "p2", "p3", "p4"}; }

  Status await_pairs(const std::vector<std::size_t>& numbers) {
    for (const std::size_t number : numbers) {
      if (Status paired = cluster_.await_pair(*d0_, p(number), kPatience); !paired) return paired;
    }
    return cluster_.await_pair(*d1_, p(0), kPatience);
  }

  // Within the patience; what it is at its end.
  static bool await(const std::function<bool()>& fits) {
    const Instant began = monotonic_now();
    while (!fits() && ms_since(began) < static_cast<double>(kPatience.count())) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    return fits();
  }

  static Status await_engine(const OwnEngine& engine, const std::string& name, std::size_t pairs) {
    if (await([&] { return engine.ready_pairs() == pairs; })) return {};
    return fail(FailureCode::kPeerUnreachable,
                fmt::format("{} has {} pairs, must have {}: {}", name, engine.ready_pairs(), pairs,
                            engine.pairs_text()));
  }

  // --- a round: silence, load, detection, return ---

  Status run_round(bool first) {
    doomed_.clear();
    if (Status renewed = register_rank(cluster_.registry_address(), row_); !renewed) return renewed;
    for (const std::size_t number : {1, 2, 3}) {
      if (number == 3 && !first) continue;
      if (Status opened = open_doomed(p(number), *d0_, kRoomsPerPeer); !opened) return opened;
    }
    if (Status opened = open_doomed(p(0), *d1_, kSends); !opened) return opened;
    if (Status silenced = silence(first); !silenced) return silenced;
    load(R"(["p1","p2"])", kFillPages, 4, 8);
    if (Status served = serve_until(kLoadMs); !served || is_over()) return served;
    if (Status noted = await_full_queues(); !noted) return noted;
    load(R"(["p1","p2","p3","p4"])", kSteadyPages, 50, 25);
    if (Status served = serve_until(1.1 * timeout_ms()); !served || is_over()) return served;
    if (Status ended = await_doomed(); !ended || is_over()) return ended;
    if (Status served = serve_until(timeout_ms() + kAfterDeathMs); !served || is_over())
      return served;
    if (Status ended = first ? await_unreachable() : Status{}; !ended) return ended;
    return come_back();
  }

  // A room whose prefill can't be reached ends by its deadline, and says whom it waited for.
  Status await_unreachable() {
    const auto end = d0_->await_end(kUnreachable.number, kUnreachable.binding, kPatience);
    if (!end) return tl::unexpected(end.error());
    scene_.say("a room to the unreachable p4 failed after {:.0f} ms: {}: {} (peer {})",
               end->after_ms, end->code, end->what, end->peer);
    if (end->success || end->peer.empty()) {
      scene_.find("I6", fmt::format("a room to p4 ended as {} and names no peer", end->code));
    }
    return {};
  }

  // Their pages are granted; their senders hold them back.
  Status open_doomed(LabRank& prefill, LabRank& decode, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const RoomPlan plan{next_room(), 1, 4, false, true};
      if (Status held = open_held(scene_, {prefill, decode}, plan, kPatience); !held) return held;
      doomed_[&decode == d1_ ? "d1" : prefill.name()].push_back(plan);
    }
    return {};
  }

  Status silence(bool first) {
    silent_since_ = monotonic_now();
    p(1).child().stop();
    d1_->child().stop();
    for (support::Relay* relay : cut_) relay->freeze(true);
    cluster_.registry().stop();
    if (!first) return {};
    if (Status opened = cluster_.open_decode(*d0_, row_.instance, kUnreachable); !opened) {
      return opened;
    }
    auto taken = kill_and_squat(p(3));
    if (!taken) return tl::unexpected(taken.error());
    squatter_ = std::move(*taken);
    scene_.say(
        "p1, d1 and the registry are stopped, p2 is cut off; p3 is killed, its port taken "
        "by a listener that never reads");
    return {};
  }

  // Rooms that are opened and given up; takes the place of the load before it. Not waited for:
  // without its guard the engine may hang by now.
  void load(std::string_view prefills, std::uint32_t pages, std::uint32_t every_ticks,
            std::uint32_t life_ticks) {
    d0_->child().send(JsonObject()
                          .text("do", "churn")
                          .integer("id", -1)
                          .text("registry", cluster_.registry_address())
                          .raw("prefills", prefills)
                          .integer("pages", pages)
                          .integer("every_ticks", every_ticks)
                          .integer("life_ticks", life_ticks));
  }

  // Until the silence has lasted so long: rooms to the healthy p0 succeed, and p0 sends to d1.
  Status serve_until(double silence_ms) {
    while (ms_since(silent_since_) < silence_ms) {
      const Instant asked = monotonic_now();
      const auto status = d0_->status();
      if (!status) return tl::unexpected(status.error());
      slowest_answer_ms_ = std::max(slowest_answer_ms_, ms_since(asked));
      is_hung_ = call_bounds_of((*status)->root()).max_ms > kHungMs;
      if (is_hung_) return {};
      if (Status sent = send_some(); !sent) return sent;
      if (Status served = serve_one(); !served || is_over()) return served;
      if (scene_.interrupted()) return fail(FailureCode::kAborted, "interrupted");
      std::this_thread::sleep_for(kStep);
    }
    return {};
  }

  // While d1's silence is not yet noticed: then its rooms have failed.
  Status send_some() {
    constexpr int kPerStep = 4;
    const std::vector<RoomPlan>& held = doomed_["d1"];
    for (int i = 0; i < kPerStep && sent_ < held.size() && ms_since(silent_since_) < kLoadMs; ++i) {
      if (Status sent = tell_room(p(0), "send", held[sent_++]); !sent) return sent;
    }
    return {};
  }

  Status serve_one() {
    const RoomPlan room{next_room(), 1, 16, false, false};
    Status opened = cluster_.open(p(0), *d0_, room);
    const auto end =
        opened ? d0_->await_end(room.number, 1, kPatience) : tl::unexpected(opened.error());
    if (!end) {
      // An engine that hangs answers nothing more; that is judged, and no reason to give up.
      const auto status = d0_->status();
      is_hung_ = status && call_bounds_of((*status)->root()).max_ms > kHungMs;
      return is_hung_ ? Status{} : tl::unexpected(end.error());
    }
    if (!end->success) {
      scene_.find("I3", fmt::format("room {} to the healthy p0 failed: {}: {}", room.number,
                                    end->code, end->what));
    }
    healthy_ms_.push_back(end->after_ms);
    return {};
  }

  // Before silence counts as death: then what waits for the silent ones goes. On a busy machine a
  // round may be over before; not all of them.
  Status await_full_queues() {
    ++rounds_;
    while (ms_since(silent_since_) < timeout_ms() - kLoadMarginMs) {
      const auto full = metric(*d0_, "control_queue_full_total");
      if (!full) return tl::unexpected(full.error());
      if (*full > queue_full_) {
        queue_full_ = *full;
        ++full_rounds_;
        return {};
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    return {};
  }

  Status await_doomed() {
    for (const auto& [silent, rooms] : doomed_) {
      LabRank& judge = silent == "d1" ? p(0) : *d0_;
      for (const RoomPlan& room : rooms) {
        const auto end = judge.await_end(room.number, 1, kPatience);
        if (!end) return tl::unexpected(end.error());
        if (end->success || end->peer.empty()) {
          scene_.find("I6", fmt::format("room {} ended as {} at {} and names no peer", room.number,
                                        end->code, judge.name()));
        }
      }
      const auto ends = ends_of(scene_, judge);
      if (!ends) return tl::unexpected(ends.error());
      double last_ms = 0;
      for (const RoomPlan& room : rooms) {
        const Duration after = ends->at({room.number, 1}) - silent_since_;
        last_ms = std::max(last_ms, std::chrono::duration<double, std::milli>(after).count());
      }
      detected_ms_[silent] = std::max(detected_ms_[silent], last_ms);
      if (last_ms > most_silence_ms(scene_)) {
        scene_.find("I3", fmt::format("rooms to the silent {} failed only after {:.0f} ms", silent,
                                      last_ms));
      }
    }
    return {};
  }

  Status come_back() {
    load("[]", 1, 1, 1);
    const Instant began = monotonic_now();
    cluster_.registry().resume();
    p(1).child().resume();
    d1_->child().resume();
    for (support::Relay* relay : cut_) relay->freeze(false);
    sent_in_all_ += std::exchange(sent_, 0);
    Status paired = await_pairs({0, 1, 2});
    back_ms_ = std::max(back_ms_, ms_since(began));
    return paired;
  }

  // --- the calls ---

  Status judge_calls(double lasted_ms) {
    scene_.say(
        "{:.0f} s of it; rooms to silent peers failed after {} at most, {} rooms to p0 "
        "succeeded, pairs were back after {:.0f} ms",
        lasted_ms / 1'000, detection_text(), healthy_ms_.size(), back_ms_);
    std::map<std::string, CallBounds> engines;
    for (LabRank* rank : {d0_, &p(0)}) {
      const auto status = rank->status();
      if (!status) return tl::unexpected(status.error());
      engines[rank->name()] = call_bounds_of((*status)->root());
    }
    engines["d2"] = bounds_of(engine_->calls());
    engines["d2_dump"] = bounds_of(engine_->dumps());
    for (const auto& [name, bounds] : engines) {
      scene_.say("{}: {} calls, p99.9 {:.2f} ms, the longest {:.1f} ms ({})", name, bounds.calls,
                 bounds.p999_ms, bounds.max_ms, bounds.slowest);
      scene_.figures()
          .number(name + "_p999_ms", bounds.p999_ms)
          .number(name + "_max_ms", bounds.max_ms);
      scene_.find_all(judge(name, bounds, scene_.slack()));
    }
    std::ranges::sort(healthy_ms_);
    if (healthy_ms_.empty()) return {};
    const double p99 = healthy_ms_[healthy_ms_.size() - 1 - healthy_ms_.size() / 100];
    scene_.say(
        "rooms to p0: p50 {:.1f} ms, p99 {:.1f} ms; d0's status was told within {:.1f} ms; "
        "queues to silent peers were full in {} of {} rounds ({:.0f} frames)",
        healthy_ms_[healthy_ms_.size() / 2], p99, slowest_answer_ms_, full_rounds_, rounds_,
        queue_full_);
    scene_.figures()
        .number("healthy_p99_ms", p99)
        .number("queue_full", queue_full_)
        .integer("rounds", rounds_)
        .integer("full_rounds", full_rounds_);
    return full_rounds_ > 0 || is_over() ? Status{} : vacuous("no peer's queue was full");
  }

  std::string detection_text() {
    std::string text;
    for (const auto& [silent, ms] : detected_ms_) {
      text += fmt::format("{}{} {:.0f} ms", text.empty() ? "" : ", ", silent, ms);
      scene_.figures().number(silent + "_failed_ms", ms);
    }
    return text;
  }

  // --- the end ---

  Status end_with_peers_dead() {
    engine_->end(OwnEngine::Way::kStopThenDestroy);
    engine_.reset();
    const Instant quit = monotonic_now();
    d0_->child().send(JsonObject().text("do", "quit"));
    if (!await([&] { return d0_->child().has_ended(); })) {
      return fail(FailureCode::kRoomTimeout, "d0 does not end");
    }
    scene_.say("d0 is told to quit: its process has ended after {:.0f} ms", ms_since(quit));
    // Relays' connections are this process's, too.
    if (!await([&] {
          return std::ranges::all_of(cut_, [](auto* relay) { return relay->connections() == 0; });
        })) {
      return fail(FailureCode::kRoomTimeout, "relays to the ended d0 keep connections");
    }
    if (Status ended = end_engine("d3", OwnEngine::Way::kStopThenDestroy, false); !ended) {
      return ended;
    }
    return end_engine("d4", OwnEngine::Way::kDestroy, true);
  }

  // Its peers: three stopped or one of them killed, one whose port never reads, one unreachable.
  Status end_engine(const std::string& name, OwnEngine::Way way, bool kill) {
    for (const std::size_t number : {0, 1, 2}) p(number).child().resume();
    cluster_.registry().resume();
    if (Status renewed = register_rank(cluster_.registry_address(), row_); !renewed) return renewed;
    auto before = figures_of(::getpid());
    if (!before) return tl::unexpected(before.error());
    auto engine = OwnEngine::start({name, cluster_.registry_address(), prefill_names()});
    if (!engine) return tl::unexpected(engine.error());
    constexpr std::size_t kLiving = 3;
    if (Status paired = await_engine(**engine, name, kLiving); !paired) return paired;
    for (const std::size_t number : {0, 1, 2}) p(number).child().stop();
    if (kill) {
      p(0).child().kill();
      // With it goes the thread that read what it told, and that thread's descriptor.
      --before->threads;
      --before->descriptors;
    }
    cluster_.registry().stop();
    constexpr std::uint64_t kMoreRooms = 50;
    const std::uint64_t opened = (*engine)->rooms_opened();
    if (!await([&] { return (*engine)->rooms_opened() >= opened + kMoreRooms; })) {
      return fail(FailureCode::kWrongState, name + " opens no rooms");
    }
    const OwnEngine::EndTimes times = (*engine)->end(way);
    engine->reset();
    return judge_end(name, times, *before, kill ? kGrowthKib : kFirstGrowthKib);
  }

  Status judge_end(const std::string& name, const OwnEngine::EndTimes& times,
                   const ProcessFigures& before, std::int64_t growth_kib) {
    const auto after = expect_figures(scene_, name, ::getpid(), before, growth_kib, kPatience);
    if (!after) return tl::unexpected(after.error());
    scene_.say(
        "{} ends with {} rooms open and every peer dead: stop() {:.0f} ms, destructor "
        "{:.0f} ms; before {}, after {}",
        name, times.open_rooms, times.stop_ms, times.destroy_ms, to_string(before),
        to_string(*after));
    scene_.figures()
        .number(name + "_stop_ms", times.stop_ms)
        .number(name + "_destroy_ms", times.destroy_ms);
    for (const auto& [what, ms] :
         {std::pair{"stop()", times.stop_ms}, std::pair{"the destructor", times.destroy_ms}}) {
      if (ms > kEndMs * scene_.slack()) {
        scene_.find("I5", fmt::format("{}: {} took {:.0f} ms", name, what, ms));
      }
    }
    if (times.open_rooms == 0) return vacuous(name + " had no room open");
    return {};
  }

  DrillScene& scene_;
  Cluster& cluster_;
  std::array<LabRank*, 4> prefill_{};
  LabRank* d0_ = nullptr;
  LabRank* d1_ = nullptr;
  std::vector<support::Relay*> cut_;
  data_plane::tcp::Listener squatter_;
  std::unique_ptr<FullListener> unreachable_;
  core::RegistryRow row_;
  std::unique_ptr<OwnEngine> engine_;

  std::map<std::string, std::vector<RoomPlan>> doomed_;  // by who is silent
  std::size_t sent_ = 0;
  std::size_t sent_in_all_ = 0;
  Instant silent_since_;
  std::uint64_t next_room_ = 1'000;
  bool is_hung_ = false;
  int rounds_ = 0;
  int full_rounds_ = 0;
  double queue_full_ = 0;
  double slowest_answer_ms_ = 0;
  double back_ms_ = 0;
  std::map<std::string, double> detected_ms_;
  std::vector<double> healthy_ms_;
};

}  // namespace

Status run_silent_long(DrillScene& scene) { return LongSilence(scene).run(); }

}  // namespace kvferry::lab
