// A run whose source is killed or stopped in the middle: the target fences what is open when a lane
// breaks or nothing has landed for the writes' deadline, and then watches the released pages.
#pragma once

#include "bench/transfer/released_pages.h"

namespace kvferry::bench {

class LostRun {
 public:
  // The first grants are open already.
  explicit LostRun(TransportTarget& target) : target_(target), released_(target) {}
  Result<RunResult> run(Channel& source);

 private:
  // Fills and fences grants until the source is lost.
  Status until_lost(Channel& source);
  // Until every grant's fence is done; when that was.
  Result<Instant> fence_all();

  TransportTarget& target_;
  ReleasedPages released_;
  std::uint64_t releases_ = 0;
};

}  // namespace kvferry::bench
