// Which granted pages, aux slots and state slots belong to which grant. Granted pages are exclusive
// (rule 4); pages of failed attempts that are not yet safe are the quarantine, which has a cap
// (rule 6).
#pragma once

#include <cstdint>
#include <vector>

#include "base/instant.h"
#include "core/flat_map.h"
#include "core/guards.h"
#include "core/number_map.h"
#include "kvferry/ids.h"
#include "kvferry/status.h"

namespace kvferry::core {

struct GrantedPages {
  std::vector<PageIndex> pages;
  std::int64_t aux_slot = -1;
  std::vector<std::uint32_t> state_slots;
};

class PageLedger {
 public:
  explicit PageLedger(Guards guards = {}) : guards_(guards) {}

  // Fails with kInvalidArgument, and changes nothing, when a page or slot is in a grant already.
  // The pages are of this rank's pool: memory is kept for each number up to the largest.
  Status grant(GrantId grant, GrantedPages granted);
  // Those of the pages and slots that are in no grant, each once, however often it is listed.
  GrantedPages not_granted(const GrantedPages& wanted) const;
  // The attempt failed: from here on its pages count as quarantine.
  void revoke(GrantId grant, Instant now);
  // The pages leave their grant; the caller's again, on Success too.
  GrantedPages release(GrantId grant);

  bool holds(GrantId grant) const { return grants_.contains(grant); }
  std::size_t grants() const { return grants_.size(); }
  std::uint64_t quarantined_pages() const { return quarantined_pages_; }
  // How long the grant that was revoked first has been waiting; 0 when none waits.
  std::int64_t oldest_quarantine_ms(Instant now) const;
  std::uint64_t granted_total() const { return granted_total_; }
  std::uint64_t returned_total() const { return returned_total_; }
  // granted = returned + held, and every page of a grant is indexed under it.
  bool is_consistent() const;

 private:
  GrantId holder_of(PageIndex page) const {
    return page.value() < by_page_.size() ? by_page_[page.value()] : GrantId{};
  }

  struct Entry {
    GrantedPages granted;
    bool revoked = false;
  };
  Guards guards_;
  NumberMap<GrantId, Entry> grants_;
  std::vector<GrantId> by_page_;  // 0: in no grant
  std::uint64_t indexed_pages_ = 0;
  FlatSet<std::int64_t> aux_slots_;
  FlatSet<std::uint32_t> state_slots_;
  FlatMap<GrantId, Instant> revoked_at_;
  std::uint64_t quarantined_pages_ = 0;
  std::uint64_t granted_total_ = 0;
  std::uint64_t returned_total_ = 0;
};

}  // namespace kvferry::core
