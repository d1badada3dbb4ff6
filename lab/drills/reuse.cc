#include "lab/drills/reuse.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"

namespace kvferry::lab {
namespace {

using router::JsonView;
using support::Way;

constexpr std::uint32_t kPagesOfC = 14;
constexpr std::uint32_t kPagesOfA = 31;
constexpr std::uint32_t kPagesOfB = 32;  // more than what A and C leave free
// A rank of decode holds half of the heads: 64 KiB.
constexpr std::uint32_t kPageBytes = 128U << 10;
// Each of two writers has two lanes to each rank of decode: all four together bring 3.4 MB/s, so
// that A's pages take about 600 ms.
constexpr std::uint64_t kBytesPerSecond = 850'000;
constexpr std::uint64_t kBytesOfA = std::uint64_t{kPagesOfA} * kPageBytes;  // at all ranks together
constexpr std::uint64_t kMiddleBytes = 400'000;
constexpr std::int64_t kSteps = 200;
constexpr std::chrono::microseconds kStep{3'500};
// So soon after the interruption a participant's caller knows of it, and B has its pages.
constexpr double kSoonMs = 50;

}  // namespace

// --- the rig ---

Status ReuseRig::start(const std::vector<VictimPlan>& victims, Role misses) {
  if (Status started = start_engines(victims, misses); !started) return started;
  for (Victim& victim : victims_) {
    auto relays = relay_all_data(cluster_, {victim.engine, d_});
    if (!relays) return tl::unexpected(relays.error());
    victim.wires = std::move(*relays);
  }
  for (Victim& victim : victims_) {
    if (Status paired = await_pairs(cluster_, {victim.engine, d_}, kReusePatience); !paired) {
      return paired;
    }
    slow_down(victim);
  }
  if (Status paired = await_pairs(cluster_, {q_, d_}, kReusePatience); !paired) return paired;
  std::string names;
  for (const Victim& victim : victims_) {
    names += fmt::format("{0}0 and {0}1 (engine {0}), ", victim.engine.plan.name);
  }
  scene_.say(
      "{}and q0 prefill for d0 and d1, each of which has {} pages of 64 KiB; the wires of all but "
      "q0 bring 3.4 MB/s to each",
      names, kReusePages);
  return open_c();
}

Status ReuseRig::start_engines(const std::vector<VictimPlan>& victims, Role misses) {
  if (Status started = cluster_.start_registry(); !started) return started;
  const std::vector<std::string> options = {fmt::format("--pages={}", kReusePages),
                                            fmt::format("--page-bytes={}", kPageBytes),
                                            "--messages", "--retransmit-min-ms=20"};
  const auto start = [&](LabEngine& engine, const EnginePlan& plan) -> Status {
    auto started = start_engine(cluster_, plan);
    if (!started) return tl::unexpected(started.error());
    engine = std::move(*started);
    return {};
  };
  for (const VictimPlan& plan : victims) {
    std::vector<std::string> own = options;
    own.insert(own.end(), plan.options.begin(), plan.options.end());
    const std::string missing = misses == Role::kPrefill ? scene_.missing() : "";
    if (Status started = start(victims_.emplace_back().engine,
                               {plan.name, Role::kPrefill, 1, 2, std::move(own), missing});
        !started) {
      return started;
    }
  }
  if (Status started = start(q_, {"q", Role::kPrefill, 1, 1, options, ""}); !started) {
    return started;
  }
  return start(
      d_, {"d", Role::kDecode, 2, 1, options, misses == Role::kDecode ? scene_.missing() : ""});
}

Status ReuseRig::open_c() {
  const RoomPlan c{1, 1, kPagesOfC, true, false};
  if (Status opened = open_everywhere(cluster_, {q_, d_}, c); !opened) return opened;
  for (LabRank* decode : d_.ranks) {
    if (Status ended = expect_end(scene_, *decode, c, true, kReusePatience); !ended) return ended;
  }
  const auto count = [&](LabRank* rank, std::int64_t pages) -> Status {
    const auto counted = count_idle(scene_, *rank, pages, kReusePatience);
    if (!counted) return tl::unexpected(counted.error());
    before_.emplace_back(rank, *counted);
    return {};
  };
  for (LabRank* decode : d_.ranks) {
    if (Status counted = count(decode, kReusePages - kPagesOfC); !counted) return counted;
  }
  for (const Victim& victim : victims_) {
    for (LabRank* prefill : victim.engine.ranks) {
      if (Status counted = count(prefill, kReusePages); !counted) return counted;
    }
  }
  scene_.say("room {}: {} pages, which it keeps; {} are free at each of d0 and d1", c.number,
             kPagesOfC, before_.front().second.free_pages);
  return {};
}

std::vector<ReuseMoment> ReuseRig::moments(std::size_t short_form) const {
  std::vector<ReuseMoment> moments;
  if (!scene_.long_form()) moments.resize(short_form, ReuseMoment{kMiddleBytes, {}});
  for (std::int64_t step = 0; scene_.long_form() && step < kSteps; ++step) {
    moments.push_back({0, std::chrono::floor<milliseconds>(step * kStep)});
  }
  return moments;
}

void ReuseRig::slow_down(Victim& victim) {
  for (const DataRelay& relay : victim.wires) {
    relay.wire->set(Way::kToTarget, {.bytes_per_s = kBytesPerSecond});
  }
}

void ReuseRig::speed_up(Victim& victim, const LabRank* writer) {
  for (const DataRelay& relay : victim.wires) {
    if (writer == nullptr || relay.prefill == writer) relay.wire->set(Way::kToTarget, {});
  }
}

Result<std::int64_t> ReuseRig::running_writes(LabRank& rank) {
  const auto status = rank.status();
  if (!status) return tl::unexpected(status.error());
  return (*status)->root()["writes"].integer().value_or(0);
}

Status ReuseRig::await_no_writes(LabRank& rank) {
  const auto over = scene_.await_status(
      rank, [](JsonView status) { return status["writes"].integer() == 0; }, "end of its writes",
      kReusePatience);
  return over ? Status{} : tl::unexpected(over.error());
}

void ReuseRig::note(const Victim& victim, const RoomPlan& a, const RoomPlan& b,
                    std::optional<Instant> asked) {
  ended_.push_back(
      {&victim, static_cast<std::int64_t>(a.number), static_cast<std::int64_t>(b.number), asked});
}

// --- what the rig judges at the end ---

Result<std::optional<JournalVerdict>> ReuseRig::conclude() {
  for (const auto step : {&ReuseRig::probe, &ReuseRig::rest}) {
    const Status done = scene_.findings().empty() ? (this->*step)() : Status{};
    if (!done) return tl::unexpected(done.error());
  }
  auto verdict = scene_.check();
  if (!verdict) return tl::unexpected(verdict.error());
  scene_.say("{} writes landed, {} of them in pages of others", verdict->landings,
             verdict->late_landings);
  scene_.figures()
      .integer("landings", static_cast<std::int64_t>(verdict->landings))
      .integer("late_landings", static_cast<std::int64_t>(verdict->late_landings))
      .integer("repetitions", static_cast<std::int64_t>(ended_.size()));
  if (!scene_.findings().empty()) return std::nullopt;
  for (const Ended& ended : ended_) {
    judge_a(*verdict, ended);
    judge_b(*verdict, ended);
  }
  if (!scene_.findings().empty()) return std::nullopt;
  return std::optional(std::move(*verdict));
}

// One more room from each victim. What was said before it in the same session has been heard by its
// end.
Status ReuseRig::probe() {
  for (Victim& victim : victims_) {
    const RoomPlan room{next_room(), 1, 2, false, false};
    if (Status ran = expect_success(scene_, {victim.engine, d_}, room, kReusePatience); !ran) {
      return ran;
    }
  }
  return {};
}

Status ReuseRig::rest() {
  double stale = 0;
  for (LabRank* decode : d_.ranks) {
    const auto here = metric(*decode, "writes_stale_total");
    if (!here) return tl::unexpected(here.error());
    if (*here == 0) {
      return vacuous(fmt::format("no write came to {} after its grant's end", decode->name()));
    }
    stale += *here;
  }
  scene_.say("{:.0f} writes came too late and were refused", stale);
  scene_.figures().number("writes_refused", stale);
  for (const auto& [rank, before] : before_) {
    if (Status same = expect_baseline(scene_, *rank, before, kReusePatience); !same) return same;
  }
  return {};
}

void ReuseRig::judge_a(const JournalVerdict& verdict, const Ended& ended) {
  const std::int64_t room = ended.a;
  std::vector<std::string> decodes;
  for (LabRank* rank : d_.ranks) decodes.push_back(rank->child().name());
  std::vector<std::string> all = decodes;
  for (LabRank* rank : ended.victim->engine.ranks) all.push_back(rank->child().name());
  std::vector<std::string> failed;  // of decode
  bool writer_succeeded = false;
  if (const auto ends = verdict.ends.find({room, 1}); ends != verdict.ends.end()) {
    for (const ParticipantEnd& end : ends->second) {
      const bool is_decode = std::ranges::find(decodes, end.life) != decodes.end();
      if (is_decode && end.status == "Failed") failed.push_back(end.life);
      writer_succeeded |= !is_decode && end.status == "Success";
    }
  }
  // A rank of decode has its success when its own bytes are there, whatever becomes of the others'.
  const double apart_ms = failed.size() < decodes.size() ? 0 : kApartMs * scene_.slack();
  scene_.find_all(judge_span(verdict, room, 1, all, apart_ms));
  scene_.find_all(judge_drained(verdict, room, 1, failed, ended.victim->engine.ranks.size()));
  if (!failed.empty() && writer_succeeded) {
    scene_.find(
        "I3", fmt::format("room {} succeeded at a writer and failed at {}", room, failed.front()));
  }
}

// It needs no writer's word, and on a busy machine it may be as late as the last one.
void ReuseRig::judge_b(const JournalVerdict& verdict, const Ended& ended) {
  const auto granted = verdict.granted.find({ended.b, 1});
  const auto writers = verdict.writers.find({ended.a, 1});
  if (granted == verdict.granted.end() || !ended.asked) return;
  for (LabRank* decode : d_.ranks) {
    const std::string& life = decode->child().name();
    const auto at = granted->second.find(life);
    if (at == granted->second.end()) continue;
    Instant due = *ended.asked;
    for (const WriterRecord& record :
         writers == verdict.writers.end() ? std::vector<WriterRecord>{} : writers->second) {
      if (record.life == life) due = std::max(due, Instant(Duration(record.drained_ns)));
    }
    const double after = ms_between(due, Instant(Duration(at->second)));
    if (after <= kSoonMs * scene_.slack()) continue;
    scene_.find("I3", fmt::format("room {} got its pages at {} {:.0f} ms after it asked and all "
                                  "writers were quiet, {:.0f} may be",
                                  ended.b, life, after, kSoonMs * scene_.slack()));
  }
}

// --- victims and messages ---

std::vector<std::string> queueing_options() {
  return {"--max-inflight-bytes=131072", "--data-frame-bytes=65536"};
}

Status hold_message(LabRank& rank, std::string_view kind, std::string_view way) {
  constexpr std::int64_t kEach = 1'000'000'000;
  const auto told = rank.child().ask("fault", router::JsonObject()
                                                  .text("kind", kind)
                                                  .text("way", way)
                                                  .text("what", "hold")
                                                  .integer("count", kEach));
  return told ? Status{} : tl::unexpected(told.error());
}

Status release_messages(LabRank& rank) {
  for (const std::string_view what : {"mend", "release"}) {
    const auto told = rank.child().ask(what, {});
    if (!told) return tl::unexpected(told.error());
  }
  return {};
}

// --- one repetition ---

Reuse::Reuse(ReuseRig& rig, Victim& victim, const ReuseMoment& moment)
    : rig_(rig), scene_(rig.scene()), victim_(victim), moment_(moment) {
  const std::uint64_t first = rig.next_room();
  a_ = {first, 1, kPagesOfA, false, false};
  b_ = {first + 1, 1, kPagesOfB, true, false};
}

Status Reuse::write_until_moment() {
  if (moment_.after) {
    if (Status opened = open_everywhere(scene_.cluster(), pair(), a_); !opened) return opened;
    return await_within(*moment_.after);
  }
  return await_bytes();
}

Status Reuse::await_bytes() {
  std::vector<std::uint64_t> before;
  for (const DataRelay& relay : victim_.wires) before.push_back(relay.wire->taken(Way::kToTarget));
  if (Status opened = open_everywhere(scene_.cluster(), pair(), a_); !opened) return opened;
  for (std::size_t i = 0; i < victim_.wires.size(); ++i) {
    const DataRelay& relay = victim_.wires[i];
    const std::uint64_t wanted = before[i] + moment_.bytes / victim_.wires.size();
    if (!relay.wire->wait_taken(Way::kToTarget, wanted, kReusePatience)) {
      return vacuous(fmt::format("room A's bytes from {} to {} did not come under way",
                                 relay.prefill->name(), relay.decode->name()));
    }
  }
  scene_.say(
      "room {}: {} writes {} pages, each of its ranks a half of each page; {} KB are under way of "
      "the {} that d0 and d1 shall get",
      a_.number, victim_.engine.plan.name, kPagesOfA, moment_.bytes / 1'000, kBytesOfA / 1'000);
  return {};
}

// A's end comes, or the moment does.
Status Reuse::await_within(milliseconds after) {
  const auto end = rig_.decode().ranks.front()->await_end(a_.number, 1, after);
  if (end || end.error().code == FailureCode::kRoomTimeout) return {};
  return tl::unexpected(end.error());
}

void Reuse::interrupted() { interrupted_ = monotonic_now(); }

// Through a rank of prefill d1 may have heard of it, or both have succeeded: then there is nothing
// left to abort.
void Reuse::abort_at_decode() {
  interrupted();
  for (LabRank* decode : rig_.decode().ranks) {
    [[maybe_unused]] const Status aborted = tell_room(*decode, "abort", a_);
  }
}

Status Reuse::open_b() {
  if (interrupted_) asked_ = monotonic_now();
  return open_everywhere(scene_.cluster(), {rig_.heir(), rig_.decode()}, b_);
}

void Reuse::judge_end(const LabRank& rank, const RoomEnd& end, std::string_view code) {
  if (end.success) return;
  if (!code.empty() && end.code != code) {
    scene_.find("I6", fmt::format("room {} ended as {} at {}, its first cause is {}", a_.number,
                                  end.code, rank.name(), code));
  }
  const double after = interrupted_ ? ms_between(*interrupted_, end.at) : 0;
  if (after > kSoonMs * scene_.slack()) {
    scene_.find("I3", fmt::format("room {} ended at {} {:.0f} ms after its interruption, {:.0f} "
                                  "may be",
                                  a_.number, rank.name(), after, kSoonMs * scene_.slack()));
  }
}

Status Reuse::await_a(std::string_view code) {
  successes_ = 0;
  for (LabRank* decode : rig_.decode().ranks) {
    const auto end = decode->await_end(a_.number, 1, kReusePatience);
    if (!end) return tl::unexpected(end.error());
    successes_ += end->success ? 1 : 0;
    judge_end(*decode, *end, code);
  }
  code_ = code;
  if (successes_ > 0 && interrupted_ && !moment_.after) {
    return vacuous("room A succeeded before it was interrupted");
  }
  return {};
}

Status Reuse::await_b() {
  for (LabRank* decode : rig_.decode().ranks) {
    if (Status ended = expect_end(scene_, *decode, b_, true, kReusePatience); !ended) return ended;
    if (!scene_.findings().empty()) return {};
    const auto end = decode->await_end(b_.number, 1, kReusePatience);
    if (!end) return tl::unexpected(end.error());
    if (scene_.long_form()) continue;
    scene_.say("room {}: Success at {} after {:.0f} ms, {} wrong bytes", b_.number, decode->name(),
               end->after_ms, end->wrong_bytes);
  }
  return {};
}

Status Reuse::look_back() {
  ReuseRig::speed_up(victim_);
  for (LabRank* prefill : victim_.engine.ranks) {
    const auto end = prefill->await_end(a_.number, 1, kReusePatience);
    if (!end) return tl::unexpected(end.error());
    judge_end(*prefill, *end, code_);
    if (Status over = rig_.await_no_writes(*prefill); !over) return over;
    if (Status back = await_returned(*prefill, a_, kReusePatience); !back) return back;
  }
  ReuseRig::slow_down(victim_);
  rig_.note(victim_, a_, b_, asked_);
  std::int64_t late = 0;
  for (LabRank* rank : pair().ranks()) {
    const auto changed = count_changed(*rank);
    if (!changed) return tl::unexpected(changed.error());
    late += *changed;
  }
  if (!scene_.long_form() || late > 0) {
    scene_.say("room {}: all that was under way has come; {} bytes of others' pages changed",
               a_.number, late);
  }
  if (late > 0) {
    scene_.find("I1",
                fmt::format("{} bytes of room A landed in pages that were room B's or free", late));
  }
  for (LabRank* decode : rig_.decode().ranks) {
    const Status dropped = tell_room(*decode, "drop", b_);
    if (!dropped && scene_.findings().empty()) return dropped;
  }
  return {};
}

// Bytes of free pages and of those of kept rooms that are not as they were left.
Result<std::int64_t> Reuse::count_changed(LabRank& rank) {
  const auto seen = rank.child().ask("inspect", {});
  if (!seen) return tl::unexpected(seen.error());
  std::int64_t changed = 0;
  for (const std::string_view what : {"wrong", "spoiled"}) {
    const JsonView rows = (*seen)->root()[what];
    for (std::size_t i = 0; i < rows.size(); ++i) {
      changed += rows.at(i)["bytes"].integer().value_or(0);
    }
  }
  return changed;
}

}  // namespace kvferry::lab
