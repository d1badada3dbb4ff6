// Room and binding together name one request (rule 8).
#pragma once

#include <cstddef>
#include <functional>

#include "kvferry/ids.h"

namespace kvferry::core {

struct RoomKey {
  RoomId room;
  Binding binding;
  friend auto operator<=>(const RoomKey&, const RoomKey&) = default;
};

}  // namespace kvferry::core

template <>
struct std::hash<kvferry::core::RoomKey> {
  std::size_t operator()(const kvferry::core::RoomKey& key) const noexcept {
    return std::hash<kvferry::RoomId>{}(key.room) * 31 + std::hash<kvferry::Binding>{}(key.binding);
  }
};
