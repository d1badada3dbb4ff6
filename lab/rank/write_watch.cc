#include "lab/rank/write_watch.h"

#include <algorithm>
#include <set>
#include <string>

namespace kvferry::lab {
namespace {

using layout::WriteCompletion;
using layout::WriteOutcome;

}  // namespace

void WriteWatch::set_sink(data_plane::CompletionSink& sink) {
  std::lock_guard lock(mutex_);
  sink_ = &sink;
}

void WriteWatch::set_regions(std::span<const Region> regions) {
  std::lock_guard lock(mutex_);
  page_bytes_.clear();
  for (const Region& region : regions) {
    page_bytes_.push_back(holds_pages(region.kind) ? region.item_bytes : 0);
  }
}

void WriteWatch::posted(SessionEpoch session, std::span<const layout::Write> writes) {
  std::lock_guard lock(mutex_);
  struct Batch {
    std::int64_t writes = 0;
    std::set<std::uint64_t> pages;
  };
  std::map<Grant, Batch> batches;
  for (const layout::Write& write : writes) {
    const Grant grant{session, write.slot, write.generation};
    tickets_[{session, write.ticket}] = Ticket{grant};
    Batch& batch = batches[grant];
    ++batch.writes;
    const std::size_t region = write.source_region.value();
    const std::uint64_t page_bytes = region < page_bytes_.size() ? page_bytes_[region] : 0;
    if (page_bytes > 0) batch.pages.insert(write.source_offset / page_bytes);
  }
  for (const auto& [grant, batch] : batches) {
    std::vector<std::string> pages;
    for (const std::uint64_t page : batch.pages) pages.push_back(std::to_string(page));
    journal_.append(line_of("posted", grant)
                        .integer("writes", batch.writes)
                        .raw("pages", router::json_array(pages)));
  }
}

void WriteWatch::completed(std::span<const WriteCompletion> completions) {
  std::lock_guard lock(mutex_);
  std::map<Grant, Counts> counts;
  std::vector<WriteCompletion> passed;
  std::vector<std::pair<SessionEpoch, TicketId>> quiet;
  for (const WriteCompletion& completion : completions) {
    const auto found = tickets_.find({completion.session, completion.ticket});
    if (found == tickets_.end()) {
      passed.push_back(completion);
      continue;
    }
    Ticket& ticket = found->second;
    const bool is_over = completion.outcome != WriteOutcome::kUnknown;
    if (ticket.is_failed && !is_over) continue;  // as the core knows; quiet comes by itself
    Counts& here = counts[ticket.grant];
    if (ticket.is_failed) {
      ++here.quiet;
      quiet.push_back(found->first);
    } else {
      ++(is_over ? here.settled : here.unknown);
      ticket.is_unknown = !is_over;
      passed.push_back(completion);
    }
    if (is_over) tickets_.erase(found);
  }
  note(counts);
  if (!passed.empty()) sink_->writes_completed(passed);
  for (const auto& [session, ticket] : quiet) sink_->writes_quiet(session, {&ticket, 1});
}

void WriteWatch::quiet(SessionEpoch session, std::span<const TicketId> tickets) {
  std::lock_guard lock(mutex_);
  std::map<Grant, Counts> counts;
  for (const TicketId ticket : tickets) {
    const auto found = tickets_.find({session, ticket});
    if (found == tickets_.end()) continue;
    ++counts[found->second.grant].quiet;
    tickets_.erase(found);
  }
  note(counts);
  sink_->writes_quiet(session, tickets);
}

bool WriteWatch::fail_one() {
  std::lock_guard lock(mutex_);
  const auto latest = std::ranges::max_element(tickets_, [](const auto& one, const auto& other) {
    return std::pair(!one.second.is_unknown, one.first.second) <
           std::pair(!other.second.is_unknown, other.first.second);
  });
  if (latest == tickets_.end() || latest->second.is_unknown) return false;
  auto& [name, ticket] = *latest;
  ticket.is_unknown = ticket.is_failed = true;
  note({{ticket.grant, Counts{.unknown = 1}}});
  const WriteCompletion failed{name.first, name.second, WriteOutcome::kUnknown};
  sink_->writes_completed({&failed, 1});
  return true;
}

std::uint64_t WriteWatch::running() const {
  std::lock_guard lock(mutex_);
  return tickets_.size();
}

router::JsonObject WriteWatch::line_of(std::string_view at, const Grant& grant) const {
  return Journal::line(at)
      .integer("session", static_cast<std::int64_t>(grant.session.value()))
      .integer("slot", grant.slot.value())
      .integer("generation", static_cast<std::int64_t>(grant.generation.value()));
}

void WriteWatch::note(const std::map<Grant, Counts>& counts) {
  for (const auto& [grant, here] : counts) {
    journal_.append(line_of("written", grant)
                        .integer("settled", here.settled)
                        .integer("unknown", here.unknown)
                        .integer("quiet", here.quiet));
  }
}

}  // namespace kvferry::lab
