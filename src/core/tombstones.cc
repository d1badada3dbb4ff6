#include "core/tombstones.h"

#include <algorithm>

namespace kvferry::core {

void Tombstones::raise_mark(AttemptId mark) {
  if (mark > mark_) {
    mark_ = mark;
    entries_.erase(entries_.begin(), entries_.lower_bound(mark));
  }
}

bool Tombstones::add(AttemptId attempt, const std::optional<Failure>& cause) {
  if (is_below_mark(attempt)) {
    return true;
  }
  if (entries_.size() >= limit_ && !entries_.contains(attempt)) {
    left_out_through_ = std::max(left_out_through_, attempt);
    return false;
  }
  // Most attempts end in about the order in which they were given.
  const auto entry = entries_.try_emplace(entries_.end(), attempt);
  if (cause && entry->second.cause == nullptr) {
    entry->second.cause = std::make_unique<const Failure>(*cause);
  }
  return true;
}

const Tombstone* Tombstones::find(AttemptId attempt) const {
  const auto found = entries_.find(attempt);
  return found == entries_.end() ? nullptr : &found->second;
}

}  // namespace kvferry::core
