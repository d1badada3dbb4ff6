// The control links of the fake world. A connection belongs to the peer entry that dialled it;
// every frame crosses the wire codec. Tests decide the fate of single frames.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/instant.h"
#include "core/action.h"

namespace kvferry::core::fake {

class Process;
class World;

enum class FrameFate : std::uint8_t { kDeliver, kDrop, kHold, kDuplicate };

struct FrameOnLink {
  Process* from = nullptr;
  Process* to = nullptr;
  std::uint64_t connection = 0;
  wire::Frame frame;

  template <typename Kind>
  bool carries() const {
    for (const wire::Message& message : frame.messages) {
      if (std::holds_alternative<Kind>(message)) {
        return true;
      }
    }
    return false;
  }
};

class Links {
 public:
  explicit Links(World& world) : world_(world) {}

  // --- a test's wishes ---
  std::function<FrameFate(const FrameOnLink&)> on_frame;  // unset: everything is delivered
  std::function<Duration()> latency;                      // unset: one millisecond
  template <typename Kind>
  void drop(std::uint32_t times = 1) {
    each<Kind>(times, FrameFate::kDrop);
  }
  template <typename Kind>
  void hold(std::uint32_t times = 1) {
    each<Kind>(times, FrameFate::kHold);
  }
  void release_held();  // in their order
  void release_held_backwards();
  void deliver_again(const FrameOnLink& old);  // a replay, whatever became of its link
  void forge(Process& from, Process& to, wire::Message message);  // unnumbered, in their session
  const std::vector<FrameOnLink>& history() const { return history_; }
  template <typename Kind>
  std::size_t sent() const {
    std::size_t count = 0;
    for (const FrameOnLink& each : history_) {
      count += each.carries<Kind>() ? 1 : 0;
    }
    return count;
  }
  // The last message of its kind that left.
  template <typename Kind>
  Kind last() const {
    for (auto each = history_.rbegin(); each != history_.rend(); ++each) {
      for (const wire::Message& message : each->frame.messages) {
        if (const auto* found = std::get_if<Kind>(&message)) {
          return *found;
        }
      }
    }
    return Kind{};
  }
  void cut(Process& a, Process& b);    // both ways; redials find each other
  void block(Process& a, Process& b);  // cut, and redials fail as lost connections
  void unblock() { blocked_.clear(); }
  void deny(Process& listener, const std::string& key) { denied_.emplace(&listener, key); }
  void allow_all() { denied_.clear(); }
  void close_all_of(Process& gone);  // its process died

  // --- orders of the protocols ---
  void dial(Process& from, const DialPeer& dial);
  void hang_up(Process& from, PeerId peer);
  void send(Process& from, SendFrame send);

 private:
  struct Connection {
    Process* to = nullptr;
    std::uint64_t number = 0;
  };

  template <typename Kind>
  void each(std::uint32_t times, FrameFate fate) {
    on_frame = [this, times, fate, before = std::move(on_frame)](const FrameOnLink& frame) mutable {
      if (times > 0 && frame.carries<Kind>()) {
        --times;
        return fate;
      }
      return before ? before(frame) : FrameFate::kDeliver;
    };
  }
  void launch(FrameOnLink frame);
  void arrive(const FrameOnLink& frame, bool whatever_link);
  void log(const FrameOnLink& frame) const;
  bool is_current(const FrameOnLink& frame) const;

  World& world_;
  std::map<std::pair<Process*, PeerId>, Connection> connections_;
  std::map<std::pair<Process*, PeerId>, std::uint64_t> dials_;
  std::set<std::pair<Process*, Process*>> blocked_;
  std::set<std::pair<Process*, std::string>> denied_;
  std::vector<FrameOnLink> held_;
  std::vector<FrameOnLink> history_;
  std::uint64_t next_number_ = 1;
};

}  // namespace kvferry::core::fake
