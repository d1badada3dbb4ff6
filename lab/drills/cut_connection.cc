// The network drops connections of peers that live. A session outlives that: it is resumed, and no
// room notices.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "lab/drills/steps.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr milliseconds kPatience{15'000};
// From a cut until all that was lost has been said again, generously.
constexpr milliseconds kResumed{6'000};
constexpr std::uint64_t kRooms = 256;
constexpr std::uint64_t kCuts = 20;
constexpr std::uint64_t kRoomsPerCut = kRooms / kCuts;
constexpr std::uint64_t kFirst = 100;

class CutConnection {
 public:
  explicit CutConnection(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    if (Status started = start(); !started) return started;
    if (Status filled = fill(); !filled) return filled;
    for (std::uint64_t cut = 0; cut < kCuts; ++cut) {
      if (Status done = cut_once(cut); !done) return done;
      if (!scene_.findings().empty()) return {};
    }
    return look_back();
  }

 private:
  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    // Lanes are cut along; how many may be lost before a session ends is another matter.
    const std::vector<std::string> options = {"--pages=1024", "--page-bytes=4096",
                                              "--lane-failure-limit=1000"};
    auto prefill = cluster_.start({"p0", Role::kPrefill, options, scene_.missing()});
    if (!prefill) return tl::unexpected(prefill.error());
    auto decode = cluster_.start({"d0", Role::kDecode, options, scene_.missing()});
    if (!decode) return tl::unexpected(decode.error());
    p0_ = *prefill;
    d0_ = *decode;
    auto to_p0 = cluster_.relay_control(*d0_, *p0_);
    auto to_d0 = cluster_.relay_control(*p0_, *d0_);
    auto data = cluster_.relay_data(*p0_, *d0_);
    for (auto* relay : {&to_p0, &to_d0, &data}) {
      if (!*relay) return tl::unexpected(relay->error());
    }
    control_ = {*to_p0, *to_d0};
    data_ = *data;
    if (Status paired = cluster_.await_pair(*d0_, *p0_, kPatience); !paired) return paired;
    if (Status ran = expect_success(scene_, {*p0_, *d0_}, {1, 1, 2, false, false}, kPatience); !ran)
      return ran;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const auto counted = count_idle(scene_, i == 0 ? *p0_ : *d0_, 1'024, kPatience);
      if (!counted) return tl::unexpected(counted.error());
      before_[i] = *counted;
    }
    return {};
  }

  static RoomPlan plan(std::uint64_t number) { return {number, 1, 2, false, true}; }

  Status fill() {
    JsonObject rooms;
    rooms.integer("first", kFirst)
        .integer("count", kRooms)
        .integer("binding", 1)
        .integer("pages", 2)
        .boolean("hold", true)
        .text("registry", cluster_.registry_address())
        .text("prefill", p0_->name());
    for (LabRank* rank : {d0_, p0_}) {
      if (const auto opened = rank->child().ask("open", rooms); !opened) {
        return tl::unexpected(opened.error());
      }
    }
    for (std::uint64_t i = 0; i < kRooms; ++i) {
      if (Status granted =
              await_room_status(*p0_, plan(kFirst + i), KvPoll::kWaitingForInput, kPatience);
          !granted) {
        return granted;
      }
    }
    scene_.say("{} rooms are granted; p0 holds them back", kRooms);
    return {};
  }

  // What p0 says of some rooms goes into a connection that is cut before anything of it arrives.
  Status cut_once(std::uint64_t cut) {
    const std::uint64_t first = kFirst + cut * kRoomsPerCut;
    const std::uint64_t end = cut + 1 == kCuts ? kFirst + kRooms : first + kRoomsPerCut;
    for (support::Relay* relay : control_) relay->freeze(true);
    for (std::uint64_t room = first; room < end; ++room) {
      if (Status told = tell_room(*p0_, "send", plan(room)); !told) return told;
    }
    for (std::uint64_t room = first; room < end; ++room) {
      if (Status sent = await_room_status(*p0_, plan(room), KvPoll::kTransferring, kPatience);
          !sent) {
        return sent;
      }
    }
    // All has landed, so that Done was said.
    const auto landed = scene_.await_status(
        *p0_,
        [](JsonView status) { return status["metrics"]["tickets"].number().value_or(-1) == 0; },
        "landing of all writes", kPatience);
    if (!landed) return tl::unexpected(landed.error());
    for (support::Relay* relay : control_) relay->cut();
    data_->cut();
    for (support::Relay* relay : control_) relay->freeze(false);
    const double since = scene_.seconds();
    for (std::uint64_t room = first; room < end; ++room) {
      for (LabRank* rank : {d0_, p0_}) {
        if (Status ended = expect_end(scene_, *rank, plan(room), true, kResumed); !ended) {
          return ended;
        }
        if (!scene_.findings().empty()) return {};
      }
    }
    slowest_ms_ = std::max(slowest_ms_, (scene_.seconds() - since) * 1'000);
    return {};
  }

  Status look_back() {
    scene_.say(
        "the connections were cut {} times; all of {} rooms succeed, at most {:.0f} ms after "
        "the cut",
        kCuts, kRooms, slowest_ms_);
    scene_.figures()
        .integer("cuts", kCuts)
        .integer("rooms", kRooms)
        .number("slowest_ms", slowest_ms_);
    for (std::size_t i = 0; i < before_.size(); ++i) {
      LabRank& rank = i == 0 ? *p0_ : *d0_;
      const auto ended = metric(rank, "sessions_ended_total");
      if (!ended) return tl::unexpected(ended.error());
      if (*ended > 0) {
        scene_.find("I3", fmt::format("{} has ended {} sessions", rank.name(), *ended));
      }
      if (Status same = expect_baseline(scene_, rank, before_[i], kPatience); !same) return same;
    }
    const auto verdict = scene_.check();
    return verdict ? Status{} : tl::unexpected(verdict.error());
  }

  DrillScene& scene_;
  Cluster& cluster_;
  LabRank* p0_ = nullptr;
  LabRank* d0_ = nullptr;
  std::array<support::Relay*, 2> control_{};
  support::Relay* data_ = nullptr;
  std::array<Census, 2> before_{};
  double slowest_ms_ = 0;
};

}  // namespace

Status run_cut_connection(DrillScene& scene) { return CutConnection(scene).run(); }

}  // namespace kvferry::lab
