// A set of numbers that are given in rising order and leave it in any: its least member is at hand,
// and adding and taking away touch no tree.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

#include "core/flat_map.h"

namespace kvferry::core {

template <typename Number>
class RisingSet {
 public:
  // A number below the newest is taken, too; it costs as much as there are members above it.
  void insert(Number number) {
    if (!members_.insert(number).second) {
      return;
    }
    const auto place = order_.empty() || order_.back() < number
                           ? order_.end()
                           : std::lower_bound(order_.begin(), order_.end(), number);
    if (place == order_.end() || *place != number) {  // it may be there from its former time
      order_.insert(place, number);
    }
  }

  void erase(Number number) {
    if (members_.erase(number) == 0) {
      return;
    }
    while (!order_.empty() && !members_.contains(order_.front())) {
      order_.pop_front();
    }
    if (order_.size() > 2 * members_.size() + kSpare) {
      std::erase_if(order_, [this](Number each) { return !members_.contains(each); });
    }
  }

  bool empty() const { return members_.empty(); }
  std::size_t size() const { return members_.size(); }
  // Only of a set that is not empty.
  Number least() const { return order_.front(); }

 private:
  static constexpr std::size_t kSpare = 64;

  FlatSet<Number> members_;
  std::deque<Number> order_;  // sorted; the first is a member, others may have left
};

}  // namespace kvferry::core
