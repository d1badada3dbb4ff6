// A drill: one fault of the field on real processes, told line by line. With every guard in place
// the failure must not show; without the guard that the drill names it must.
//
// How to write one (page_reuse.cc is a short example):
//   1. A file in lab/drills with one function Status run_x(DrillScene&), and a row in
//      drill.cc: name, one sentence, the guard by its mutant's name, the function.
//   2. In it: scene.cluster() starts a registry and ranks (rig/cluster.h); give scene.missing() to
//      the ranks that shall run without the guard, "" with it. What is done and seen goes to
//      scene.say(), one sentence a line. Commands of a rank stand in rank/rank_commands.cc.
//   3. Wait for events with a patience, never for a time: Child::await, LabRank::await_end,
//      Cluster::await_pair, Relay::wait_taken, DrillScene::await_status.
//   4. What must not be is a finding: scene.find("I1", ...), scene.find_all(checker's findings). A
//      drill that has findings has shown the failure. It must also prove that the fault struck
//      (bytes were in flight, the peer was full), else it returns vacuous(...).
//   5. A failure that it returns means that the drill could not be run (exit code 3).
//   6. What takes a minute and more is told where scene.long_form() says so; the row in drill.cc
//      says what it is.
//   7. docs/drills.md gets a part, tests/drill/CMakeLists.txt a line.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/interrupt.h"
#include "lab/rig/checker.h"
#include "lab/rig/cluster.h"
#include "router/json.h"

namespace kvferry::lab {

double ms_between(Instant earlier, Instant later);

// What a drill works with: one run of it.
class DrillScene {
 public:
  // missing: the guard's mutant, empty with all guards in place. tell gets each line of the story.
  DrillScene(std::filesystem::path folder, std::string missing, const cli::Interrupt& interrupt,
             std::function<void(const std::string&)> tell);

  Cluster& cluster() { return cluster_; }
  bool guard_on() const { return missing_.empty(); }
  const std::string& missing() const { return missing_; }
  // Ten where the machine is busy with other things (--bounds wide): outcomes and order are judged
  // as ever, time bounds are so many times longer. Else one.
  double slack() const { return slack_; }
  // The same for a patience at whose end the failure shows: without the guard it passes in full, so
  // that it is not lengthened there.
  std::uint32_t guarded_slack() const {
    return guard_on() ? static_cast<std::uint32_t>(slack_) : 1;
  }
  // Three where bounds are wide: timeouts that a drill gives its ranks are so many times longer, so
  // that what must happen before them has the time. Else one.
  std::uint32_t stretch() const { return slack_ > 1 ? 3 : 1; }
  void widen_bounds() { slack_ = 10; }
  // Whether the drill's long form is asked for (--long), which takes a minute and more.
  bool long_form() const { return long_form_; }
  void lengthen() { long_form_ = true; }

  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    tell_line(fmt::format(format, std::forward<Args>(args)...));
  }
  // What must not be: the failure shows.
  void find(std::string invariant, std::string what);
  void find_all(std::vector<Finding> findings);
  // Reads all journals and takes over what does not hold.
  Result<JournalVerdict> check(double deadline_ms = 0);
  const std::vector<Finding>& findings() const { return findings_; }
  bool interrupted() const { return interrupt_.requested(); }
  // Figures of the JSON report.
  router::JsonObject& figures() { return figures_; }

  // Asks the rank for its status until it fits. On the patience's end a failure that names what.
  Result<Told> await_status(LabRank& rank, const std::function<bool(router::JsonView)>& fits,
                            std::string_view what, milliseconds patience);
  double seconds() const;

 private:
  void tell_line(const std::string& line);

  Cluster cluster_;
  const std::string missing_;
  const cli::Interrupt& interrupt_;
  const std::function<void(const std::string&)> tell_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double slack_ = 1;
  bool long_form_ = false;
  std::vector<Finding> findings_;
  router::JsonObject figures_;
};

// The drill proved nothing: its fault did not strike.
tl::unexpected<Failure> vacuous(std::string what);

struct Drill {
  std::string_view name;     // "page-reuse"
  std::string_view story;    // one sentence
  std::string_view missing;  // the mutant's name of the guard that --guard off removes
  Status (*run)(DrillScene& scene);
  std::string_view long_story = {};  // what its long form adds; empty: it has none
};

std::span<const Drill> all_drills();
const Drill* find_drill(std::string_view name);

Status run_page_reuse(DrillScene& scene);
Status run_late_drained(DrillScene& scene);
Status run_failed_write(DrillScene& scene);
Status run_cleared_sender(DrillScene& scene);
Status run_wanted_source(DrillScene& scene);
Status run_silent_peer(DrillScene& scene);
Status run_interleave(DrillScene& scene);
Status run_restart(DrillScene& scene);
Status run_lost_abort(DrillScene& scene);
Status run_malformed(DrillScene& scene);
Status run_frozen_state(DrillScene& scene);
Status run_registry_restart(DrillScene& scene);
Status run_cut_connection(DrillScene& scene);
Status run_room_identity(DrillScene& scene);

}  // namespace kvferry::lab
