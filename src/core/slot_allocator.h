// Grant slots of one session. A slot is reused, under a generation that never is (S12).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/guards.h"
#include "kvferry/ids.h"

namespace kvferry::core {

struct SlotName {
  GrantSlot slot;
  Generation generation;
};

class SlotAllocator {
 public:
  explicit SlotAllocator(std::uint32_t limit, Guards guards = {})
      : limit_(limit), guards_(guards) {}

  std::optional<SlotName> take() {
    if (free_.empty() && next_ == limit_) {
      return std::nullopt;
    }
    GrantSlot slot{next_};
    if (free_.empty()) {
      ++next_;
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    if (guards_.has(Guard::kFreshGeneration) || generation_ == Generation{}) {
      generation_ = generation_.next();
    }
    return SlotName{slot, generation_};
  }
  void give_back(GrantSlot slot) { free_.push_back(slot); }
  std::size_t in_use() const { return next_ - free_.size(); }

 private:
  const std::uint32_t limit_;
  Guards guards_;
  std::uint32_t next_ = 0;
  std::vector<GrantSlot> free_;
  Generation generation_;
};

}  // namespace kvferry::core
