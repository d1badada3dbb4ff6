// F3 at the other end: the pages that a room is read from are wanted by the next one at its writer.
// They come back when no read of them counts any more, and what was read from a reused page is
// part of no success.
#include <fmt/format.h>

#include "lab/drills/reuse.h"

namespace kvferry::lab {
namespace {

constexpr std::uint32_t kPagesOfE = 40;  // more than what A leaves free at its writers

enum class Way : std::uint8_t {
  kDecodeAborts,
  kPrefillAborts,  // p0's caller
  kNobodyAborts,   // A takes its course
};
constexpr std::size_t kWays = 3;

class WantedSource {
 public:
  explicit WantedSource(DrillScene& scene) : scene_(scene), rig_(scene) {}

  // Most of p's writes wait in its queue when the moment comes, and read their pages later.
  Status run() {
    if (Status started = rig_.start({{"p", queueing_options()}}, Role::kPrefill); !started) {
      return started;
    }
    const Status played =
        repeat(rig_, kWays, [this](const ReuseMoment& moment, std::size_t number) {
          return play(moment, static_cast<Way>(number % kWays));
        });
    if (!played) return played;
    const auto verdict = rig_.conclude();
    if (!verdict) return tl::unexpected(verdict.error());
    if (wanted_early_ == 0) return vacuous("no page was wanted while writes read it");
    scene_.figures().integer("wanted_while_read", wanted_early_);
    return {};
  }

 private:
  Status play(const ReuseMoment& moment, Way way) {
    Reuse reuse(rig_, rig_.victim(), moment);
    LabRank& d1 = *rig_.decode().ranks.back();
    LabRank& p0 = reuse.writer(0);
    // p0 and p1 have nothing but the end of their writes to d1 to go by.
    if (Status told = hold_message(d1, "fenced", "out"); !told) return told;
    if (Status written = reuse.write_until_moment(); !written) return written;
    if (way == Way::kDecodeAborts) reuse.abort_at_decode();
    if (way == Way::kPrefillAborts) {
      reuse.interrupted();
      [[maybe_unused]] const Status aborted = tell_room(p0, "abort", reuse.a());
    }
    const RoomPlan e{reuse.b().number + 1, 1, kPagesOfE, false, false};
    if (Status wanted = want_pages(e, p0); !wanted) return wanted;
    if (Status opened = reuse.open_b(); !opened) return opened;
    if (Status ended = reuse.await_a(way == Way::kNobodyAborts ? "" : "aborted"); !ended) {
      return ended;
    }
    if (Status ended = reuse.await_b(); !ended) return ended;
    if (Status back = reuse.look_back(); !back) return back;
    if (Status released = release_messages(d1); !released) return released;
    if (!scene_.findings().empty()) return {};
    return serve(e);
  }

  // Room E of the same engine fills its pages as soon as it has them, and waits for its grants.
  Status want_pages(const RoomPlan& e, LabRank& p0) {
    const auto running = rig_.running_writes(p0);
    if (!running) return tl::unexpected(running.error());
    wanted_early_ += *running > 0 ? 1 : 0;
    RoomPlan spanning = e;
    spanning.grants = EnginePair{rig_.victim().engine, rig_.decode()}.grants_of_each();
    for (LabRank* writer : rig_.victim().engine.ranks) {
      if (Status opened = scene_.cluster().open_prefill(*writer, spanning); !opened) return opened;
    }
    if (scene_.long_form()) return {};
    scene_.say(
        "room {} asks p0 and p1 for {} pages, which are not free without A's, of which {} "
        "writes of p0 read",
        e.number, kPagesOfE, *running);
    return {};
  }

  // Decode opens E, too, now that it has the room for it.
  Status serve(const RoomPlan& e) {
    ReuseRig::speed_up(rig_.victim());
    const EnginePair pair{rig_.victim().engine, rig_.decode()};
    RoomPlan spanning = e;
    spanning.grants = pair.grants_of_each();
    for (LabRank* decode : rig_.decode().ranks) {
      if (Status opened = scene_.cluster().open_decode(*decode, pair.prefill.plan.name, spanning);
          !opened) {
        return opened;
      }
    }
    for (LabRank* rank : pair.ranks()) {
      if (Status ended = expect_end(scene_, *rank, e, true, kReusePatience); !ended) return ended;
    }
    ReuseRig::slow_down(rig_.victim());
    return {};
  }

  DrillScene& scene_;
  ReuseRig rig_;
  std::int64_t wanted_early_ = 0;
};

}  // namespace

Status run_wanted_source(DrillScene& scene) { return WantedSource(scene).run(); }

}  // namespace kvferry::lab
