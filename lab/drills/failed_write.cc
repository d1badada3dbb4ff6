// F3, of a write that returns an error while its siblings go on: the room fails at once on every
// rank, for that cause, and its pages wait for the fence, since what failed may still land.
#include <fmt/format.h>

#include "lab/drills/reuse.h"

namespace kvferry::lab {
namespace {

constexpr std::size_t kRepetitions = 4;

class FailedWrite {
 public:
  explicit FailedWrite(DrillScene& scene) : scene_(scene), rig_(scene) {}

  Status run() {
    if (Status started = rig_.start({{"p", {}}}, Role::kDecode); !started) return started;
    const Status played =
        repeat(rig_, kRepetitions,
               [this](const ReuseMoment& moment, std::size_t /*number*/) { return play(moment); });
    if (!played) return played;
    const auto verdict = rig_.conclude();
    if (!verdict) return tl::unexpected(verdict.error());
    if (struck_ == 0) return vacuous("no write was under way that could fail");
    scene_.figures().integer("failed_writes", struck_);
    return {};
  }

 private:
  Status play(const ReuseMoment& moment) {
    Reuse reuse(rig_, rig_.victim(), moment);
    if (Status written = reuse.write_until_moment(); !written) return written;
    reuse.interrupted();
    const auto told = reuse.writer(0).child().ask("fail_write", {});
    if (!told) return tl::unexpected(told.error());
    const bool struck = (*told)->root()["struck"].boolean().value_or(false);
    // Before the first write or after the last: the room takes its course.
    if (!struck) reuse.not_interrupted();
    const auto siblings = rig_.running_writes(reuse.writer(0));
    if (!siblings) return tl::unexpected(siblings.error());
    if (Status opened = reuse.open_b(); !opened) return opened;
    if (!struck) ReuseRig::speed_up(rig_.victim());
    if (Status ended = reuse.await_a(struck ? "write-unknown" : ""); !ended) return ended;
    struck_ += struck ? 1 : 0;
    if (!scene_.long_form()) {
      if (!struck || *siblings < 2) return vacuous("no write failed while others were under way");
      scene_.say(
          "room {}: one write of p0 ends in an error, {} others go on; d0 and d1 fail it for that "
          "cause, and room {} asks for pages",
          reuse.a().number, *siblings - 1, reuse.b().number);
    }
    if (Status ended = reuse.await_b(); !ended) return ended;
    return reuse.look_back();
  }

  DrillScene& scene_;
  ReuseRig rig_;
  std::int64_t struck_ = 0;
};

}  // namespace

Status run_failed_write(DrillScene& scene) { return FailedWrite(scene).run(); }

}  // namespace kvferry::lab
