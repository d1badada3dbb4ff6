// A data plane without a wire: executes posted writes on the bytes of fake engines, checks
// generations where the bytes land, and completes as the transport's contract says (D1 to D5), as
// badly as a test asks for. Posted writes outlive the process that posted them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "core/action.h"

namespace kvferry::core::fake {

class Process;
class World;

enum class WriteFate : std::uint8_t {
  kLand,
  kHold,         // stays in the fabric until release_held()
  kRefuse,       // its lane was lost before the target claimed it
  kLose,         // never executed; unknown, and quiet when say_quiet() is called
  kLandUnknown,  // lands, and its source never learns so: unknown, quiet with say_quiet()
  kTear,         // half of the bytes land
  kCompleteTwice
};

struct PostedWrite {
  Process* source = nullptr;
  SessionEpoch session;
  layout::Write write;
  WriteFate fate = WriteFate::kLand;
  bool executed = false;
  bool told_unknown = false;
  bool settled = false;  // its source has had the last word about it
};

class Fabric {
 public:
  explicit Fabric(World& world) : world_(world) {}

  // --- a test's wishes ---
  std::function<WriteFate(const PostedWrite&)> on_write;  // unset: every write lands
  std::function<Duration()> write_latency;                // unset: one millisecond
  bool hold_fences = false;
  std::size_t held() const;
  void release_held();
  void lose_held();  // as kLose
  void say_quiet();  // for every write that was told to be unknown and has been executed
  void release_fences();
  // For each session that the target has closed: none of its writes lands from now on, and the
  // target is told so.
  void prove_teardown(Process& target);
  std::uint64_t writes_posted() const { return writes_.size(); }
  std::uint64_t fences_ordered() const { return fences_ordered_; }
  std::uint64_t refused_by_generation() const { return refused_by_generation_; }
  const PostedWrite& last_write() const { return *writes_.back(); }
  bool is_open(const Process& target, PageIndex page) const;

  // --- orders of the protocols ---
  void open_session(Process& process, const OpenDataSession& open);
  void close_session(Process& process, SessionEpoch epoch);
  void open_grant(Process& target, OpenGrant open);
  void fence(Process& target, GrantId grant);
  void post(Process& source, const PostWrites& post);
  void give_up(Process& source, const GiveUpWrites& order);

 private:
  struct SlotKey {
    SessionEpoch session;
    GrantSlot slot;
    friend auto operator<=>(const SlotKey&, const SlotKey&) = default;
  };
  struct OpenSlot {
    Generation generation;
    GrantId grant;
    layout::GrantExtent extent;
  };
  struct Target {
    std::map<SlotKey, OpenSlot> slots;
    std::multiset<PageIndex> open_pages;  // once per slot that may write to it
  };
  struct Ends {
    Process* prefill = nullptr;
    Process* decode = nullptr;
    bool decode_closed = false;
    bool torn_down = false;
  };

  void end_held(WriteFate fate);
  void schedule(PostedWrite& posted);
  void execute(PostedWrite& posted);
  bool copy(PostedWrite& posted, std::uint64_t length);
  void tell(PostedWrite& posted, layout::WriteOutcome outcome, bool torn = false);
  void end_fence(Process& target, GrantId grant);

  World& world_;
  std::vector<std::unique_ptr<PostedWrite>> writes_;
  std::map<SessionEpoch, Ends> sessions_;
  std::map<Process*, Target> targets_;
  std::vector<std::pair<Process*, GrantId>> held_fences_;
  std::uint64_t fences_ordered_ = 0;
  std::uint64_t refused_by_generation_ = 0;
};

}  // namespace kvferry::core::fake
