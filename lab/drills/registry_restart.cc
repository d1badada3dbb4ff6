// F4, its other half: a registry that forgets, hangs or is gone. Pairs need none, ranks come back
// to it by themselves, and of two registries one is enough.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lab/drills/steps.h"
#include "lab/rig/registry_access.h"

namespace kvferry::lab {
namespace {

using router::JsonView;

constexpr milliseconds kPatience{10'000};
// From an empty registry's start until rooms find their prefill again: several leases.
constexpr milliseconds kFoundAgain{5'000};
constexpr std::uint64_t kHeldRooms = 4;

class Registries {
 public:
  explicit Registries(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    using Step = Status (Registries::*)();
    for (const Step step : {&Registries::start, &Registries::restart_empty, &Registries::pause,
                            &Registries::look_back, &Registries::lose_one_of_two}) {
      if (Status done = (this->*step)(); !done) return done;
      if (!scene_.findings().empty()) return {};
    }
    const auto verdict = scene_.check();
    return verdict ? Status{} : tl::unexpected(verdict.error());
  }

 private:
  RankPair pair() { return {*p0_, *d0_}; }

  Result<RankPair> start_pair(const std::string& number) {
    const std::vector<std::string> options = {"--pages=256", "--page-bytes=4096", "--lease-ms=600",
                                              "--http-total-timeout-ms=3000"};
    auto prefill = cluster_.start({"p" + number, Role::kPrefill, options, scene_.missing()});
    if (!prefill) return tl::unexpected(prefill.error());
    auto decode = cluster_.start({"d" + number, Role::kDecode, options, scene_.missing()});
    if (!decode) return tl::unexpected(decode.error());
    if (Status paired = cluster_.await_pair(**decode, **prefill, kPatience); !paired) {
      return tl::unexpected(paired.error());
    }
    return RankPair{**prefill, **decode};
  }

  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const auto started = start_pair("0");
    if (!started) return tl::unexpected(started.error());
    p0_ = &started->prefill;
    d0_ = &started->decode;
    if (Status ran = expect_success(scene_, pair(), {1, 1, 4, false, false}, kPatience); !ran) {
      return ran;
    }
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const auto counted = count_idle(scene_, i == 0 ? *p0_ : *d0_, 256, kPatience);
      if (!counted) return tl::unexpected(counted.error());
      before_[i] = *counted;
    }
    scene_.say("p0 and d0 are a pair; one room has succeeded");
    return {};
  }

  Status hold_rooms(std::uint64_t first) {
    for (std::uint64_t i = 0; i < kHeldRooms; ++i) {
      if (Status held = open_held(scene_, pair(), {first + i, 1, 4, false, true}, kPatience);
          !held) {
        return held;
      }
    }
    return {};
  }

  // Rooms of pairs need no registry, and a registry that is away is no fault of a rank.
  Status finish_rooms(std::uint64_t first, std::string_view when) {
    for (std::uint64_t i = 0; i < kHeldRooms; ++i) {
      const RoomPlan room{first + i, 1, 4, false, true};
      if (Status told = tell_room(*p0_, "send", room); !told) return told;
      if (Status ended = expect_end(scene_, *d0_, room, true, kPatience); !ended) return ended;
    }
    scene_.say("{} rooms that were in flight succeed {}", kHeldRooms, when);
    for (LabRank* rank : {p0_, d0_}) {
      if (Status ready = expect_ready(scene_, *rank, when); !ready) return ready;
    }
    return {};
  }

  // Until p0 has asked it in vain.
  Status await_absence(double failures_before) {
    const auto missed = scene_.await_status(
        *p0_,
        [&](JsonView status) {
          const JsonView metrics = status["metrics"];
          return metrics["registry_lookup_failures_total"].number().value_or(0) +
                     metrics["registration_failures_total"].number().value_or(0) >
                 failures_before;
        },
        "failed request to the registry", kPatience);
    return missed ? Status{} : tl::unexpected(missed.error());
  }
  Result<double> failures() {
    const auto status = p0_->status();
    if (!status) return tl::unexpected(status.error());
    return metric(*status, "registry_lookup_failures_total") +
           metric(*status, "registration_failures_total");
  }

  // Until d0 has asked the registry that came back: what it knew before is out of date then.
  Status await_look() {
    const auto looks = [](JsonView status) {
      const JsonView metrics = status["metrics"];
      return metrics["registry_lookups_total"].number().value_or(0) -
             metrics["registry_lookup_failures_total"].number().value_or(0);
    };
    const auto before = d0_->status();
    if (!before) return tl::unexpected(before.error());
    const double answered = looks((*before)->root());
    const auto looked = scene_.await_status(
        *d0_, [&](JsonView status) { return looks(status) >= answered + 1; },
        "look at the new registry", kPatience);
    return looked ? Status{} : tl::unexpected(looked.error());
  }

  Status restart_empty() {
    if (Status held = hold_rooms(100); !held) return held;
    const auto before = failures();
    if (!before) return tl::unexpected(before.error());
    cluster_.registry().kill();
    scene_.say("the registry is killed");
    // Whoever registers but once asks for nothing and misses nothing.
    if (scene_.guard_on()) {
      if (Status absent = await_absence(*before); !absent) return absent;
    }
    if (Status finished = finish_rooms(100, "without a registry"); !finished) return finished;
    if (Status restarted = cluster_.restart_registry(); !restarted) return restarted;
    const double since = scene_.seconds();
    scene_.say("the registry starts again at {}; it knows nobody", cluster_.registry_address());
    if (Status asked = await_look(); !asked) return asked;
    if (Status found = expect_success(scene_, pair(), {200, 1, 4, false, false}, kFoundAgain);
        !found || !scene_.findings().empty()) {
      return found;
    }
    const double after_ms = (scene_.seconds() - since) * 1'000;
    scene_.say("a new room finds its prefill there {:.0f} ms later", after_ms);
    scene_.figures().number("found_again_ms", after_ms);
    return expect_success(scene_, pair(), {201, 1, 4, false, false}, kPatience);
  }

  Status pause() {
    if (Status held = hold_rooms(300); !held) return held;
    const auto before = failures();
    if (!before) return tl::unexpected(before.error());
    cluster_.registry().stop();
    scene_.say("the registry is stopped (SIGSTOP)");
    const RoomPlan asked{400, 1, 4, false, false};
    if (Status opened = cluster_.open(*p0_, *d0_, asked); !opened) return opened;
    if (Status absent = await_absence(*before); !absent) return absent;
    if (Status finished = finish_rooms(300, "while the registry is stopped"); !finished) {
      return finished;
    }
    if (Status found = expect_end(scene_, *d0_, asked, true, kPatience); !found) return found;
    if (!scene_.findings().empty()) return {};
    scene_.say("so does a new room: the registry's last word holds for a peer that was not lost");
    cluster_.registry().resume();
    scene_.say("the registry goes on");
    return expect_success(scene_, pair(), {401, 1, 4, false, false}, kPatience);
  }

  Status lose_one_of_two() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const auto started = start_pair("1");
    if (!started) return tl::unexpected(started.error());
    for (std::size_t lost = 0; lost < 2; ++lost) {
      cluster_.registry(lost).kill();
      const double since = scene_.seconds();
      const RoomPlan room{500 + lost, 1, 4, false, false};
      if (Status found = expect_success(scene_, *started, room, kFoundAgain); !found) return found;
      if (!scene_.findings().empty()) return {};
      scene_.say(
          "registry {} of two is killed; a new room, which names registry 0, succeeds {:.0f} "
          "ms later",
          lost, (scene_.seconds() - since) * 1'000);
      for (LabRank* rank : {&started->prefill, &started->decode}) {
        if (Status ready = expect_ready(scene_, *rank, "with one registry of two"); !ready) {
          return ready;
        }
      }
      if (Status restarted = cluster_.restart_registry(lost); !restarted) return restarted;
      if (Status known = await_registered(started->prefill, lost); !known) return known;
    }
    return {};
  }

  // Until the registry that came back lists the rank.
  Status await_registered(LabRank& rank, std::size_t number) {
    const std::string& address = cluster_.registry_address(number);
    const auto listed = scene_.await_status(
        rank,
        [&](JsonView) {
          const auto rows = list_ranks(address);
          return rows && std::ranges::any_of(*rows, [&](const core::RegistryRow& row) {
                   return row.instance == rank.name();
                 });
        },
        fmt::format("registration at registry {}", number), kPatience);
    return listed ? Status{} : tl::unexpected(listed.error());
  }

  Status look_back() {
    for (std::size_t i = 0; i < before_.size(); ++i) {
      LabRank& rank = i == 0 ? *p0_ : *d0_;
      if (Status same = expect_baseline(scene_, rank, before_[i], kPatience); !same) return same;
    }
    scene_.say("descriptors, threads and pages of p0 and d0 are as before");
    return {};
  }

  DrillScene& scene_;
  Cluster& cluster_;
  LabRank* p0_ = nullptr;
  LabRank* d0_ = nullptr;
  std::array<Census, 2> before_{};
};

}  // namespace

Status run_registry_restart(DrillScene& scene) { return Registries(scene).run(); }

}  // namespace kvferry::lab
