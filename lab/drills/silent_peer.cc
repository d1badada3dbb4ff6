// F4: peers that are stopped, cut off without a word, or gone with their port taken by somebody who
// never reads; and a registry that is stopped. The engine's thread of decode must not notice.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "data_plane/tcp/socket.h"
#include "lab/drills/silent_long.h"
#include "lab/drills/steps.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr milliseconds kPatience{15'000};
constexpr std::uint64_t kRoomsPerPeer = 8;
constexpr std::uint64_t kFirstSilent = 1'000;   // rooms to peers that fall silent
constexpr std::uint64_t kFirstHealthy = 5'000;  // and to the one that does not
constexpr std::uint64_t kHealthyRooms = 40;
// A load of rooms that their callers give up: it fills every buffer on the way to a silent peer.
constexpr std::uint32_t kChurnPages = 8'192;
constexpr std::uint32_t kChurnEveryTicks = 4;
constexpr std::uint32_t kChurnLifeTicks = 8;
// So long a call of the engine's thread must hang before nobody waits for the rest.
constexpr double kHungMs = 1'000;
// So long before silence is death the load ends if no queue is full yet, and if one is.
constexpr double kLoadMargin_s = 0.1;
constexpr double kFullLoadMargin_s = 1.0;

class SilentPeers {
 public:
  explicit SilentPeers(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    if (Status started = start(); !started) return started;
    if (Status opened = open_doomed_rooms(); !opened) return opened;
    if (Status silenced = silence(); !silenced) return silenced;
    if (Status churned = churn(); !churned) return churned;
    if (Status served = serve_healthy(); !served) return served;
    if (Status ended = await_doomed_rooms(); !ended) return ended;
    if (Status asked = ask_silent_registry(); !asked) return asked;
    return judge_calls();
  }

 private:
  LabRank& p(std::size_t number) { return *prefill_[number]; }

  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const std::vector<std::string> options = {"--pages=1024", "--page-bytes=256"};
    for (std::size_t i = 0; i < prefill_.size(); ++i) {
      auto rank = cluster_.start({fmt::format("p{}", i), Role::kPrefill, options, ""});
      if (!rank) return tl::unexpected(rank.error());
      prefill_[i] = *rank;
    }
    auto decode =
        cluster_.start({"d0", Role::kDecode, soon_full_options(scene_), scene_.missing()});
    if (!decode) return tl::unexpected(decode.error());
    decode_ = *decode;
    // p2 will be cut off: everything between the two goes through relays.
    auto relays = relay_everything(cluster_, {p(2), *decode_});
    if (!relays) return tl::unexpected(relays.error());
    cut_ = std::move(*relays);
    for (LabRank* prefill : prefill_) {
      if (Status paired = cluster_.await_pair(*decode_, *prefill, kPatience); !paired) {
        return paired;
      }
    }
    scene_.say("p0 to p3 and d0 are pairs");
    const auto reset = decode_->child().ask("restart_times", {});
    return reset ? Status{} : tl::unexpected(reset.error());
  }

  // Their pages are granted; their senders hold them back.
  Status open_doomed_rooms() {
    for (std::size_t i = 1; i < prefill_.size(); ++i) {
      for (std::uint64_t room = 0; room < kRoomsPerPeer; ++room) {
        const RoomPlan plan{kFirstSilent * i + room, 1, 4, false, true};
        if (Status opened = cluster_.open(p(i), *decode_, plan); !opened) return opened;
      }
      const auto last = static_cast<std::int64_t>(kFirstSilent * i + kRoomsPerPeer - 1);
      const auto granted = decode_->child().await(
          [last](JsonView told) {
            return told["room"].integer() == last && told["status"].text() == "Transferring";
          },
          "grant", kPatience);
      if (!granted) return tl::unexpected(granted.error());
    }
    scene_.say("{} rooms to each of p1, p2 and p3 are granted", kRoomsPerPeer);
    return {};
  }

  Status silence() {
    silent_since_ = scene_.seconds();
    silent_at_ = monotonic_now();
    p(1).child().stop();
    scene_.say("p1 is stopped (SIGSTOP)");
    for (support::Relay* relay : cut_) relay->freeze(true);
    scene_.say("p2 is cut off: its connections stay open and nobody reads them");
    auto taken = kill_and_squat(p(3));
    if (!taken) return tl::unexpected(taken.error());
    squatter_ = std::move(*taken);
    scene_.say("p3 is killed, its port is taken by a listener that never reads");
    cluster_.registry().stop();
    scene_.say("the registry is stopped");
    return {};
  }

  // Without the guard the engine's thread hangs in one of these calls.
  Status churn() {
    const auto load = [&](bool on) {
      JsonObject command;
      command.text("registry", cluster_.registry_address())
          .raw("prefills", on ? R"(["p1","p2"])" : "[]")
          .integer("pages", kChurnPages)
          .integer("every_ticks", kChurnEveryTicks)
          .integer("life_ticks", kChurnLifeTicks);
      return command;
    };
    // Before silence counts as death: then the rooms, and what waits for their peers, go.
    const double timeout_s = static_cast<double>(silence_timeout(scene_).count()) / 1e3;
    const double load_s = scene_.guard_on() ? timeout_s - kFullLoadMargin_s : 8.0;
    const double longest_s = scene_.guard_on() ? timeout_s - kLoadMargin_s : load_s;
    decode_->child().send(load(true).text("do", "churn").integer("id", -1));
    const auto seen = scene_.await_status(
        *decode_,
        [&](JsonView status) {
          const double silent_s = scene_.seconds() - silent_since_;
          const bool is_full =
              status["metrics"]["control_queue_full_total"].number().value_or(0) > 0;
          return status["calls"]["running_ms"].number().value_or(0) > kHungMs ||
                 silent_s > (is_full ? load_s : longest_s);
        },
        "end of the load", kPatience);
    if (!seen) return tl::unexpected(seen.error());
    const CallBounds bounds = call_bounds_of((*seen)->root());
    if (bounds.max_ms > kHungMs) {
      scene_.say("d0's engine has been in one call for {:.0f} ms", bounds.max_ms);
      return {};
    }
    decode_->child().send(load(false).text("do", "churn").integer("id", -1));
    const double full = (*seen)->root()["metrics"]["control_queue_full_total"].number().value_or(0);
    scene_.say(
        "d0 has opened and aborted {} rooms to them; {:.0f} frames found their peer's queue full",
        (*seen)->root()["failed"].integer().value_or(0), full);
    scene_.figures().number("queue_full", full);
    return full > 0 || !scene_.guard_on() ? Status{} : vacuous("no peer's queue was full");
  }

  bool hangs() {
    const auto status = decode_->status();
    return status && call_bounds_of((*status)->root()).max_ms > kHungMs;
  }

  Status serve_healthy() {
    if (hangs()) return {};
    std::vector<double> after;
    for (std::uint64_t i = 0; i < kHealthyRooms; ++i) {
      const RoomPlan room{kFirstHealthy + i, 1, 16, false, false};
      if (Status opened = cluster_.open(p(0), *decode_, room); !opened) return opened;
      const auto end = decode_->await_end(room.number, 1, kPatience);
      if (!end) return tl::unexpected(end.error());
      if (!end->success) {
        scene_.find("I3", fmt::format("room {} to the healthy p0 failed: {}: {}", room.number,
                                      end->code, end->what));
        return {};
      }
      after.push_back(end->after_ms);
    }
    std::sort(after.begin(), after.end());
    scene_.say("{} rooms to p0 succeed, the slowest in {:.1f} ms", kHealthyRooms, after.back());
    scene_.figures().number("healthy_max_ms", after.back());
    return {};
  }

  Status await_doomed_rooms() {
    if (hangs()) return {};
    double all_ms = 0;
    for (std::size_t i = 1; i < prefill_.size(); ++i) {
      RoomEnd last;
      for (std::uint64_t room = 0; room < kRoomsPerPeer; ++room) {
        const auto end = decode_->await_end(kFirstSilent * i + room, 1, kPatience);
        if (!end) return tl::unexpected(end.error());
        last = *end;
        if (end->success || end->peer.empty()) {
          scene_.find("I6", fmt::format("room {} ended as {} and names no peer",
                                        kFirstSilent * i + room, end->code));
        }
      }
      const auto failed_ms = failed_after_ms(i);
      if (!failed_ms) return tl::unexpected(failed_ms.error());
      scene_.say("rooms to p{} failed after {:.0f} ms: {}: {} (peer {})", i, *failed_ms, last.code,
                 last.what, last.peer);
      scene_.figures().number(fmt::format("p{}_failed_after_ms", i), *failed_ms);
      if (*failed_ms > most_silence_ms(scene_)) {
        scene_.find("I3", fmt::format("rooms to the silent p{} failed only after {:.0f} ms", i,
                                      *failed_ms));
      }
      all_ms = std::max(all_ms, *failed_ms);
    }
    scene_.say("all of them had failed {:.0f} ms after the silence began", all_ms);
    return {};
  }

  // Between the silence's begin and the end of the last of its rooms.
  Result<double> failed_after_ms(std::size_t number) {
    const auto ends = ends_of(scene_, *decode_);
    if (!ends) return tl::unexpected(ends.error());
    Duration last{0};
    for (std::uint64_t room = 0; room < kRoomsPerPeer; ++room) {
      last = std::max(last, ends->at({kFirstSilent * number + room, 1}) - silent_at_);
    }
    return std::chrono::duration<double, std::milli>(last).count();
  }

  // A room whose prefill nobody can look up ends by its deadline, and says why.
  Status ask_silent_registry() {
    if (hangs()) return {};
    const RoomPlan room{kFirstHealthy + kHealthyRooms, 1, 4, false, false};
    if (Status opened = cluster_.open_decode(*decode_, "nobody", room); !opened) return opened;
    const auto end = decode_->await_end(room.number, 1, kPatience);
    if (!end) return tl::unexpected(end.error());
    if (end->success || end->what.find("registry") == std::string::npos) {
      scene_.find(
          "I6", fmt::format("a room to an unknown prefill ended as {}: {}", end->code, end->what));
    }
    scene_.say("a room to a prefill that must be looked up fails after {:.0f} ms: {}",
               end->after_ms, end->what);
    return {};
  }

  Status judge_calls() {
    const auto status = decode_->status();
    if (!status) return tl::unexpected(status.error());
    const CallBounds bounds = call_bounds_of((*status)->root());
    scene_.say("d0's engine made {} calls: p99.9 {:.2f} ms, the longest {:.1f} ms ({})",
               bounds.calls, bounds.p999_ms, bounds.max_ms, bounds.slowest);
    scene_.figures()
        .integer("calls", bounds.calls)
        .number("p999_ms", bounds.p999_ms)
        .number("max_ms", bounds.max_ms);
    scene_.find_all(judge("d0", bounds, scene_.slack()));
    if (!scene_.findings().empty()) return {};
    const auto verdict = scene_.check();
    return verdict ? Status{} : tl::unexpected(verdict.error());
  }

  DrillScene& scene_;
  Cluster& cluster_;
  std::array<LabRank*, 4> prefill_{};
  LabRank* decode_ = nullptr;
  std::vector<support::Relay*> cut_;
  data_plane::tcp::Listener squatter_;
  double silent_since_ = 0;
  Instant silent_at_;
};

}  // namespace

Status run_silent_peer(DrillScene& scene) {
  return scene.long_form() ? run_silent_long(scene) : SilentPeers(scene).run();
}

}  // namespace kvferry::lab
