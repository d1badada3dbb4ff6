#include "core/tombstones.h"

#include <utility>

namespace kvferry::core {

void Tombstones::raise_mark(AttemptId mark) {
  if (mark > mark_) {
    mark_ = mark;
    entries_.erase(entries_.begin(), entries_.lower_bound(mark));
  }
}

bool Tombstones::add(AttemptId attempt, Tombstone tombstone) {
  if (is_below_mark(attempt)) {
    return true;
  }
  if (entries_.size() >= limit_ && !entries_.contains(attempt)) {
    return false;
  }
  entries_.insert_or_assign(attempt, std::move(tombstone));
  return true;
}

const Tombstone* Tombstones::find(AttemptId attempt) const {
  const auto found = entries_.find(attempt);
  return found == entries_.end() ? nullptr : &found->second;
}

}  // namespace kvferry::core
