// F3: decode aborts a room and gives its pages to the next one while prefill's writes to them are
// queued or under way, from two ranks of prefill to two of decode.
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <set>
#include <utility>

#include "lab/drills/engine_steps.h"

namespace kvferry::lab {
namespace {

using router::JsonView;
using support::Way;

constexpr std::uint32_t kPages = 64;
constexpr std::uint32_t kPagesOfC = 14;
constexpr std::uint32_t kPagesOfA = 31;
constexpr std::uint32_t kPagesOfB = 32;  // more than what A and C leave free
// A rank of decode holds half of the heads: 64 KiB.
constexpr std::uint32_t kPageBytes = 128U << 10;
// Each of two writers has two lanes to each rank of decode: all four together bring 3.4 MB/s, so
// that A's pages take about 600 ms.
constexpr std::uint64_t kBytesPerSecond = 850'000;
constexpr std::uint64_t kBytesOfA = std::uint64_t{kPagesOfA} * kPageBytes;  // at all ranks together
constexpr std::uint64_t kAbortAfterBytes = 400'000;
constexpr std::uint64_t kLongSteps = 20;
constexpr milliseconds kPatience{10'000};

// One abort of a room from `victim`, once so many of its bytes are under way, whose pages go to a
// room from `heir`. An abort that comes late may find that the room has succeeded.
class Reuse {
 public:
  Reuse(DrillScene& scene, EnginePair victim, const std::vector<DataRelay>& wires, EnginePair heir,
        std::uint64_t first_room, std::uint64_t after_bytes)
      : scene_(scene),
        victim_(victim),
        wires_(wires),
        heir_(heir),
        after_bytes_(after_bytes),
        a_{first_room, 1, kPagesOfA, false, false},
        b_{first_room + 1, 1, kPagesOfB, true, false} {}

  Status run() {
    if (Status started = start_a(); !started) return started;
    if (Status reused = abort_and_reuse(); !reused) return reused;
    return look_back();
  }

 private:
  Status start_a() {
    std::vector<std::uint64_t> before;
    for (const DataRelay& relay : wires_) before.push_back(relay.wire->taken(Way::kToTarget));
    if (Status opened = open_everywhere(scene_.cluster(), victim_, a_); !opened) return opened;
    for (std::size_t i = 0; i < wires_.size(); ++i) {
      const std::uint64_t wanted = before[i] + after_bytes_ / wires_.size();
      if (!wires_[i].wire->wait_taken(Way::kToTarget, wanted, kPatience)) {
        return vacuous(fmt::format("room A's bytes from {} to {} did not come under way",
                                   wires_[i].prefill->name(), wires_[i].decode->name()));
      }
    }
    scene_.say(
        "room {}: {} writes {} pages, each of its ranks a half of each page; {} KB are "
        "under way of the 2,031 that each of d0 and d1 shall get",
        a_.number, victim_.prefill.plan.name, kPagesOfA, after_bytes_ * 2 / wires_.size() / 1'000);
    return {};
  }

  Status abort_and_reuse() {
    // Through a rank of prefill d1 may have heard of it, or both have succeeded: then there is
    // nothing left to abort.
    for (LabRank* decode : victim_.decode.ranks) {
      [[maybe_unused]] const Status aborted = tell_room(*decode, "abort", a_);
    }
    if (Status opened = open_everywhere(scene_.cluster(), heir_, b_); !opened) return opened;
    int succeeded = 0;
    for (LabRank* decode : victim_.decode.ranks) {
      const auto end = decode->await_end(a_.number, 1, kPatience);
      if (!end) return tl::unexpected(end.error());
      succeeded += end->success ? 1 : 0;
    }
    if (succeeded > 0 && after_bytes_ <= kBytesOfA / 2) {
      return vacuous("room A succeeded before it was aborted");
    }
    scene_.say(
        "room {}: d0 and d1 abort it{}; room {} asks for {} pages, which are not free "
        "without A's",
        a_.number, succeeded > 0 ? fmt::format(", too late at {} of them", succeeded) : "",
        b_.number, kPagesOfB);
    for (LabRank* decode : victim_.decode.ranks) {
      const auto end = decode->await_end(b_.number, 1, kPatience);
      if (!end) return tl::unexpected(end.error());
      scene_.say("room {}: {} at {} after {:.0f} ms{}, {} wrong bytes", b_.number,
                 end->success ? "Success" : "Failed", decode->name(), end->after_ms,
                 end->success ? "" : " (" + end->what + ")", end->wrong_bytes);
      if (!end->success) {
        scene_.find("I2", fmt::format("room B failed at {}: {}", decode->name(), end->what));
      }
    }
    return {};
  }

  // Until all that was under way has come: then B's pages are looked at once more.
  Status look_back() {
    for (LabRank* prefill : victim_.prefill.ranks) {
      const auto end = prefill->await_end(a_.number, 1, kPatience);
      if (!end) return tl::unexpected(end.error());
      if (Status back = await_returned(*prefill, a_, kPatience); !back) return back;
    }
    for (const DataRelay& relay : wires_) await_rest(*relay.wire);
    std::int64_t late = 0;
    for (LabRank* decode : victim_.decode.ranks) {
      const auto changed = count_changed(*decode);
      if (!changed) return tl::unexpected(changed.error());
      late += *changed;
    }
    scene_.say("room {}: all that was under way has come; {} bytes of others' pages changed",
               a_.number, late);
    if (late > 0) {
      scene_.find(
          "I1", fmt::format("{} bytes of room A landed in pages that were room B's or free", late));
    }
    for (LabRank* decode : victim_.decode.ranks) {
      const Status dropped = tell_room(*decode, "drop", b_);
      if (!dropped && late == 0) return dropped;
    }
    return {};
  }

  // The relay still holds what the kernel took before the abort.
  static void await_rest(support::Relay& wire) {
    std::uint64_t passed = 0;
    for (std::uint64_t now = wire.passed(Way::kToTarget); now != passed;
         now = wire.passed(Way::kToTarget)) {
      passed = now;
      wire.wait_taken(Way::kToTarget, ~std::uint64_t{0}, milliseconds(150));
    }
  }

  // Bytes of free pages and of those of kept rooms that are not as they were left.
  static Result<std::int64_t> count_changed(LabRank& decode) {
    const auto seen = decode.child().ask("inspect", {});
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

  DrillScene& scene_;
  EnginePair victim_;
  const std::vector<DataRelay>& wires_;
  EnginePair heir_;
  const std::uint64_t after_bytes_;
  RoomPlan a_;
  RoomPlan b_;
};

class PageReuse {
 public:
  explicit PageReuse(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  Status run() {
    using Step = Status (PageReuse::*)();
    for (const Step step :
         {&PageReuse::start, &PageReuse::open_c, &PageReuse::play, &PageReuse::look_back}) {
      if (Status done = (this->*step)(); !done) return done;
    }
    return {};
  }

 private:
  // p's writes are all under way when the abort comes; most of r's still wait in its queue.
  Status start() {
    if (Status started = cluster_.start_registry(); !started) return started;
    const std::vector<std::string> options = {fmt::format("--pages={}", kPages),
                                              fmt::format("--page-bytes={}", kPageBytes),
                                              "--messages"};
    std::vector<std::string> queueing = options;
    queueing.insert(queueing.end(), {"--max-inflight-bytes=131072", "--data-frame-bytes=65536"});
    const std::array<std::pair<LabEngine*, EnginePlan>, 4> plans = {
        {{&p_, {"p", Role::kPrefill, 1, 2, options, ""}},
         {&q_, {"q", Role::kPrefill, 1, 1, options, ""}},
         {&r_, {"r", Role::kPrefill, 1, 2, queueing, ""}},
         {&d_, {"d", Role::kDecode, 2, 1, options, scene_.missing()}}}};
    for (const auto& [engine, plan] : plans) {
      auto started = start_engine(cluster_, plan);
      if (!started) return tl::unexpected(started.error());
      *engine = std::move(*started);
    }
    for (const auto& [victim, wires] : {std::pair{&p_, &wires_p_}, std::pair{&r_, &wires_r_}}) {
      auto relays = relay_all_data(cluster_, {*victim, d_});
      if (!relays) return tl::unexpected(relays.error());
      *wires = std::move(*relays);
    }
    for (LabEngine* prefill : {&p_, &q_, &r_}) {
      if (Status paired = await_pairs(cluster_, {*prefill, d_}, kPatience); !paired) return paired;
    }
    for (const auto* wires : {&wires_p_, &wires_r_}) {
      for (const DataRelay& relay : *wires) {
        relay.wire->set(Way::kToTarget, {.bytes_per_s = kBytesPerSecond});
      }
    }
    scene_.say(
        "p0 and p1 (engine p), r0 and r1 (engine r) and q0 prefill for d0 and d1, each of "
        "which has {} pages of 64 KiB; the wires of p and r bring 3.4 MB/s to each",
        kPages);
    return {};
  }

  Status open_c() {
    const RoomPlan c{1, 1, kPagesOfC, true, false};
    if (Status opened = open_everywhere(cluster_, {q_, d_}, c); !opened) return opened;
    for (LabRank* decode : d_.ranks) {
      if (Status ended = expect_end(scene_, *decode, c, true, kPatience); !ended) return ended;
    }
    for (std::size_t i = 0; i < d_.ranks.size(); ++i) {
      const auto counted = count_idle(scene_, *d_.ranks[i], kPages - kPagesOfC, kPatience);
      if (!counted) return tl::unexpected(counted.error());
      before_[i] = *counted;
    }
    scene_.say("room {}: {} pages, which it keeps; {} are free at each of d0 and d1", c.number,
               kPagesOfC, before_[0].free_pages);
    return {};
  }

  Status play() {
    const EnginePair heir{q_, d_};
    std::vector<std::uint64_t> moments = {kAbortAfterBytes};
    for (std::uint64_t i = 0; scene_.long_form() && i < kLongSteps; ++i) {
      moments.push_back(kBytesOfA * i / kLongSteps);
    }
    for (const std::uint64_t after_bytes : moments) {
      for (const auto& [victim, wires] : {std::pair{&p_, &wires_p_}, std::pair{&r_, &wires_r_}}) {
        Reuse reuse(scene_, {*victim, d_}, *wires, heir, next_, after_bytes);
        aborted_.emplace_back(next_, victim);
        next_ += 10;
        if (Status done = reuse.run(); !done || scene_.interrupted()) return done;
      }
    }
    return {};
  }

  Status look_back() {
    double stale = 0;
    std::vector<Finding> left;
    for (std::size_t i = 0; i < d_.ranks.size(); ++i) {
      const auto at_rest = [](JsonView status) { return status["rooms"].integer() == 0; };
      const auto after = scene_.await_status(*d_.ranks[i], at_rest, "rest", kPatience);
      if (!after) return tl::unexpected(after.error());
      const double here = metric(*after, "writes_stale_total");
      if (here == 0 && scene_.findings().empty()) {
        return vacuous(
            fmt::format("no write came to {} after its grant's end", d_.ranks[i]->name()));
      }
      stale += here;
      for (Finding& finding :
           compare(d_.ranks[i]->name(), before_[i], census_of((*after)->root()))) {
        left.push_back(std::move(finding));
      }
    }
    const auto verdict = scene_.check();
    if (!verdict) return tl::unexpected(verdict.error());
    scene_.say(
        "{} writes landed, {} of them in pages of others; {:.0f} came too late and were refused",
        verdict->landings, verdict->late_landings, stale);
    scene_.figures()
        .integer("landings", static_cast<std::int64_t>(verdict->landings))
        .integer("late_landings", static_cast<std::int64_t>(verdict->late_landings))
        .number("writes_refused", stale);
    if (!scene_.findings().empty()) return {};
    judge_ends(*verdict);
    scene_.find_all(std::move(left));
    return check_drained();
  }

  // Rooms A at all four of their participants.
  void judge_ends(const JournalVerdict& verdict) {
    for (const auto& [room, engine] : aborted_) {
      std::vector<std::string> lives;
      for (LabRank* rank : EnginePair{*engine, d_}.ranks()) lives.push_back(rank->child().name());
      scene_.find_all(judge_span(verdict, static_cast<std::int64_t>(room), 1, lives,
                                 kApartMs * scene_.slack()));
    }
  }

  // Each of d0 and d1 hears of each writer of an aborted room that it is quiet.
  Status check_drained() {
    for (LabRank* decode : d_.ranks) {
      std::set<std::int64_t> sessions;
      std::ifstream file(cluster_.journals().at(decode->child().name()));
      for (std::string text; std::getline(file, text);) {
        if (text.find(R"("kind":"drained")") == std::string::npos) continue;
        const auto line = router::JsonDocument::parse(text);
        if (line) sessions.insert(line->root()["session"].integer().value_or(0));
      }
      const std::size_t writers = p_.ranks.size() + r_.ranks.size();
      if (sessions.size() != writers) {
        scene_.find("I3", fmt::format("{} heard of {} writers that they are quiet, of {}",
                                      decode->name(), sessions.size(), writers));
      }
    }
    return {};
  }

  DrillScene& scene_;
  Cluster& cluster_;
  LabEngine p_;
  LabEngine q_;
  LabEngine r_;
  LabEngine d_;
  std::vector<DataRelay> wires_p_;
  std::vector<DataRelay> wires_r_;
  std::array<Census, 2> before_{};
  std::uint64_t next_ = 10;
  std::vector<std::pair<std::uint64_t, LabEngine*>> aborted_;  // rooms A
};

}  // namespace

Status run_page_reuse(DrillScene& scene) { return PageReuse(scene).run(); }

}  // namespace kvferry::lab
