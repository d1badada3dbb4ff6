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
    const std::size_t page = granted.pages[i].value();
    by_page_.resize(std::max(by_page_.size(), page + 1));
    GrantId& holder = by_page_[page];
    const bool own = holder == grant;
    if (holder != GrantId{} && (own || exclusive)) {
      for (std::size_t undo = 0; undo < i; ++undo) {
        by_page_[granted.pages[undo].value()] = {};
        --indexed_pages_;
      }
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("page {} is {}", page, own ? "listed twice" : "in another grant"));
    }
    indexed_pages_ += holder == GrantId{} ? 1 : 0;
    holder = grant;
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
    if (holder_of(page) == GrantId{} && seen.insert(page).second) {
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
  Entry* entry = grants_.find(grant);
  if (entry != nullptr && !entry->revoked) {
    entry->revoked = true;
    quarantined_pages_ += entry->granted.pages.size();
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
  Entry* entry = grants_.find(grant);
  if (entry == nullptr) {
    return {};
  }
  GrantedPages granted = std::move(entry->granted);
  if (entry->revoked) {
    quarantined_pages_ -= granted.pages.size();
    revoked_at_.erase(grant);
  }
  grants_.erase(grant);
  for (const PageIndex page : granted.pages) {
    indexed_pages_ -= by_page_[page.value()] == GrantId{} ? 0 : 1;
    by_page_[page.value()] = {};
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
  bool is_indexed = true;
  grants_.for_each([&](GrantId grant, const Entry& entry) {
    held += entry.granted.pages.size();
    revoked += entry.revoked ? entry.granted.pages.size() : 0;
    is_indexed = is_indexed && std::ranges::all_of(entry.granted.pages, [&](PageIndex page) {
                   return holder_of(page) == grant;
                 });
  });
  return is_indexed && held == indexed_pages_ && granted_total_ == returned_total_ + held &&
         revoked == quarantined_pages_;
}

}  // namespace kvferry::core
