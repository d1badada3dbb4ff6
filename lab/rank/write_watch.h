// What the transport of a rank of a drill is at as a source: which writes it was given and have not
// ended, in the journal and by number; and one write that ends in an error while the others go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "data_plane/transport.h"
#include "lab/rank/journal.h"

namespace kvferry::lab {

// Threads: any; completions are passed on with the lock held, so that what the core hears of one
// ticket stays in order. The sink and the journal outlive it.
class WriteWatch {
 public:
  explicit WriteWatch(Journal& journal) : journal_(journal) {}

  // --- for the transport around ---
  void set_sink(data_plane::CompletionSink& sink);
  void set_regions(std::span<const Region> regions);
  // Before the transport has them.
  void posted(SessionEpoch session, std::span<const layout::Write> writes);
  // Passed on, but for the one that was failed: that is quiet now.
  void completed(std::span<const layout::WriteCompletion> completions);
  void quiet(SessionEpoch session, std::span<const TicketId> tickets);

  // --- for the rig ---
  // The latest write that runs has an unknown outcome from now on, whatever becomes of its bytes,
  // and is quiet once the transport is through with it (D2). False: none runs.
  bool fail_one();
  // Writes that read their source: neither landed, refused nor quiet.
  std::uint64_t running() const;

 private:
  struct Grant {  // as the writer names it
    SessionEpoch session;
    GrantSlot slot;
    Generation generation;
    friend auto operator<=>(const Grant&, const Grant&) = default;
  };
  struct Counts {
    std::int64_t settled = 0;
    std::int64_t unknown = 0;
    std::int64_t quiet = 0;
  };
  struct Ticket {
    Grant grant;
    bool is_unknown = false;  // the core was told so
    bool is_failed = false;   // by fail_one()
  };
  using TicketName = std::pair<SessionEpoch, TicketId>;

  router::JsonObject line_of(std::string_view at, const Grant& grant) const;
  void note(const std::map<Grant, Counts>& counts);

  Journal& journal_;
  mutable std::mutex mutex_;
  data_plane::CompletionSink* sink_ = nullptr;
  std::vector<std::uint64_t> page_bytes_;  // by region; 0: it has no pages
  std::map<TicketName, Ticket> tickets_;
};

}  // namespace kvferry::lab
