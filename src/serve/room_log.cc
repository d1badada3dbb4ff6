#include "serve/room_log.h"

#include <algorithm>

namespace kvferry::serve {

void RoomLog::put(const RoomStats& stats) {
  std::lock_guard lock(mutex_);
  const auto known = std::find_if(rooms_.begin(), rooms_.end(), [&](const RoomStats& each) {
    return each.binding == stats.binding;
  });
  if (known != rooms_.end()) {
    *known = stats;
    return;
  }
  if (rooms_.size() >= capacity_) {
    rooms_.pop_front();
  }
  rooms_.push_back(stats);
}

std::optional<RoomStats> RoomLog::find(Binding binding) const {
  std::lock_guard lock(mutex_);
  for (const auto& each : rooms_) {
    if (each.binding == binding) {
      return each;
    }
  }
  return std::nullopt;
}

std::vector<RoomStats> RoomLog::recent(std::size_t count) const {
  std::lock_guard lock(mutex_);
  std::vector<RoomStats> rooms(
      rooms_.rbegin(),
      rooms_.rbegin() + static_cast<std::ptrdiff_t>(std::min(count, rooms_.size())));
  return rooms;
}

}  // namespace kvferry::serve
