// Memory of attempts that ended on prefill, per session: a late grant or abort of one of them
// changes nothing and is answered. Bounded by decode's low-water mark, not by time (S12).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "kvferry/ids.h"
#include "kvferry/status.h"

namespace kvferry::core {

struct Tombstone {
  // Null when the attempt succeeded.
  std::unique_ptr<const Failure> cause;
};

class Tombstones {
 public:
  explicit Tombstones(std::uint32_t limit) : limit_(limit) {}

  // The mark only rises; what lies below it is forgotten.
  void raise_mark(AttemptId mark);
  AttemptId mark() const { return mark_; }
  bool is_below_mark(AttemptId attempt) const { return attempt < mark_; }

  // False at the limit: nothing is added, only that attempts up to this one may be over, though
  // they aren't found. The caller refuses new grants until the mark has risen.
  // cause: nullopt when the attempt succeeded. The first cause of an attempt stays.
  bool add(AttemptId attempt, const std::optional<Failure>& cause);
  const Tombstone* find(AttemptId attempt) const;
  // Whether it, or one numbered after it, found no place. An Abort may overtake its Grant: a grant
  // of such an attempt must not be served, however much place there is by then.
  bool may_be_over(AttemptId attempt) const { return attempt <= left_out_through_; }
  // Whether there is no place left for in_use attempts that will end later.
  bool is_full(std::size_t in_use) const { return entries_.size() + in_use >= limit_; }
  std::size_t size() const { return entries_.size(); }

 private:
  const std::uint32_t limit_;
  AttemptId mark_;
  AttemptId left_out_through_;
  std::map<AttemptId, Tombstone> entries_;
};

}  // namespace kvferry::core
