// F3: decode aborts a room and gives its pages to the next one while prefill's writes to them are
// queued or under way.
#include <fmt/format.h>

#include "lab/drills/drill.h"

namespace kvferry::lab {
namespace {

using router::JsonView;
using support::Way;

constexpr std::uint32_t kPages = 64;
constexpr std::uint32_t kPagesOfC = 14;
constexpr std::uint32_t kPagesOfA = 31;
constexpr std::uint32_t kPagesOfB = 32;  // more than what A and C leave free
// A's pages take about 600 ms.
constexpr std::uint64_t kBytesPerSecond = 3'400'000;
constexpr std::uint64_t kAbortAfterBytes = 800'000;
constexpr milliseconds kPatience{10'000};

double metric(const Told& status, std::string_view name) {
  return status->root()["metrics"][name].number().value_or(0);
}

// One abort in mid-write of a room from `victim`, whose pages go to a room from `heir`.
class Reuse {
 public:
  Reuse(DrillScene& scene, LabRank& decode, LabRank& victim, support::Relay& wire, LabRank& heir,
        std::uint64_t first_room)
      : scene_(scene),
        decode_(decode),
        victim_(victim),
        wire_(wire),
        heir_(heir),
        a_{first_room, 1, kPagesOfA, false, false},
        b_{first_room + 1, 1, kPagesOfB, true, false} {}

  Status run() {
    if (Status started = start_a(); !started) return started;
    if (Status reused = abort_and_reuse(); !reused) return reused;
    return look_back();
  }

 private:
  Status start_a() {
    const std::uint64_t before = wire_.taken(Way::kToTarget);
    if (Status opened = scene_.cluster().open(victim_, decode_, a_); !opened) return opened;
    if (!wire_.wait_taken(Way::kToTarget, before + kAbortAfterBytes, kPatience)) {
      return vacuous("room A's bytes did not come under way");
    }
    scene_.say("room {}: {} writes {} pages to d0, {} KB of 2,031 are through", a_.number,
               victim_.name(), kPagesOfA, kAbortAfterBytes / 1'000);
    return {};
  }

  Status abort_and_reuse() {
    const auto aborted =
        decode_.child().ask("abort", router::JsonObject()
                                         .integer("room", static_cast<std::int64_t>(a_.number))
                                         .integer("binding", 1));
    if (!aborted) return tl::unexpected(aborted.error());
    if (Status opened = scene_.cluster().open(heir_, decode_, b_); !opened) return opened;
    const auto end_a = decode_.await_end(a_.number, 1, kPatience);
    if (!end_a) return tl::unexpected(end_a.error());
    if (end_a->success) return vacuous("room A succeeded before it was aborted");
    scene_.say("room {}: d0 aborts it; room {} asks for {} pages, which are not free without A's",
               a_.number, b_.number, kPagesOfB);
    const auto end_b = decode_.await_end(b_.number, 1, kPatience);
    if (!end_b) return tl::unexpected(end_b.error());
    scene_.say("room {}: {} after {:.0f} ms{}, {} wrong bytes", b_.number,
               end_b->success ? "Success" : "Failed", end_b->after_ms,
               end_b->success ? "" : " (" + end_b->what + ")", end_b->wrong_bytes);
    if (!end_b->success) scene_.find("I2", fmt::format("room B failed: {}", end_b->what));
    return {};
  }

  // Until all that was under way has come: then B's pages are looked at once more.
  Status look_back() {
    const auto end_a = victim_.await_end(a_.number, 1, kPatience);
    if (!end_a) return tl::unexpected(end_a.error());
    const auto back = victim_.child().await(
        [&](JsonView told) {
          return told["event"].text() == "returned" &&
                 told["room"].integer() == static_cast<std::int64_t>(a_.number);
        },
        "return of room A's source pages", kPatience);
    if (!back) return tl::unexpected(back.error());
    // The relay still holds what the kernel took before the abort.
    std::uint64_t passed = 0;
    for (std::uint64_t now = wire_.passed(Way::kToTarget); now != passed;
         now = wire_.passed(Way::kToTarget)) {
      passed = now;
      wire_.wait_taken(Way::kToTarget, ~std::uint64_t{0}, milliseconds(150));
    }
    const auto seen = decode_.child().ask("inspect", {});
    if (!seen) return tl::unexpected(seen.error());
    std::int64_t late = 0;
    for (const std::string_view what : {"wrong", "spoiled"}) {
      const JsonView rows = (*seen)->root()[what];
      for (std::size_t i = 0; i < rows.size(); ++i) {
        late += rows.at(i)["bytes"].integer().value_or(0);
      }
    }
    scene_.say("room {}: all that was under way has come; {} bytes of others' pages changed",
               a_.number, late);
    if (late > 0) {
      scene_.find(
          "I1", fmt::format("{} bytes of room A landed in pages that were room B's or free", late));
    }
    const auto dropped =
        decode_.child().ask("drop", router::JsonObject()
                                        .integer("room", static_cast<std::int64_t>(b_.number))
                                        .integer("binding", 1));
    if (!dropped && late == 0) return tl::unexpected(dropped.error());
    return {};
  }

  DrillScene& scene_;
  LabRank& decode_;
  LabRank& victim_;
  support::Relay& wire_;
  LabRank& heir_;
  RoomPlan a_;
  RoomPlan b_;
};

}  // namespace

Status run_page_reuse(DrillScene& scene) {
  Cluster& cluster = scene.cluster();
  if (Status started = cluster.start_registry(); !started) return started;
  const std::string pages = fmt::format("--pages={}", kPages);
  // p0's writes are all under way when the abort comes; most of p2's still wait in its queue.
  auto p0 = cluster.start({"p0", Role::kPrefill, {pages}, ""});
  auto p1 = cluster.start({"p1", Role::kPrefill, {pages}, ""});
  auto p2 = cluster.start({"p2",
                           Role::kPrefill,
                           {pages, "--max-inflight-bytes=262144", "--data-frame-bytes=131072"},
                           ""});
  auto d0 = cluster.start({"d0", Role::kDecode, {pages}, scene.missing()});
  for (const auto* rank : {&p0, &p1, &p2, &d0}) {
    if (!*rank) return tl::unexpected(rank->error());
  }
  auto wire0 = cluster.relay_data(**p0, **d0);
  auto wire2 = cluster.relay_data(**p2, **d0);
  for (const auto* wire : {&wire0, &wire2}) {
    if (!*wire) return tl::unexpected(wire->error());
  }
  for (LabRank* prefill : {*p0, *p1, *p2}) {
    if (Status paired = cluster.await_pair(**d0, *prefill, kPatience); !paired) return paired;
  }
  for (support::Relay* wire : {*wire0, *wire2}) {
    wire->set(Way::kToTarget, {.bytes_per_s = kBytesPerSecond});
  }
  scene.say(
      "p0, p1 and p2 prefill for d0, which has {} pages of 64 KiB; the wires of p0 and p2 "
      "carry 3.4 MB/s",
      kPages);
  const RoomPlan c{1, 1, kPagesOfC, true, false};
  if (Status opened = cluster.open(**p1, **d0, c); !opened) return opened;
  if (auto end = (*d0)->await_end(c.number, 1, kPatience); !end) return tl::unexpected(end.error());
  const auto at_rest = [](JsonView status) { return status["rooms"].integer() == 0; };
  const auto before = scene.await_status(**d0, at_rest, "rest", kPatience);
  if (!before) return tl::unexpected(before.error());
  scene.say("room {}: {} pages, which it keeps; {} are free", c.number, kPagesOfC,
            census_of((*before)->root()).free_pages);

  if (Status done = Reuse(scene, **d0, **p0, **wire0, **p1, 10).run(); !done) return done;
  if (Status done = Reuse(scene, **d0, **p2, **wire2, **p1, 20).run(); !done) return done;

  const auto after = scene.await_status(**d0, at_rest, "rest", kPatience);
  if (!after) return tl::unexpected(after.error());
  const double stale = metric(*after, "writes_stale_total");
  const auto verdict = scene.check();
  if (!verdict) return tl::unexpected(verdict.error());
  scene.say(
      "{} writes landed, {} of them in pages of others; {:.0f} came too late and were refused",
      verdict->landings, verdict->late_landings, stale);
  scene.figures()
      .integer("landings", static_cast<std::int64_t>(verdict->landings))
      .integer("late_landings", static_cast<std::int64_t>(verdict->late_landings))
      .number("writes_refused", stale);
  if (!scene.findings().empty()) return {};
  if (stale == 0) return vacuous("no write came after its grant's end");
  scene.find_all(compare("d0", census_of((*before)->root()), census_of((*after)->root())));
  return {};
}

}  // namespace kvferry::lab
