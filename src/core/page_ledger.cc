#include "core/page_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

namespace kvferry::core {

Status PageLedger::grant(GrantId grant, GrantedPages granted) {
  const bool exclusive = guards_.has(Guard::kGrantedPagesExclusive);
  if (exclusive && granted.aux_slot >= 0 && aux_slots_.contains(granted.aux_slot)) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("aux slot {} is in another grant", granted.aux_slot));
  }
  for (const std::uint32_t slot : granted.state_slots) {
    if (exclusive && state_slots_.contains(slot)) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("state slot {} is in another grant", slot));
    }
  }
  for (std::size_t i = 0; i < granted.pages.size(); ++i) {
    const auto [where, added] = by_page_.emplace(granted.pages[i], grant);
    const bool own = where->second == grant;
    if (!added && (own || exclusive)) {
      for (std::size_t undo = 0; undo < i; ++undo) {
        by_page_.erase(granted.pages[undo]);
      }
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("page {} is {}", granted.pages[i].value(),
                              own ? "listed twice" : "in another grant"));
    }
  }
  if (granted.aux_slot >= 0) {
    aux_slots_.insert(granted.aux_slot);
  }
  state_slots_.insert(granted.state_slots.begin(), granted.state_slots.end());
  granted_total_ += granted.pages.size();
  grants_.emplace(grant, Entry{std::move(granted), false});
  return {};
}

GrantedPages PageLedger::not_granted(const GrantedPages& wanted) const {
  GrantedPages rest;
  std::unordered_set<PageIndex> seen;
  for (const PageIndex page : wanted.pages) {
    if (!by_page_.contains(page) && seen.insert(page).second) {
      rest.pages.push_back(page);
    }
  }
  rest.aux_slot = aux_slots_.contains(wanted.aux_slot) ? -1 : wanted.aux_slot;
  std::set<std::uint32_t> seen_slots;
  for (const std::uint32_t slot : wanted.state_slots) {
    if (!state_slots_.contains(slot) && seen_slots.insert(slot).second) {
      rest.state_slots.push_back(slot);
    }
  }
  return rest;
}

void PageLedger::revoke(GrantId grant, Instant now) {
  const auto found = grants_.find(grant);
  if (found != grants_.end() && !found->second.revoked) {
    found->second.revoked = true;
    quarantined_pages_ += found->second.granted.pages.size();
    revoked_at_.emplace(grant, now);
  }
}

std::int64_t PageLedger::oldest_quarantine_ms(Instant now) const {
  std::int64_t oldest = 0;
  for (const auto& [grant, since] : revoked_at_) {
    oldest = std::max<std::int64_t>(oldest, (now - since) / milliseconds(1));
  }
  return oldest;
}

GrantedPages PageLedger::release(GrantId grant) {
  const auto found = grants_.find(grant);
  if (found == grants_.end()) {
    return {};
  }
  GrantedPages granted = std::move(found->second.granted);
  if (found->second.revoked) {
    quarantined_pages_ -= granted.pages.size();
    revoked_at_.erase(grant);
  }
  grants_.erase(found);
  for (const PageIndex page : granted.pages) {
    by_page_.erase(page);
  }
  aux_slots_.erase(granted.aux_slot);
  for (const std::uint32_t slot : granted.state_slots) {
    state_slots_.erase(slot);
  }
  returned_total_ += granted.pages.size();
  return granted;
}

bool PageLedger::is_consistent() const {
  std::uint64_t held = 0;
  std::uint64_t revoked = 0;
  for (const auto& [grant, entry] : grants_) {
    held += entry.granted.pages.size();
    revoked += entry.revoked ? entry.granted.pages.size() : 0;
    for (const PageIndex page : entry.granted.pages) {
      const auto found = by_page_.find(page);
      if (found == by_page_.end() || found->second != grant) {
        return false;
      }
    }
  }
  return held == by_page_.size() && granted_total_ == returned_total_ + held &&
         revoked == quarantined_pages_;
}

}  // namespace kvferry::core
