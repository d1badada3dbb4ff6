#include "bench/transfer/released_pages.h"

#include <cstring>

namespace kvferry::bench {

void ReleasedPages::hold(std::uint32_t index) {
  for_each_page(index, [](std::span<std::byte> page) {
    std::memset(page.data(), static_cast<int>(kOwnersByte), page.size());
  });
  held_.push_back({index, target_.next_salt_ + 2 * target_.block_.grants_in_flight});
}

void ReleasedPages::look(bool at_all) {
  while (!held_.empty() && (at_all || target_.next_salt_ >= held_.front().until_salt)) {
    for_each_page(held_.front().index, [&](std::span<std::byte> page) {
      ++checked_pages_;
      const bool is_untouched =
          page[0] == kOwnersByte && std::memcmp(page.data(), page.data() + 1, page.size() - 1) == 0;
      late_pages_ += is_untouched ? 0 : 1;
    });
    target_.free_.push_back(held_.front().index);
    held_.pop_front();
  }
}

template <typename Visit>
void ReleasedPages::for_each_page(std::uint32_t index, Visit&& visit) const {
  const Block& block = target_.block_;
  for (std::uint32_t i = 0; i < block.pages_per_grant; ++i) {
    for (std::uint32_t region = 0; region < block.region_count; ++region) {
      visit(target_.page_bytes(region, target_.order_[index * block.pages_per_grant + i]));
    }
  }
}

}  // namespace kvferry::bench
