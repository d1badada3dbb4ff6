// "Abort while a write is in flight": room C holds pages 0 to 13 of each decode rank for the whole
// scene, room A gets 14 to 44 and is aborted while its pages are written, room B wants 32 pages of
// which only 19 are free.
//
// Two prefill ranks (tensor parallel) by two decode ranks (pipeline stages): each prefill rank
// writes its heads' half of every page on both decode ranks. Slices do not split by odd and even
// pages here.
#pragma once

#include <map>
#include <string>

#include "stage.h"

namespace kvferry::sim::scene {

enum class Variant : std::uint8_t {
  kAsIs,
  kLateDrained,    // P0 is quiet 50 ms after the abort, P1 only 350 ms after it
  kOneWriteFails,  // 50 ms before the abort a write's outcome becomes unknown, its siblings go on
  kSenderCleared,  // P0's caller clears its handle 10 ms after the abort
  kSourceWanted,   // room B's prefill needs the source pages that A holds
};
inline constexpr Variant kVariants[] = {Variant::kAsIs, Variant::kLateDrained,
                                        Variant::kOneWriteFails, Variant::kSenderCleared,
                                        Variant::kSourceWanted};
const char* name_of(Variant variant);

struct AbortCase {
  Variant variant = Variant::kAsIs;
  TransportKind transport = TransportKind::kStream;
  Duration abort_at{};  // after room A was opened
  std::uint64_t seed = 1;
  Missing missing;
};

class AbortScene {
 public:
  explicit AbortScene(const AbortCase& chosen);

  // Room A from its opening to the end of both rooms, B's pages asked for 5 ms after the abort. The
  // trace starts with the abort.
  void run();
  // Room A undisturbed: when it ends.
  Duration run_without_abort();

  Stage& stage() { return stage_; }
  Room& a() { return *a_; }
  Room& b() { return *b_; }
  // How many Drained of room A each decode rank got from each prefill rank: "p0.0 > d1".
  std::map<std::string, int> drained() const;
  Duration last_drained_at(const std::string& decode) const;
  // From the abort, or from when a paused process goes on, until its caller saw A's end.
  Duration seen_after(const std::string& place) const;
  Duration granted_b_at(const std::string& decode) const { return b_->parts.at(decode).given_at; }

 private:
  void plan_variant();
  void pause(const std::string& place, Duration until);
  void fail_one_write();
  // Callers of a room that succeeded in spite of the abort are done with it.
  void clear_if_succeeded();

  const AbortCase chosen_;
  Stage stage_;
  Room* c_ = nullptr;
  Room* a_ = nullptr;
  Room* b_ = nullptr;
  std::map<std::string, Duration> resumed_;
};

}  // namespace kvferry::sim::scene
