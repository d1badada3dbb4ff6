// What page-reuse and its variants share (docs/drills.md): room A is written to by an engine of two
// ranks, over slow wires, and is over before its last byte has come; room B, out of another
// engine, asks for more pages than are free without A's. Room C keeps its pages all the while.
//
// ReuseRig is the processes and the judgement, Reuse one repetition. What must not be is a finding;
// a Status that fails means that the drill could not be run.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/drills/engine_steps.h"

namespace kvferry::lab {

inline constexpr milliseconds kReusePatience{10'000};
inline constexpr std::uint32_t kReusePages = 64;  // of each rank

// An engine that writes rooms A: two ranks, each with half of the layers.
struct Victim {
  LabEngine engine;
  std::vector<DataRelay> wires;
};

// When room A is interrupted: once so many of the 4,063,232 bytes that both ranks of decode shall
// get have left its writers; or so long after it was opened, unless it has ended by then.
struct ReuseMoment {
  std::uint64_t bytes = 0;
  std::optional<milliseconds> after;
};

class ReuseRig {
 public:
  struct VictimPlan {
    std::string name;
    std::vector<std::string> options;
  };

  explicit ReuseRig(DrillScene& scene) : scene_(scene), cluster_(scene.cluster()) {}

  // Starts everybody, slows the victims' wires and fills room C. misses: which side runs without
  // the drill's guard; of prefill it is the victims.
  Status start(const std::vector<VictimPlan>& victims, Role misses);

  DrillScene& scene() { return scene_; }
  Victim& victim(std::size_t number = 0) { return *std::next(victims_.begin(), number); }
  LabEngine& heir() { return q_; }
  LabEngine& decode() { return d_; }
  // The first of ten numbers that are the caller's.
  std::uint64_t next_room() { return std::exchange(next_, next_ + 10); }

  // In short form the middle of A's bytes, so many times; in long form 0 to 700 ms in steps of
  // 3.5 ms.
  std::vector<ReuseMoment> moments(std::size_t short_form) const;

  // Room A's bytes take some 600 ms, or come at once.
  static void slow_down(Victim& victim);
  static void speed_up(Victim& victim, const LabRank* writer = nullptr);

  // Writes that the rank was given and that have not ended.
  Result<std::int64_t> running_writes(LabRank& rank);
  Status await_no_writes(LabRank& rank);

  // What is judged at the end: rooms A and B, and when B asked for its pages; nothing: that is not
  // judged.
  void note(const Victim& victim, const RoomPlan& a, const RoomPlan& b,
            std::optional<Instant> asked);

  // After the last repetition: everybody holds what it held at the start, and the journals are as
  // they must be. Nothing when the failure has shown.
  Result<std::optional<JournalVerdict>> conclude();

 private:
  struct Ended {
    const Victim* victim = nullptr;
    std::int64_t a = 0;
    std::int64_t b = 0;
    std::optional<Instant> asked;  // of B
  };
  Status start_engines(const std::vector<VictimPlan>& victims, Role misses);
  Status open_c();
  Status probe();
  Status rest();
  void judge_a(const JournalVerdict& verdict, const Ended& ended);
  void judge_b(const JournalVerdict& verdict, const Ended& ended);

  DrillScene& scene_;
  Cluster& cluster_;
  LabEngine q_;
  LabEngine d_;
  std::list<Victim> victims_;  // repetitions refer to them
  std::vector<std::pair<LabRank*, Census>> before_;
  std::uint64_t next_ = 10;
  std::vector<Ended> ended_;
};

// One repetition. A late interruption may find that room A has succeeded.
class Reuse {
 public:
  Reuse(ReuseRig& rig, Victim& victim, const ReuseMoment& moment);

  const RoomPlan& a() const { return a_; }
  const RoomPlan& b() const { return b_; }
  LabRank& writer(std::size_t number) { return *victim_.engine.ranks[number]; }
  EnginePair pair() { return {victim_.engine, rig_.decode()}; }

  // Opens room A, and returns when its moment has come.
  Status write_until_moment();
  // A's end is due from now on at everybody, B's pages are from its asking on.
  void interrupted();
  void not_interrupted() { interrupted_.reset(); }
  void abort_at_decode();
  Status open_b();
  // A has ended at both ranks of decode. code: of each failure, also at its writers; empty: any.
  Status await_a(std::string_view code = {});
  // B has ended with success at both.
  Status await_b();
  // Until all that was under way has come, which is at once from now on: then the pages are looked
  // at, and B's are given back.
  Status look_back();
  // At how many ranks of decode A has succeeded.
  int successes() const { return successes_; }

 private:
  Status await_bytes();
  Status await_within(milliseconds after);
  void judge_end(const LabRank& rank, const RoomEnd& end, std::string_view code);
  Result<std::int64_t> count_changed(LabRank& rank);

  ReuseRig& rig_;
  DrillScene& scene_;
  Victim& victim_;
  const ReuseMoment moment_;
  RoomPlan a_;
  RoomPlan b_;
  std::optional<Instant> interrupted_;
  std::optional<Instant> asked_;
  std::string code_;
  int successes_ = 0;
};

// Of a victim most of whose writes wait in its own queue.
std::vector<std::string> queueing_options();

// Every message of the kind that the rank sends ("out") or gets ("in") waits in its link, until all
// are let go.
Status hold_message(LabRank& rank, std::string_view kind, std::string_view way);
Status release_messages(LabRank& rank);

// The repetitions of a drill: play(repetition, number) for each moment, until the failure shows.
// What each of them saw is told in short form alone.
template <typename Play>
Status repeat(ReuseRig& rig, std::size_t short_form, Play play) {
  std::size_t number = 0;
  for (const ReuseMoment& moment : rig.moments(short_form)) {
    if (rig.scene().interrupted() || !rig.scene().findings().empty()) return {};
    if (Status done = play(moment, number++); !done) return done;
    if (number % 20 == 0) rig.scene().say("{} repetitions", number);
  }
  return {};
}

}  // namespace kvferry::lab
