// F3, of a writer whose caller drops its handle right after the abort, before its writes are over:
// what it owes goes on. Its peers hear that it is quiet, once it is, and its source pages come back
// when nothing reads them.
#include <fmt/format.h>

#include "lab/drills/reuse.h"

namespace kvferry::lab {
namespace {

// With the abort heard before the handle is dropped, and after.
constexpr std::size_t kWays = 2;

class ClearedSender {
 public:
  explicit ClearedSender(DrillScene& scene) : scene_(scene), rig_(scene) {}

  Status run() {
    if (Status started = rig_.start({{"p", {}}}, Role::kPrefill); !started) return started;
    const Status played =
        repeat(rig_, 2 * kWays, [this](const ReuseMoment& moment, std::size_t number) {
          return play(moment, number % kWays == 1);
        });
    if (!played) return played;
    const auto verdict = rig_.conclude();
    if (!verdict) return tl::unexpected(verdict.error());
    if (cleared_early_ == 0)
      return vacuous("no handle was dropped while its writes were under way");
    scene_.figures().integer("cleared_while_writing", cleared_early_);
    return {};
  }

 private:
  Status play(const ReuseMoment& moment, bool before_abort) {
    Reuse reuse(rig_, rig_.victim(), moment);
    LabRank& writer = reuse.writer(0);
    if (before_abort) {
      for (const std::string_view kind : {"abort", "fenced"}) {
        if (Status told = hold_message(writer, kind, "in"); !told) return told;
      }
    }
    if (Status written = reuse.write_until_moment(); !written) return written;
    reuse.abort_at_decode();
    // The rank's scheduler drops a handle by itself when it sees its end.
    [[maybe_unused]] const Status cleared = tell_room(writer, "clear", reuse.a());
    const auto running = rig_.running_writes(writer);
    if (!running) return tl::unexpected(running.error());
    cleared_early_ += *running > 0 ? 1 : 0;
    if (Status opened = reuse.open_b(); !opened) return opened;
    if (Status ended = reuse.await_a("aborted"); !ended) return ended;
    if (Status ended = reuse.await_b(); !ended) return ended;
    if (before_abort) {
      if (Status released = release_messages(writer); !released) return released;
    }
    if (!scene_.long_form()) {
      scene_.say(
          "room {}: p0's caller drops its handle {} p0 hears of the abort, {} writes are "
          "under way",
          reuse.a().number, before_abort ? "before" : "when", *running);
    }
    return reuse.look_back();
  }

  DrillScene& scene_;
  ReuseRig rig_;
  std::int64_t cleared_early_ = 0;
};

}  // namespace

Status run_cleared_sender(DrillScene& scene) { return ClearedSender(scene).run(); }

}  // namespace kvferry::lab
