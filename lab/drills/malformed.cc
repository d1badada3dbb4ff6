// F1, its other half: whoever can reach a listener can send it anything. Under a load that never
// pauses every port gets what is not meant for it; then the control thread dies in earnest.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <map>
#include <utility>

#include "data_plane/lanes/frame.h"
#include "hostile/mutate.h"
#include "hostile/raw_socket.h"
#include "lab/drills/steps.h"
#include "lab/rig/registry_access.h"
#include "lab/rig/stranger.h"
#include "wire/codec.h"

namespace kvferry::lab {
namespace {

using hostile::Bytes;
using hostile::RawSocket;
using router::JsonObject;
using router::JsonView;

constexpr milliseconds kPatience{15'000};
// With nobody there who counts, so long is enough to see it.
constexpr milliseconds kNobodyCounts{3'000};
constexpr std::int64_t kLoadRooms = 60;
constexpr std::uint32_t kLoadPages = 4;
// Of each of two lanes; a load takes about a second.
constexpr std::uint64_t kBytesPerSecond = 8'000'000;
constexpr std::size_t kDamagedFrames = 2'000;
constexpr std::size_t kIdleControl = 40;
constexpr std::size_t kIdleData = 300;  // more than a decode lets wait at its door
constexpr std::uint64_t kHeldRooms = 4;
constexpr std::uint64_t kFirstHeld = 90'000;
// From the control thread's end until everybody knows.
constexpr double kKnownWithinMs = 1'000;

// By the reason under which the rank must count them; with which it has no quarrel: "".
using Expected = std::map<std::string, double>;

std::vector<Bytes> readable_frames() {
  std::vector<Bytes> frames;
  const auto add = [&]<std::size_t... kKind>(std::index_sequence<kKind...>) {
    const auto one = [&](wire::Message message) {
      wire::Frame frame;
      frame.session = SessionEpoch(3);
      frame.sequence = 1;
      frame.messages.push_back(std::move(message));
      frames.push_back(wire::encode(frame));
    };
    (one(std::variant_alternative_t<kKind, wire::Message>{}), ...);
  };
  add(std::make_index_sequence<std::variant_size_v<wire::Message>>());
  return frames;
}

// What a reader of lengths and tags must expect.
std::vector<Bytes> crafted_frames() {
  const Bytes whole = readable_frames().front();
  Bytes huge_root = whole;
  std::fill_n(huge_root.begin(), 4, std::uint8_t{0xFF});
  Bytes negative_root = whole;
  negative_root[3] = 0x80;
  Bytes long_tail = whole;
  long_tail.resize(long_tail.size() + 3, 0x41);
  return {{},
          {0},
          {1, 2, 3},
          Bytes(whole.begin(), whole.begin() + 7),
          Bytes(whole.begin(), whole.end() - 1),
          huge_root,
          negative_root,
          long_tail,
          Bytes(64, 0),
          Bytes(4'096, 0xFF),
          hostile::bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
          hostile::bytes_of("\x80\x04\x95\x10\x00\x00\x00"),
          hostile::bytes_of("\xC3\x28 is no text")};
}

class Listeners {
 public:
  explicit Listeners(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    using Step = Status (Listeners::*)();
    for (const Step step :
         {&Listeners::start, &Listeners::quiet, &Listeners::strangers_at_control,
          &Listeners::listed_peer, &Listeners::strangers_at_data, &Listeners::at_registry,
          &Listeners::look_back, &Listeners::end_control_thread}) {
      if (Status done = (this->*step)(); !done) return done;
      if (!scene_.findings().empty()) return {};
    }
    return {};
  }

 private:
  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const std::vector<std::string> options = {"--pages=32", "--handshake-timeout-ms=1000",
                                              "--log-level=warning"};
    auto prefill = cluster_.start({"p0", Role::kPrefill, options, ""});
    if (!prefill) return tl::unexpected(prefill.error());
    auto decode = cluster_.start({"d0", Role::kDecode, options, scene_.missing()});
    if (!decode) return tl::unexpected(decode.error());
    p0_ = *prefill;
    d0_ = *decode;
    auto wire = cluster_.relay_data(*p0_, *d0_);
    if (!wire) return tl::unexpected(wire.error());
    (*wire)->set(support::Way::kToTarget, {.bytes_per_s = kBytesPerSecond});
    if (Status paired = cluster_.await_pair(*d0_, *p0_, kPatience); !paired) return paired;
    if (Status ran = expect_success(scene_, {*p0_, *d0_}, {1, 1, 1, false, false}, kPatience);
        !ran) {
      return ran;
    }
    opened_ = 1;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const auto counted = count_idle(scene_, i == 0 ? *p0_ : *d0_, 32, kPatience);
      if (!counted) return tl::unexpected(counted.error());
      before_[i] = *counted;
    }
    scene_.say("p0 and d0 are a pair; every phase has {} rooms of 256 KiB, one after the other",
               kLoadRooms);
    return {};
  }

  // All rooms of a load are open from the start; the pool has pages for a few, so that they follow
  // each other without a pause while the attack goes on.
  Status under_load(std::string_view attack_name, const std::function<Status()>& attack) {
    JsonObject rooms;
    rooms.integer("first", 1'000 * ++loads_)
        .integer("count", kLoadRooms)
        .integer("binding", 1)
        .integer("pages", kLoadPages)
        .text("registry", cluster_.registry_address())
        .text("prefill", p0_->name());
    for (LabRank* rank : {d0_, p0_}) {
      if (const auto opened = rank->child().ask("open", rooms); !opened) {
        return tl::unexpected(opened.error());
      }
    }
    opened_ += kLoadRooms;
    const double began = scene_.seconds();
    if (Status attacked = attack(); !attacked) return attacked;
    const auto ended = scene_.await_status(
        *d0_,
        [&](JsonView status) {
          return status["succeeded"].integer().value_or(0) +
                     status["failed"].integer().value_or(0) >=
                 opened_;
        },
        "end of the load", kPatience);
    if (!ended && ended.error().code != FailureCode::kRoomTimeout) {
      return tl::unexpected(ended.error());
    }
    if (!ended) scene_.find("I3", fmt::format("{}: rooms of the load have no end", attack_name));
    return judge_load(attack_name, began);
  }

  Status judge_load(std::string_view attack_name, double began) {
    for (LabRank* rank : {d0_, p0_}) {
      const auto status = rank->status();
      if (!status) return tl::unexpected(status.error());
      const JsonView told = (*status)->root();
      const std::int64_t failed = told["failed"].integer().value_or(0);
      if (failed > 0) {
        scene_.find("I3",
                    fmt::format("{}: {} rooms failed at {}", attack_name, failed, rank->name()));
      }
      if (Status ready = expect_ready(scene_, *rank, attack_name); !ready) return ready;
    }
    if (scene_.findings().empty()) {
      scene_.say("{}: {} of {} rooms succeed, in {:.2f} s", attack_name, kLoadRooms, kLoadRooms,
                 scene_.seconds() - began);
    }
    return {};
  }

  Status quiet() {
    return under_load("nobody attacks", [] { return Status{}; });
  }

  // --- the control port ---

  Status strangers_at_control() {
    return under_load("strangers at the control ports", [this]() -> Status {
      hostile::Mutator mutator(12, hostile::other_protocols());
      for (LabRank* rank : {p0_, d0_}) {
        const auto before = metric(*rank, "bad_handshakes_total");
        if (!before) return tl::unexpected(before.error());
        for (std::size_t i = 0; i < 60; ++i) {
          const RawSocket socket = RawSocket::tcp(rank->control());
          if (!socket.is_open()) {
            scene_.find("I3", rank->control() + " takes no connections");
            return {};
          }
          socket.send(mutator.next());
          if (i % 2 == 0) socket.reset_on_close();
        }
        for (std::size_t i = 0; i < kIdleControl; ++i) {
          idle_.push_back(RawSocket::tcp(rank->control()));
        }
        if (Status counted = await_more(*rank, "bad_handshakes_total", *before + 1); !counted) {
          return counted;
        }
      }
      scene_.say("120 connections spoke HTTP, TLS, SSH, pickle or damaged ZMTP; {} say nothing",
                 2 * kIdleControl);
      return {};
    });
  }

  Status await_more(LabRank& rank, std::string_view name, double at_least) {
    const auto counted = scene_.await_status(
        rank,
        [&](JsonView status) { return status["metrics"][name].number().value_or(0) >= at_least; },
        fmt::format("{} of {}", name, at_least), scene_.guard_on() ? kPatience : kNobodyCounts);
    if (counted) return {};
    if (counted.error().code != FailureCode::kRoomTimeout) return tl::unexpected(counted.error());
    scene_.find("I3", counted.error().what);
    return {};
  }

  Status listed_peer() {
    std::array<double, 2> known{};
    for (std::size_t i = 0; i < known.size(); ++i) {
      const auto keys = metric(i == 0 ? *p0_ : *d0_, "known_keys");
      if (!keys) return tl::unexpected(keys.error());
      known[i] = *keys;
    }
    auto stranger = ListedStranger::join(cluster_.registry_address(), "stranger");
    if (!stranger) return tl::unexpected(stranger.error());
    // Else they would refuse it at its first knock, and libzmq does not knock again.
    for (std::size_t i = 0; i < known.size(); ++i) {
      LabRank& rank = i == 0 ? *p0_ : *d0_;
      if (Status knows = await_more(rank, "known_keys", known[i] + 1); !knows) return knows;
    }
    std::vector<Bytes> frames = crafted_frames();
    hostile::Mutator mutator(11, readable_frames());
    while (frames.size() < kDamagedFrames) frames.push_back(mutator.next());
    Expected expected;
    for (const Bytes& frame : frames) {
      const auto read = wire::decode(frame);
      ++expected[read ? "" : std::string(wire::to_string(read.error().reason))];
    }
    return under_load("damaged frames of a listed peer", [&]() -> Status {
      for (LabRank* rank : {p0_, d0_}) {
        if (Status dialled = (*stranger)->dial(rank->name()); !dialled) return dialled;
        if (Status sent = send_frames(**stranger, *rank, frames, expected); !sent) return sent;
        if (!scene_.findings().empty()) return {};
      }
      scene_.say(
          "p0 and d0 count all of {} damaged frames and 3 messages of several parts, under {} "
          "reasons",
          frames.size(), expected.size() - expected.count(""));
      return judge_logs();
    });
  }

  Status send_frames(ListedStranger& stranger, LabRank& rank, const std::vector<Bytes>& frames,
                     const Expected& expected) {
    const auto before = rank.status();
    if (!before) return tl::unexpected(before.error());
    const Bytes whole = readable_frames().front();
    const std::vector<std::vector<Bytes>> parts = {{whole, whole}, {{}, whole}, {whole, {}, {}}};
    bool sent = true;
    for (const Bytes& frame : frames) sent = sent && stranger.send({frame});
    for (const std::vector<Bytes>& message : parts) sent = sent && stranger.send(message);
    if (!sent && scene_.guard_on()) {
      scene_.find("I3", rank.name() + " does not take what a listed peer sends");
      return {};
    }
    for (const auto& [reason, count] : expected) {
      if (reason.empty()) continue;
      const std::string name = fmt::format("malformed_frames_total{{reason={}}}", reason);
      if (Status counted = await_more(rank, name, metric(*before, name) + count); !counted) {
        return counted;
      }
      // Without the guard there is nobody left who could count the next.
      if (!scene_.findings().empty()) return {};
    }
    const std::string name = "malformed_messages_total";
    if (Status counted = await_more(rank, name, metric(*before, name) + 3); !counted) {
      return counted;
    }
    const auto after = rank.status();
    if (!after) return tl::unexpected(after.error());
    double more = 0;
    for (const auto& [reason, count] : expected) more += reason.empty() ? 0 : count;
    const double counted =
        metric(*after, "malformed_frames_total") - metric(*before, "malformed_frames_total");
    if (counted != more) {
      scene_.find("I3", fmt::format("{} counts {} malformed frames, {} were sent", rank.name(),
                                    counted, more));
    }
    scene_.figures().number(rank.name() + "_malformed", counted);
    return {};
  }

  // A line per reason and second at most, whatever comes.
  Status judge_logs() {
    for (LabRank* rank : {p0_, d0_}) {
      std::map<std::string, std::size_t> lines;
      std::ifstream log(cluster_.folder() / (rank->name() + ".log"));
      for (std::string line; std::getline(log, line);) {
        const std::size_t at = line.find("dropped a frame: ");
        if (at == std::string::npos) continue;
        const std::string rest = line.substr(at + 17);
        ++lines[rest.substr(0, rest.find(':'))];
      }
      if (lines.empty()) return vacuous(rank->name() + " has logged no malformed frame");
      for (const auto& [reason, count] : lines) {
        if (static_cast<double>(count) <= scene_.seconds() + 1) continue;
        scene_.find("I3", fmt::format("{} logged {} lines of '{}' in {:.1f} s", rank->name(), count,
                                      reason, scene_.seconds()));
      }
    }
    return {};
  }

  // --- the data port, the registry ---

  Status strangers_at_data() {
    return under_load("strangers at the data port", [this]() -> Status {
      std::vector<Bytes> corpus = hostile::other_protocols();
      data_plane::LaneResponse response;
      response.epoch = SessionEpoch(3);
      response.serial = 7;
      corpus.push_back(data_plane::encode_response(response));
      hostile::Mutator mutator(22, std::move(corpus));
      for (std::size_t i = 0; i < 200; ++i) {
        const RawSocket socket = RawSocket::tcp(d0_->data());
        if (!socket.is_open()) {
          scene_.find("I3", d0_->data() + " takes no connections");
          return {};
        }
        socket.send(mutator.next());
        if (i % 2 == 0) socket.reset_on_close();
      }
      for (std::size_t i = 0; i < kIdleData; ++i) idle_.push_back(RawSocket::tcp(d0_->data()));
      for (const std::string_view name :
           {"lane_strangers_rejected_total", "lane_strangers_full_total",
            "lane_strangers_timed_out_total"}) {
        if (Status counted = await_more(*d0_, name, 1); !counted) return counted;
      }
      scene_.say("200 connections spoke something else, {} said nothing: counted, closed",
                 kIdleData);
      return {};
    });
  }

  Status at_registry() {
    return under_load("strangers at the registry", [this]() -> Status {
      const std::string& address = cluster_.registry_address();
      std::vector<Bytes> corpus = hostile::other_protocols();
      for (const std::string_view text :
           {"PUT /v1/ranks HTTP/1.1\r\nHost: r\r\nContent-Length: 9\r\n\r\n{\"row\": 3",
            "PUT /v1/ranks HTTP/1.1\r\nHost: r\r\nContent-Length: 99999999999\r\n\r\n",
            "DELETE /v1/ranks HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}",
            "GET /v1/ranks?role=%00 HTTP/1.1\r\nHost: r\r\n\r\n"}) {
        corpus.push_back(hostile::bytes_of(std::string(text)));
      }
      hostile::Mutator mutator(31, corpus);
      for (std::size_t i = 0; i < 200; ++i) {
        const RawSocket socket = RawSocket::tcp(address);
        if (!socket.is_open()) {
          scene_.find("I3", "the registry takes no connections");
          return {};
        }
        socket.send(i < corpus.size() ? corpus[i] : mutator.next());
        if (i % 4 == 3) {
          socket.reset_on_close();
          continue;
        }
        socket.finish_sending();
        if (const std::string answer = socket.receive(); answer.starts_with("HTTP/1.1 5")) {
          scene_.find("I3", "the registry answers " + answer.substr(0, 60));
        }
      }
      const auto rows = list_ranks(address);
      for (const LabRank* rank : {p0_, d0_}) {
        if (rows &&
            std::ranges::find(*rows, rank->name(), &core::RegistryRow::instance) != rows->end()) {
          continue;
        }
        scene_.find("I3", "the registry lists no " + rank->name() + " any more");
      }
      scene_.say("200 requests that are none: refused or dropped");
      return {};
    });
  }

  // Those who say nothing are still there: it is the listeners that close them.
  Status look_back() {
    for (std::size_t i = 0; i < before_.size(); ++i) {
      LabRank& rank = i == 0 ? *p0_ : *d0_;
      if (Status same = expect_baseline(scene_, rank, before_[i], kPatience); !same) return same;
    }
    scene_.say("descriptors, threads and pages of p0 and d0 are as before");
    const auto verdict = scene_.check();
    return verdict ? Status{} : tl::unexpected(verdict.error());
  }

  // --- the control thread ---

  Status end_control_thread() {
    for (std::uint64_t i = 0; i < kHeldRooms; ++i) {
      const RoomPlan room{kFirstHeld + i, 1, 1, false, true};
      if (Status held = open_held(scene_, {*p0_, *d0_}, room, kPatience); !held) return held;
    }
    const double began = scene_.seconds();
    if (const auto told = d0_->child().ask("end_thread", {}); !told) {
      return tl::unexpected(told.error());
    }
    scene_.say("d0's control thread ends, with {} rooms pending", kHeldRooms);
    const auto unready = scene_.await_status(
        *d0_, [](JsonView status) { return status["problems"].size() > 0; }, "fall of readiness",
        kPatience);
    if (!unready) return tl::unexpected(unready.error());
    const double unready_ms = (scene_.seconds() - began) * 1'000;
    for (std::uint64_t i = 0; i < kHeldRooms; ++i) {
      const auto end = d0_->await_end(kFirstHeld + i, 1, kPatience);
      if (!end) return tl::unexpected(end.error());
      if (end->success || end->code != to_string(FailureCode::kControlThreadDead)) {
        scene_.find("I6", fmt::format("room {} ended as {}", kFirstHeld + i, end->code));
      }
    }
    const double failed_ms = (scene_.seconds() - began) * 1'000;
    scene_.say("d0 is not ready after {:.0f} ms: {}; its rooms have failed after {:.0f} ms",
               unready_ms, (*unready)->root()["problems"].at(0).text().value_or(""), failed_ms);
    scene_.figures().number("unready_ms", unready_ms).number("rooms_failed_ms", failed_ms);
    if (std::max(unready_ms, failed_ms) > kKnownWithinMs * scene_.slack()) {
      scene_.find("I3", fmt::format("the end of a control thread showed after {:.0f} ms only",
                                    std::max(unready_ms, failed_ms)));
    }
    // p0 hears nothing any more.
    for (std::uint64_t i = 0; i < kHeldRooms; ++i) {
      const RoomPlan room{kFirstHeld + i, 1, 1, false, true};
      if (Status ended = expect_end(scene_, *p0_, room, false, kPatience); !ended) return ended;
    }
    return expect_ready(scene_, *p0_, "when its peer's control thread is gone");
  }

  DrillScene& scene_;
  Cluster& cluster_;
  LabRank* p0_ = nullptr;
  LabRank* d0_ = nullptr;
  std::array<Census, 2> before_{};
  std::int64_t loads_ = 0;
  std::int64_t opened_ = 0;
  std::vector<RawSocket> idle_;
};

}  // namespace

Status run_malformed(DrillScene& scene) { return Listeners(scene).run(); }

}  // namespace kvferry::lab
