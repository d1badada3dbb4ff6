#include "lab/drills/drill.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace kvferry::lab {
namespace {

constexpr std::array kDrills = {
    Drill{"interleave", "A burst of aborts from twelve threads towards one peer.", "message-parts",
          &run_interleave},
    Drill{"restart", "A prefill process is killed and starts again at its address.", "kept-socket",
          &run_restart,
          "for 60 s both roles are killed every 2 s; survivors' threads, descriptors and memory."},
    Drill{"page-reuse", "A room is aborted in mid-write and its pages go to the next one.",
          "pages-leave-at-once", &run_page_reuse,
          "200 rooms, the abort comes 0 to 700 ms after the room's opening."},
    Drill{"late-drained", "The same, and one of two writers is slow to say that it is quiet.",
          "pages-leave-at-once", &run_late_drained,
          "200 rooms, the abort comes 0 to 700 ms after the room's opening."},
    Drill{"failed-write", "One write of a room fails while its siblings go on.",
          "pages-leave-at-once", &run_failed_write,
          "200 rooms, the error comes 0 to 700 ms after the room's opening."},
    Drill{"cleared-sender", "A writer's caller drops its handle before the writes are over.",
          "forgotten-at-clear", &run_cleared_sender,
          "200 rooms, it is dropped 0 to 700 ms after the room's opening."},
    Drill{"wanted-source", "Pages that a room is read from are wanted by the next one.",
          "source-freed-early", &run_wanted_source,
          "200 rooms, they are wanted 0 to 700 ms after the room's opening."},
    Drill{"silent-peer", "Peers are stopped, cut off without a word, or full.", "calls-wait",
          &run_silent_peer,
          "60 s of it, with a peer that swallows connects and a stopped decode rank; stop()."},
    Drill{"lost-abort", "Each kind of message of a room at six ranks is lost once.",
          "acknowledged-by-link", &run_lost_abort,
          "20 rooms of 8 chunks; the first, second and last; everywhere and at one rank alone."},
    Drill{"malformed", "Every listener gets what it can't read.", "malformed-kills",
          &run_malformed},
    Drill{"frozen-state", "One of six ranks is stopped in each state of a room.",
          "no-bootstrap-deadline", &run_frozen_state,
          "each of the six is stopped, the connections of each pair are cut."},
    Drill{"registry-restart", "The registry forgets everybody, hangs, or is gone.",
          "registers-once", &run_registry_restart},
    Drill{"cut-connection", "Connections of a session are cut, both processes alive.",
          "acknowledged-by-link", &run_cut_connection},
    Drill{"room-identity", "A room's number comes again, as do messages of its former life.",
          "forget-ended-sender", &run_room_identity},
};

}  // namespace

double ms_between(Instant earlier, Instant later) {
  return std::chrono::duration<double, std::milli>(later - earlier).count();
}

std::span<const Drill> all_drills() { return kDrills; }

const Drill* find_drill(std::string_view name) {
  const auto found = std::ranges::find(kDrills, name, &Drill::name);
  return found == kDrills.end() ? nullptr : &*found;
}

DrillScene::DrillScene(std::filesystem::path folder, std::string missing,
                       const cli::Interrupt& interrupt,
                       std::function<void(const std::string&)> tell)
    : cluster_(std::move(folder)),
      missing_(std::move(missing)),
      interrupt_(interrupt),
      tell_(std::move(tell)) {}

double DrillScene::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void DrillScene::tell_line(const std::string& line) {
  tell_(fmt::format("{:7.3f} s  {}", seconds(), line));
}

void DrillScene::find(std::string invariant, std::string what) {
  findings_.push_back({std::move(invariant), std::move(what)});
  say("{}", to_string(findings_.back()));
}

void DrillScene::find_all(std::vector<Finding> findings) {
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (i < kShown) say("{}", to_string(findings[i]));
    if (i == kShown) say("... and {} findings more", findings.size() - kShown);
    findings_.push_back(std::move(findings[i]));
  }
}

Result<JournalVerdict> DrillScene::check(double deadline_ms) {
  auto verdict = check_journals(cluster_.journals(), deadline_ms, slack_);
  if (verdict) find_all(verdict->findings);
  return verdict;
}

Result<Told> DrillScene::await_status(LabRank& rank,
                                      const std::function<bool(router::JsonView)>& fits,
                                      std::string_view what, milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    auto status = rank.status();
    if (!status || fits((*status)->root())) return status;
    if (interrupt_.requested()) return fail(FailureCode::kAborted, "interrupted");
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(FailureCode::kRoomTimeout,
                  fmt::format("{}: no {} within {} ms", rank.name(), what, patience.count()));
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
}

tl::unexpected<Failure> vacuous(std::string what) {
  return fail(FailureCode::kWrongState, "the drill proved nothing: " + std::move(what));
}

}  // namespace kvferry::lab
