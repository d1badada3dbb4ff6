// Senders that ended, and rooms that were aborted, before a grant and its sender had met: a late
// grant or a late sender gets the first cause at once (rule 12). Bounded; the oldest is forgotten
// first.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "core/room_key.h"
#include "kvferry/status.h"

namespace kvferry::core {

class EndedRooms {
 public:
  explicit EndedRooms(std::uint32_t limit) : limit_(limit) {}

  void add(const RoomKey& key, const Failure& cause) {
    if (limit_ == 0 || !causes_.emplace(key, cause).second) {
      return;
    }
    order_.push_back(key);
    if (order_.size() > limit_) {
      causes_.erase(order_.front());
      order_.pop_front();
    }
  }
  const Failure* find(const RoomKey& key) const {
    const auto found = causes_.find(key);
    return found == causes_.end() ? nullptr : &found->second;
  }
  std::size_t size() const { return causes_.size(); }

 private:
  const std::uint32_t limit_;
  std::unordered_map<RoomKey, Failure> causes_;
  std::deque<RoomKey> order_;
};

}  // namespace kvferry::core
