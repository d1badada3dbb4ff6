// Pages that a target took back and gave to a new owner, who wrote them: nobody may change them
// until they are looked at.
#pragma once

#include <cstdint>
#include <deque>

#include "bench/transfer/transport_target.h"

namespace kvferry::bench {

class ReleasedPages {
 public:
  explicit ReleasedPages(TransportTarget& target) : target_(target) {}

  // The new owner writes every byte of the grant's pages. Their fence is done.
  void hold(std::uint32_t index);
  // Looks at the grants for whose slots everything that was open at their release is over, or at
  // all of them, and gives them back to the plan.
  void look(bool at_all);

  std::uint64_t late_pages() const { return late_pages_; }
  std::uint64_t checked_pages() const { return checked_pages_; }

 private:
  struct Held {
    std::uint32_t index;       // of the plan's grants
    std::uint32_t until_salt;  // opened later than this one
  };

  static constexpr std::byte kOwnersByte{0xEE};

  template <typename Visit>
  void for_each_page(std::uint32_t index, Visit&& visit) const;

  TransportTarget& target_;
  std::deque<Held> held_;
  std::uint64_t late_pages_ = 0;
  std::uint64_t checked_pages_ = 0;
};

}  // namespace kvferry::bench
