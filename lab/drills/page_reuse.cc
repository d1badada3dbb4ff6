// F3: decode aborts a room and gives its pages to the next one while prefill's writes to them are
// queued or under way, from two ranks of prefill to two of decode.
#include "lab/drills/reuse.h"

namespace kvferry::lab {
namespace {

Status abort_once(ReuseRig& rig, Victim& victim, const ReuseMoment& moment) {
  Reuse reuse(rig, victim, moment);
  if (Status written = reuse.write_until_moment(); !written) return written;
  reuse.abort_at_decode();
  if (Status opened = reuse.open_b(); !opened) return opened;
  if (Status ended = reuse.await_a(); !ended) return ended;
  if (!rig.scene().long_form()) {
    rig.scene().say(
        "room {}: d0 and d1 abort it; room {} asks for {} pages, which are not free without A's",
        reuse.a().number, reuse.b().number, reuse.b().pages);
  }
  if (Status ended = reuse.await_b(); !ended) return ended;
  return reuse.look_back();
}

}  // namespace

// p's writes are all under way when the abort comes; most of r's still wait in its queue. They take
// turns.
Status run_page_reuse(DrillScene& scene) {
  ReuseRig rig(scene);
  const std::vector<ReuseRig::VictimPlan> victims = {{"p", {}}, {"r", queueing_options()}};
  if (Status started = rig.start(victims, Role::kDecode); !started) return started;
  const Status played =
      repeat(rig, victims.size(), [&](const ReuseMoment& moment, std::size_t number) {
        return abort_once(rig, rig.victim(number % victims.size()), moment);
      });
  if (!played) return played;
  const auto concluded = rig.conclude();
  return concluded ? Status{} : tl::unexpected(concluded.error());
}

}  // namespace kvferry::lab
