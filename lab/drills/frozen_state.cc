// A participant that stops in the middle of something: whatever state a room of two ranks of
// prefill and four of decode is in, the other five leave it by that state's deadline and with the
// same first cause, and nothing of it is left when the sixth goes on.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/transition_table.h"
#include "lab/drills/engine_steps.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;
using support::Way;

// So many bytes more, and a frame is in the middle of an item.
constexpr std::uint64_t kCutAfterBytes = 40'001;
constexpr milliseconds kPatience{10'000};
// Well before the deadlines of the rooms that wait. A room that has no end by then was cut between
// two copies: it goes on, and nothing is torn.
constexpr milliseconds kTornPatience{600};
// Of each state; heartbeats and lanes are given ten times as long, so that it is the deadline which
// ends a room.
constexpr std::uint32_t kDeadlineMs = 1'500;
constexpr std::uint32_t kLongMs = 20'000;
constexpr std::uint32_t kSourceHoldMs = 500;
// What an end may be late: a tenth, and what the processes wait for a core.
constexpr double kLateMs = kDeadlineMs * 0.1 + 250;
constexpr std::uint32_t kPages = 64;
constexpr std::uint32_t kRoomPages = 16;
// A rank of decode has a quarter of each page, in pieces of 4 KiB; of a room it gets 4 MiB, half of
// them from either rank of prefill.
constexpr std::uint32_t kPageBytes = 1U << 20;
constexpr std::uint64_t kSlowBytesPerSecond = 50'000;
// Much less than participants may be apart (kApartMs).
constexpr std::uint32_t kRetransmitMs = 20;
constexpr std::uint64_t kUnderWayBytes = 20'000;
// However often it is said again.
constexpr std::uint64_t kLostConsumed = 1'000;

// What stands for a state in this drill; a state of the library's tables that has no line here
// makes the drill fail to run.
struct StateStory {
  std::string_view machine;
  std::string_view state;
  std::string_view story;
};
constexpr StateStory kStories[] = {
    {"room", "Bootstrapping",
     "senders without a grant, or with three of four; a receiver without "
     "a session"},
    {"room", "WaitingForInput", "a sender whose caller sends nothing, a receiver without pages"},
    {"room", "Transferring", "writes under way, and a grant whose sender sends nothing"},
    {"grant", "none", "the receiver without pages"},
    {"grant", "granted", "as Transferring"},
    {"grant", "covered", "lasts no longer than the fence, which needs no peer"},
    {"grant", "fenced", "left in the turn in which it is entered"},
    {"grant", "quiet", "only on transports without a fence"},
    {"grant", "torn-down", "only on transports without a fence"},
    {"grant", "revoking", "the receiver's abort with writes under way"},
    {"target", "granted", "the sender whose caller sends nothing"},
    {"target", "posting", "as Transferring"},
    {"target", "done", "Done was said, Consumed never comes"},
    {"target", "given-up", "sources of a room that has failed in mid-write"},
};

Status check_stories() {
  std::string missing;
  const auto look = [&](std::string_view machine, std::string_view state) {
    const bool told = std::ranges::any_of(kStories, [&](const StateStory& story) {
      return story.machine == machine && story.state == state;
    });
    if (!told) missing += fmt::format(" {} {};", machine, state);
  };
  for (const auto& row : core::room_transitions()) look("room", to_string(row.from));
  for (const auto& row : core::grant_transitions()) look("grant", to_string(row.from));
  for (const auto& row : core::target_transitions()) look("target", to_string(row.from));
  return missing.empty() ? Status{} : vacuous("states without a story:" + missing);
}

// A room that sits in a state at one of its participants, and who else is awake and has it.
struct Sitting {
  RoomPlan room;
  LabRank* where = nullptr;
  KvPoll state = KvPoll::kBootstrapping;
  std::vector<LabRank*> others;
  double since = 0;  // s
};

class FrozenStates {
 public:
  explicit FrozenStates(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    if (Status told = check_stories(); !told) return told;
    if (Status started = start(); !started) return started;
    // Whom it hits: in long form each of the six.
    const std::size_t decodes = scene_.long_form() ? d_.ranks.size() : 1;
    const std::size_t prefills = scene_.long_form() ? p_.ranks.size() : 1;
    for (std::size_t i = 0; i < decodes; ++i) {
      if (Status done = stop_receiver(*d_.ranks[i]); !done || !scene_.findings().empty()) {
        return done;
      }
    }
    for (std::size_t i = 0; i < prefills; ++i) {
      if (Status done = stop_sender(*p_.ranks[i]); !done || !scene_.findings().empty()) return done;
    }
    for (std::size_t i = 0; i < prefills * decodes; ++i) {
      const Status done = reset_connections(links_[i % prefills * d_.ranks.size() + i / prefills]);
      if (!done || !scene_.findings().empty()) return done;
    }
    scene_.figures().number("deadline_ms", deadline_ms()).number("slowest_ms", slowest_ms_);
    return {};
  }

 private:
  // All that is between a rank of prefill and one of decode.
  struct Link {
    LabRank* prefill = nullptr;
    LabRank* decode = nullptr;
    support::Relay* data = nullptr;
    std::array<support::Relay*, 2> control{};
  };

  EnginePair pair() { return {p_, d_}; }
  std::uint32_t deadline_ms() const { return kDeadlineMs * scene_.stretch(); }
  std::vector<LabRank*> all() { return pair().ranks(); }
  static std::vector<LabRank*> without(const std::vector<LabRank*>& ranks, const LabRank& rank) {
    std::vector<LabRank*> rest = ranks;
    std::erase(rest, &rank);
    return rest;
  }

  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const std::vector<std::string> options = {
        fmt::format("--pages={}", kPages),
        fmt::format("--page-bytes={}", kPageBytes),
        fmt::format("--retransmit-min-ms={}", kRetransmitMs),
        fmt::format("--bootstrap-timeout-ms={}", deadline_ms()),
        fmt::format("--input-timeout-ms={}", deadline_ms()),
        fmt::format("--transfer-timeout-ms={}", deadline_ms()),
        fmt::format("--source-hold-timeout-ms={}", kSourceHoldMs),
        fmt::format("--heartbeat-timeout-ms={}", kLongMs),
        fmt::format("--lane-timeout-ms={}", kLongMs),
        fmt::format("--lease-ms={}", kLongMs)};
    const std::array<std::pair<LabEngine*, EnginePlan>, 3> plans = {
        {{&p_, {"p", Role::kPrefill, 1, 2, options, scene_.missing()}},
         {&d_, {"d", Role::kDecode, 4, 1, options, scene_.missing()}},
         {&x_, {"x", Role::kDecode, 1, 1, options, scene_.missing()}}}};
    for (const auto& [engine, plan] : plans) {
      auto started = start_engine(cluster_, plan);
      if (!started) return tl::unexpected(started.error());
      *engine = std::move(*started);
    }
    if (Status laid = lay_links(); !laid) return laid;
    if (Status paired = await_pairs(cluster_, pair(), kPatience); !paired) return paired;
    if (Status ran = expect_success(scene_, pair(), next_room(), kPatience); !ran) return ran;
    if (Status counted = count_before(); !counted) return counted;
    scene_.say("p0 and p1 are pairs with d0 to d3, x0 knows nobody yet; each state has {} ms",
               deadline_ms());
    return {};
  }

  Status lay_links() {
    auto data = relay_all_data(cluster_, pair());
    if (!data) return tl::unexpected(data.error());
    for (const DataRelay& relay : *data) {
      auto to_prefill = cluster_.relay_control(*relay.decode, *relay.prefill);
      auto to_decode = cluster_.relay_control(*relay.prefill, *relay.decode);
      for (auto* control : {&to_prefill, &to_decode}) {
        if (!*control) return tl::unexpected(control->error());
      }
      links_.push_back({relay.prefill, relay.decode, relay.wire, {*to_prefill, *to_decode}});
    }
    return {};
  }

  Status count_before() {
    auto counted = count_idle(scene_, all(), kPages, kPatience);
    if (!counted) return tl::unexpected(counted.error());
    before_ = std::move(*counted);
    return {};
  }

  RoomPlan next_room(bool hold = false) { return {next_++, 1, kRoomPages, false, hold}; }
  void slow(bool slowed) {
    for (const Link& link : links_) {
      link.data->set(Way::kToTarget, {.bytes_per_s = slowed ? kSlowBytesPerSecond : 0});
    }
  }

  // Until some of the room's bytes are under way on each wire, and far from all.
  Status start_writing(const RoomPlan& room) {
    slow(true);
    std::vector<std::uint64_t> before;
    for (const Link& link : links_) before.push_back(link.data->taken(Way::kToTarget));
    if (Status opened = open_everywhere(cluster_, pair(), room); !opened) return opened;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (!links_[i].data->wait_taken(Way::kToTarget, before[i] + kUnderWayBytes, kPatience)) {
        return vacuous(fmt::format("room {}'s bytes did not come under way", room.number));
      }
    }
    return {};
  }

  // Until the room is in the state there.
  Status sit(std::vector<Sitting>& sitting, const RoomPlan& room, LabRank& where, KvPoll state,
             const std::vector<LabRank*>& others = {}) {
    // Nobody is told of the state in which every room begins.
    if (state != KvPoll::kBootstrapping) {
      if (Status entered = await_room_status(where, room, state, kPatience); !entered) {
        return entered;
      }
    }
    sitting.push_back({room, &where, state, without(others, where), scene_.seconds()});
    return {};
  }

  Status expect_bounded(const Sitting& sitting) {
    const double bound_ms = deadline_ms() + kLateMs * scene_.guarded_slack();
    const double left_ms = bound_ms - (scene_.seconds() - sitting.since) * 1'000;
    const auto end = sitting.where->await_end(
        sitting.room.number, sitting.room.binding,
        milliseconds(std::max<std::int64_t>(static_cast<std::int64_t>(left_ms), 1)));
    const double after_ms = (scene_.seconds() - sitting.since) * 1'000;
    if (!end && end.error().code != FailureCode::kRoomTimeout) return tl::unexpected(end.error());
    const std::string_view name = sitting.where->name();
    if (!end) {
      scene_.find("I3",
                  fmt::format("{} at {} is unbounded: room {} is in it after {:.0f} ms, and its "
                              "deadline was {}",
                              to_string(sitting.state), name, sitting.room.number, after_ms,
                              deadline_ms()));
    } else if (end->success) {
      return vacuous(
          fmt::format("room {} succeeded although its peer was stopped", sitting.room.number));
    } else {
      scene_.say("{:<15} at {} ended after {:4.0f} ms: {}", to_string(sitting.state), name,
                 after_ms, end->code);
      slowest_ms_ = std::max(slowest_ms_, after_ms);
      return expect_together(sitting);
    }
    return {};
  }

  // The others that are awake do not wait for a deadline of their own once one has passed.
  Status expect_together(const Sitting& sitting) {
    if (sitting.others.empty()) return {};
    std::vector<LabRank*> awake = sitting.others;
    awake.push_back(sitting.where);
    const auto ended = expect_ends(scene_, awake, sitting.room, false, kPatience);
    if (!ended) return tl::unexpected(ended.error());
    if (!ended->ends.empty()) {
      scene_.say(
          "                so it did at the other {} that are awake, at most {:.0f} ms apart",
          sitting.others.size(), ended->apart_ms);
    }
    return {};
  }

  Status expect_all_bounded(const std::vector<Sitting>& sitting) {
    for (const Sitting& each : sitting) {
      if (Status bounded = expect_bounded(each); !bounded) return bounded;
    }
    return {};
  }

  Status expect_returned(LabRank& rank, const RoomPlan& room) {
    const Status back = await_returned(rank, room, kPatience);
    if (back) {
      scene_.say("pages of room {} are back at {} while one of its peers is stopped", room.number,
                 rank.name());
      return {};
    }
    if (back.error().code != FailureCode::kRoomTimeout) return tl::unexpected(back.error());
    scene_.find("I4", back.error().what);
    return {};
  }

  // --- a receiver is stopped ---

  Status stop_receiver(LabRank& stopped) {
    const std::vector<LabRank*> receivers = without(d_.ranks, stopped);
    const std::vector<LabRank*> awake = without(all(), stopped);
    LabRank& p0 = *p_.ranks.front();
    std::vector<Sitting> sitting;
    const RoomPlan done = next_room();
    const RoomPlan alone = next_room();
    const RoomPlan partial = next_room(true);
    const RoomPlan held = next_room(true);
    const RoomPlan writing = next_room();
    if (Status sat = finish_but_for_consumed(stopped, done, sitting); !sat) return sat;
    slow(true);
    for (LabRank* rank : p_.ranks) {
      if (Status opened = cluster_.open_prefill(*rank, alone); !opened) return opened;
    }
    if (Status sat = sit(sitting, alone, p0, KvPoll::kBootstrapping); !sat) return sat;
    if (Status opened = open_for(receivers, partial); !opened) return opened;
    if (Status sat = sit(sitting, partial, p0, KvPoll::kBootstrapping, awake); !sat) return sat;
    if (Status opened = open_held(scene_, pair(), held, kPatience); !opened) return opened;
    if (Status sat = sit(sitting, held, p0, KvPoll::kWaitingForInput, awake); !sat) return sat;
    if (Status opened = open_everywhere(cluster_, pair(), writing); !opened) return opened;
    if (Status sat = sit(sitting, writing, p0, KvPoll::kTransferring, awake); !sat) return sat;
    stopped.child().stop();
    scene_.say(
        "{} is stopped (SIGSTOP); p0 has a room in each state, one that lacks its grants and "
        "one that only lacks Consumed",
        stopped.name());
    if (Status bounded = expect_all_bounded(sitting); !bounded) return bounded;
    if (!scene_.findings().empty()) return {};
    for (LabRank* rank : p_.ranks) {
      if (Status back = expect_returned(*rank, writing); !back) return back;
    }
    stopped.child().resume();
    if (const auto mended = stopped.child().ask("mend", {}); !mended) {
      return tl::unexpected(mended.error());
    }
    for (const RoomPlan& room : {held, writing}) {
      if (Status ended = expect_end(scene_, stopped, room, false, kPatience); !ended) return ended;
    }
    return look_back(stopped.name() + " goes on");
  }

  // Done is said, and nobody answers it before `mute` is stopped.
  Status finish_but_for_consumed(LabRank& mute, const RoomPlan& room,
                                 std::vector<Sitting>& sitting) {
    const auto lost =
        mute.child().ask("fault", JsonObject()
                                      .text("kind", "consumed")
                                      .text("way", "out")
                                      .text("what", "drop")
                                      .integer("count", static_cast<std::int64_t>(kLostConsumed)));
    if (!lost) return tl::unexpected(lost.error());
    if (Status opened = open_everywhere(cluster_, pair(), room); !opened) return opened;
    if (Status sat = sit(sitting, room, *p_.ranks.front(), KvPoll::kTransferring, p_.ranks); !sat) {
      return sat;
    }
    for (LabRank* rank : d_.ranks) {
      if (Status ended = expect_end(scene_, *rank, room, true, kPatience); !ended) return ended;
    }
    return {};
  }

  // At all ranks of prefill and these of decode alone: the others' grants never come.
  Status open_for(const std::vector<LabRank*>& receivers, const RoomPlan& room) {
    RoomPlan spanning = room;
    spanning.grants = pair().grants_of_each();
    for (LabRank* rank : receivers) {
      if (Status opened = cluster_.open_decode(*rank, "p", spanning); !opened) return opened;
    }
    for (LabRank* rank : p_.ranks) {
      if (Status opened = cluster_.open_prefill(*rank, spanning); !opened) return opened;
    }
    return await_room_status(receivers, spanning, KvPoll::kTransferring, kPatience);
  }

  // --- a sender is stopped ---

  Status stop_sender(LabRank& stopped) {
    const std::vector<LabRank*> senders = without(p_.ranks, stopped);
    const std::vector<LabRank*> awake = without(all(), stopped);
    LabRank& d0 = *d_.ranks.front();
    LabRank& x0 = *x_.ranks.front();
    std::vector<Sitting> sitting;
    const RoomPlan held = next_room(true);
    RoomPlan greedy = next_room();
    greedy.pages = kPages + 1;  // they never come, so that its caller gives none
    const RoomPlan writing = next_room();
    const RoomPlan strange = next_room();
    if (Status started = start_writing(writing); !started) return started;
    if (Status opened = open_held(scene_, pair(), held, kPatience); !opened) return opened;
    if (Status sat = sit(sitting, held, d0, KvPoll::kTransferring, awake); !sat) return sat;
    for (LabRank* rank : d_.ranks) {
      if (Status opened = cluster_.open_decode(*rank, "p", greedy); !opened) return opened;
    }
    for (LabRank* rank : d_.ranks) {
      if (Status sat = sit(sitting, greedy, *rank, KvPoll::kWaitingForInput); !sat) return sat;
    }
    stopped.child().stop();
    scene_.say("{} is stopped (SIGSTOP); d0 to d3 have a room in each state but the first",
               stopped.name());
    const bool is_stranger = !x_is_known_;
    if (is_stranger) {
      scene_.say("x0 opens one, too, and has never met {}", stopped.name());
      if (Status opened = cluster_.open_decode(x0, "p", strange); !opened) return opened;
      if (Status sat = sit(sitting, strange, x0, KvPoll::kBootstrapping); !sat) return sat;
    }
    if (Status aborted = tell_room(d0, "abort", writing); !aborted) return aborted;
    const auto ended = expect_ends(scene_, awake, writing, false, kPatience);
    if (!ended) return tl::unexpected(ended.error());
    if (!scene_.findings().empty()) return {};
    for (LabRank* rank : d_.ranks) {
      if (Status back = expect_returned(*rank, writing); !back) return back;
    }
    if (Status bounded = expect_all_bounded(sitting); !bounded) return bounded;
    if (!scene_.findings().empty()) return {};
    stopped.child().resume();
    for (const RoomPlan& room : {held, writing}) {
      if (Status last = expect_end(scene_, stopped, room, false, kPatience); !last) return last;
    }
    if (is_stranger) {
      if (Status met = meet_x(); !met) return met;
    }
    return look_back(stopped.name() + " goes on");
  }

  // From here on x0 is a peer of p0 and p1, with descriptors of its own.
  Status meet_x() {
    x_is_known_ = true;
    slow(false);
    if (Status ran = expect_success(scene_, {p_, x_}, next_room(), kPatience); !ran) return ran;
    const auto now = count_idle(scene_, all(), kPages, kPatience);
    if (!now) return tl::unexpected(now.error());
    for (std::size_t i = d_.ranks.size(); i < before_.size(); ++i) {
      before_[i].descriptors = std::max(before_[i].descriptors, (*now)[i].descriptors);
    }
    return {};
  }

  // --- connections are reset ---

  // In the midst of a copy. Returns once no byte more goes over the old lanes: a room that is sent
  // after that is not torn by the cut. False: too few bytes were under way.
  static bool reset(const Link& link) {
    for (support::Relay* relay : link.control) relay->cut();
    link.data->cut_after(kCutAfterBytes);
    link.data->set(Way::kToTarget, {});
    return link.data->wait_cut(kPatience);
  }

  // All processes live: rooms that wait go on, and one whose bytes were under way may fail, but
  // soon and at all participants, and for the same cause.
  Status reset_connections(const Link& link) {
    const RoomPlan alone = next_room();
    const RoomPlan held = next_room(true);
    const RoomPlan writing = next_room();
    for (LabRank* rank : p_.ranks) {
      if (Status opened = cluster_.open_prefill(*rank, alone); !opened) return opened;
    }
    if (Status opened = open_held(scene_, pair(), held, kPatience); !opened) return opened;
    if (Status started = start_writing(writing); !started) return started;
    if (!reset(link)) return vacuous("nothing was under way when connections were cut");
    scene_.say("all connections of {} and {} are cut, with a room in each state",
               link.prefill->name(), link.decode->name());
    // The other wires stay slow until its end is known: a rank of decode that has everything, and
    // the word of both writers, succeeds whatever becomes of its fellows.
    const bool is_torn = link.prefill->await_end(writing.number, 1, kTornPatience).has_value();
    slow(false);
    for (LabRank* rank : d_.ranks) {
      RoomPlan spanning = alone;
      spanning.grants = pair().grants_of_each();
      if (Status opened = cluster_.open_decode(*rank, "p", spanning); !opened) return opened;
    }
    for (LabRank* rank : p_.ranks) {
      if (Status told = tell_room(*rank, "send", held); !told) return told;
    }
    for (const RoomPlan& room : {alone, held}) {
      for (LabRank* rank : all()) {
        if (Status ended = expect_end(scene_, *rank, room, true, kPatience); !ended) return ended;
      }
    }
    if (!scene_.findings().empty()) return {};
    const auto first = link.prefill->await_end(writing.number, 1, kPatience);
    if (!first) return tl::unexpected(first.error());
    std::vector<LabRank*> concerned = p_.ranks;
    concerned.push_back(link.decode);
    if (is_torn) concerned = all();
    const auto ended = expect_ends(scene_, concerned, writing, first->success, kPatience);
    if (!ended) return tl::unexpected(ended.error());
    if (!scene_.findings().empty()) return {};
    scene_.say(
        "the rooms that waited succeed; the one in mid-write: {} at {} of six, {:.0f} ms apart",
        first->success ? "Success" : first->code, concerned.size(), ended->apart_ms);
    return look_back("connections are back");
  }

  Status look_back(std::string_view when) {
    slow(false);
    const std::size_t before = scene_.findings().size();
    if (Status same = expect_baseline(scene_, all(), before_, kPatience); !same) return same;
    if (Status ran = expect_success(scene_, pair(), next_room(), kPatience); !ran) return ran;
    if (const auto verdict = scene_.check(); !verdict) return tl::unexpected(verdict.error());
    if (scene_.findings().size() == before) {
      scene_.say("{}: nothing is left at any of the six, and the next room succeeds", when);
    }
    return {};
  }

  DrillScene& scene_;
  Cluster& cluster_;
  LabEngine p_;
  LabEngine d_;
  LabEngine x_;
  std::vector<Link> links_;  // by prefill rank, then by decode rank
  std::vector<Census> before_;
  bool x_is_known_ = false;
  std::uint64_t next_ = 1;
  double slowest_ms_ = 0;
};

}  // namespace

Status run_frozen_state(DrillScene& scene) { return FrozenStates(scene).run(); }

}  // namespace kvferry::lab
