#include "data_plane/memory/memory_transport.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "data_plane/host_regions.h"
#include "data_plane/page_digest.h"

namespace kvferry::data_plane {
namespace {

constexpr std::uint64_t kCopyBytes = 4U << 10;  // small, so that fences meet copies in mid-way

}  // namespace

MemoryTransport::MemoryTransport(const TransportConfig& config, CompletionSink& sink,
                                 std::shared_ptr<MemoryFabric> fabric)
    : config_(config), sink_(sink), uses_(sink), fabric_(std::move(fabric)) {
  if (config_.role == Role::kDecode) {
    endpoint_ = std::make_shared<MemoryFabric::Endpoint>();
    endpoint_->gate = std::make_shared<ReceiveGate>(config_.max_grant_slots, uses_);
    std::lock_guard lock(fabric_->mutex_);
    endpoint_id_ = fabric_->next_endpoint_++;
    fabric_->endpoints_.emplace(endpoint_id_, endpoint_);
    return;
  }
  for (std::uint32_t i = 0; i < std::max(1U, config_.lanes_per_peer); ++i) {
    threads_.emplace_back([this] { run(); });
  }
}

MemoryTransport::~MemoryTransport() { stop(); }

TransportProperties MemoryTransport::properties() const { return {"memory", true, true, false}; }

std::vector<std::uint8_t> MemoryTransport::local_blob() const {
  std::vector<std::uint8_t> blob(sizeof endpoint_id_);
  std::memcpy(blob.data(), &endpoint_id_, sizeof endpoint_id_);
  return blob;
}

Status MemoryTransport::register_regions(std::span<const Region> regions) {
  if (auto checked = check_host_regions(regions, "memory"); !checked) return checked;
  bool has_sessions = endpoint_ && endpoint_->gate->has_sessions();
  {
    std::lock_guard lock(fabric_->mutex_);
    has_sessions = has_sessions || !sessions_.empty();
  }
  if (auto taken = uses_.register_regions(regions, has_sessions); !taken) return taken;
  regions_.assign(regions.begin(), regions.end());
  if (endpoint_) endpoint_->gate->register_regions(regions);
  return {};
}

Status MemoryTransport::unregister_regions(Unregister how) { return uses_.unregister_regions(how); }

std::vector<TransportCounter> MemoryTransport::counters() const {
  if (!endpoint_) return {};
  return endpoint_->gate->counters();
}

Status MemoryTransport::open_session(const SessionLink& link) {
  if (endpoint_) {
    if (endpoint_->gate->open_session(link.epoch)) return {};
    return fail(FailureCode::kWrongState, "a session of this epoch is open already");
  }
  std::uint64_t endpoint = 0;
  if (link.peer_blob.size() != sizeof endpoint) {
    return fail(FailureCode::kMalformed, "the peer's memory blob can't be used",
                FailureWhere::kPeer);
  }
  std::memcpy(&endpoint, link.peer_blob.data(), sizeof endpoint);
  std::lock_guard lock(fabric_->mutex_);
  if (!sessions_.emplace(link.epoch, endpoint).second) {
    return fail(FailureCode::kWrongState, "a session of this epoch is open already");
  }
  return {};
}

void MemoryTransport::close_session(SessionEpoch session) {
  if (endpoint_) {
    endpoint_->gate->close_session(session);
    return;
  }
  News news;
  {
    std::lock_guard lock(fabric_->mutex_);
    sessions_.erase(session);
    for (const TicketPtr& ticket : pending_) {
      if (ticket->session != session) continue;
      ticket->cancelled = true;
      drop_queued(ticket);
      end_as_unknown(*ticket, news);
    }
    forget_ended();
    fabric_->changed_.notify_all();
    tell(news);
  }
}

void MemoryTransport::open_grant(GrantId grant, std::vector<SlotGrant> slots) {
  if (!endpoint_) return;
  if (!uses_.begin_grant(grant)) slots.clear();  // no write of it may land
  endpoint_->gate->open_grant(grant, std::move(slots));
}

void MemoryTransport::fence(GrantId grant) {
  if (endpoint_) {
    endpoint_->gate->fence(grant);
  } else {
    sink_.fence_done(grant);
  }
}

void MemoryTransport::post(SessionEpoch session, std::span<const layout::Write> writes) {
  News news;
  {
    std::lock_guard lock(fabric_->mutex_);
    const auto found = sessions_.find(session);
    const Instant deadline = monotonic_now() + milliseconds(config_.write_timeout_ms);
    if (!uses_.begin_writes(writes.size())) {
      for (const layout::Write& write : writes) {
        news.completions.push_back({session, write.ticket, layout::WriteOutcome::kRefused});
      }
      // Past the count of uses, in which they are not.
      sink_.writes_completed(news.completions);
      return;
    }
    for (const layout::Write& write : writes) {
      if (found == sessions_.end() || source_address(write) == nullptr) {
        news.completions.push_back({session, write.ticket, layout::WriteOutcome::kRefused});
        continue;
      }
      auto ticket = std::make_shared<Ticket>();
      ticket->session = session;
      ticket->endpoint = found->second;
      ticket->write = write;
      ticket->from = source_address(write);
      ticket->deadline = deadline;
      ticket->copies = fabric_->duplicate_writes_ ? 2 : 1;
      for (std::uint32_t i = 0; i < ticket->copies; ++i) queue_.push_back(ticket);
      pending_.push_back(std::move(ticket));
    }
    fabric_->changed_.notify_all();
    tell(news);
  }
}

void MemoryTransport::give_up(SessionEpoch session, GrantSlot slot, Generation generation) {
  News news;
  {
    std::lock_guard lock(fabric_->mutex_);
    for (const TicketPtr& ticket : pending_) {
      if (ticket->session != session || ticket->write.slot != slot ||
          ticket->write.generation > generation) {
        continue;
      }
      ticket->given_up = true;
      const bool was_carried = ticket->carried != 0 || ticket->has_result;
      drop_queued(ticket);
      if (was_carried || ticket->is_told) continue;
      ticket->is_told = true;
      news.completions.push_back({session, ticket->write.ticket, layout::WriteOutcome::kRefused});
    }
    forget_ended();
    fabric_->changed_.notify_all();
    tell(news);
  }
}

void MemoryTransport::stop() {
  if (endpoint_) {
    {
      std::unique_lock lock(fabric_->mutex_);
      endpoint_->closing = true;
      fabric_->endpoints_.erase(endpoint_id_);
      fabric_->changed_.notify_all();
      fabric_->changed_.wait(lock, [this] { return endpoint_->users == 0; });
    }
    endpoint_->gate->stop();
    return;
  }
  News news;
  {
    std::lock_guard lock(fabric_->mutex_);
    stopping_ = true;
    for (const TicketPtr& ticket : pending_) {
      ticket->cancelled = true;
      drop_queued(ticket);
      end_as_unknown(*ticket, news);
    }
    fabric_->changed_.notify_all();
    tell(news);
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

const std::byte* MemoryTransport::source_address(const layout::Write& write) const {
  if (write.source_region.value() >= regions_.size()) return nullptr;
  const Region& region = regions_[write.source_region.value()];
  const std::uint64_t bytes = region.item_bytes * region.item_count;
  if (write.source_offset > bytes || write.length > bytes - write.source_offset) return nullptr;
  return region.base + write.source_offset;
}

void MemoryTransport::run() {
  Readers readers;
  std::unique_lock lock(fabric_->mutex_);
  for (;;) {
    News news;
    expire(monotonic_now(), news);
    tell(news);
    if (TicketPtr ticket = take_next()) {
      std::shared_ptr<MemoryFabric::Endpoint> endpoint;
      const auto found = fabric_->endpoints_.find(ticket->endpoint);
      if (found != fabric_->endpoints_.end()) {
        endpoint = found->second;
        ++endpoint->users;
        if (!readers.contains(ticket->endpoint)) used_gates_.push_back(endpoint->gate);
      }
      lock.unlock();
      WriteResult result = WriteResult::kNotKnown;
      if (endpoint) {
        auto& reader = readers[ticket->endpoint];
        if (!reader) reader = std::make_unique<ReceiveGate::Reader>(*endpoint->gate);
        result = carry(*ticket, *endpoint, *reader, news);
      }
      lock.lock();
      if (endpoint) --endpoint->users;
      finish(ticket, result, news);
      tell(news);
      fabric_->changed_.notify_all();
      continue;
    }
    if (stopping_) return;
    Instant next = Instant::max();
    for (const TicketPtr& waiting : pending_) {
      if (!waiting->is_told) next = std::min(next, waiting->deadline);
    }
    if (next == Instant::max()) {
      fabric_->changed_.wait(lock);
    } else {
      fabric_->changed_.wait_for(lock, std::max(Duration(0), next - monotonic_now()));
    }
  }
}

MemoryTransport::TicketPtr MemoryTransport::take_next() {
  if (queue_.empty() || fabric_->hold_writes_) return nullptr;
  const std::size_t index = fabric_->reorder_writes_ ? fabric_->prng_.below(queue_.size()) : 0;
  TicketPtr ticket = queue_[index];
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(index));
  ++ticket->carried;
  if (fabric_->altered_copies_ != 0) {
    --fabric_->altered_copies_;
    ticket->is_altered = true;
  }
  return ticket;
}

// Copies as a receiving thread of the target does, without the fabric's lock.
WriteResult MemoryTransport::carry(Ticket& ticket, MemoryFabric::Endpoint& endpoint,
                                   ReceiveGate::Reader& reader, News& news) {
  const auto slots = endpoint.gate->find_session(ticket.session);
  if (!slots) return WriteResult::kRefused;
  const layout::Write& write = ticket.write;
  const IncomingWrite incoming{write.ticket, write.target_region, write.target_item,
                               write.offset_in_item, write.length};
  IncomingFrame frame;
  const std::byte* from = ticket.from;
  std::vector<std::uint64_t> digests;
  if (config_.page_digests) digests.push_back(page_digest({from, write.length}));
  frame.begin(reader, slots, write.slot, write.generation, std::span(&incoming, 1), digests);
  std::uint64_t moved = 0;
  bool lost = false;
  while (!frame.payload_complete() && !lost) {
    const std::uint64_t stop_at = moved < write.length / 2 ? write.length / 2 : write.length;
    moved += static_cast<std::uint64_t>(
        frame.move_part(reader, [&](std::span<const iovec> parts) -> std::ptrdiff_t {
          const std::uint64_t bytes =
              std::min({std::uint64_t{parts.front().iov_len}, kCopyBytes, stop_at - moved});
          std::memcpy(parts.front().iov_base, from + moved, bytes);
          if (ticket.is_altered && moved == 0) *static_cast<char*>(parts.front().iov_base) ^= 1;
          return static_cast<std::ptrdiff_t>(bytes);
        }));
    if (moved == write.length / 2 && moved != 0) lost = !wait_out_stall(ticket, endpoint);
  }
  if (lost) {
    frame.abandon();
    news.lost_lanes.push_back(ticket.session);
    return slots->outcome_of(write.slot, write.generation, write.ticket)
        .value_or(WriteResult::kNotKnown);
  }
  frame.finish(!ticket.given_up);
  std::vector<WriteResult> results;
  std::unique_lock lock(fabric_->mutex_);
  fabric_->changed_.notify_all();
  // The first copy, if this is the second, is another thread's and ends without this one's help.
  fabric_->changed_.wait(lock, [&] { return frame.answers(results); });
  return results.front();
}

// False when the copy's lane is lost.
bool MemoryTransport::wait_out_stall(Ticket& ticket, MemoryFabric::Endpoint& endpoint) {
  std::unique_lock lock(fabric_->mutex_);
  if (!fabric_->stall_copies_) return true;
  const std::uint64_t breaks = fabric_->breaks_;
  ++fabric_->stalled_;
  fabric_->changed_.wait(lock, [&] {
    return !fabric_->stall_copies_ || fabric_->breaks_ != breaks || ticket.cancelled ||
           endpoint.closing;
  });
  --fabric_->stalled_;
  return fabric_->breaks_ == breaks && !ticket.cancelled && !endpoint.closing;
}

void MemoryTransport::finish(const TicketPtr& ticket, WriteResult result, News& news) {
  --ticket->carried;
  --ticket->copies;
  if (ticket->has_result && ticket->result != result) ++fabric_->differing_answers_;
  const bool is_first = !ticket->has_result;
  ticket->has_result = true;
  if (is_first) ticket->result = result;
  if (is_first && !ticket->is_told) {
    if (fabric_->dropped_answers_ != 0) {
      --fabric_->dropped_answers_;
    } else if (result == WriteResult::kTorn || result == WriteResult::kNotKnown) {
      end_as_unknown(*ticket, news);
    } else {
      ticket->is_told = true;
      news.completions.push_back({.session = ticket->session,
                                  .ticket = ticket->write.ticket,
                                  .outcome = result == WriteResult::kLanded
                                                 ? layout::WriteOutcome::kLanded
                                                 : layout::WriteOutcome::kRefused,
                                  .fenced = result == WriteResult::kFenced});
    }
  }
  tell_quiet_if_due(*ticket, news);
  forget_ended();
}

void MemoryTransport::drop_queued(const TicketPtr& ticket) {
  ticket->copies -= static_cast<std::uint32_t>(std::erase(queue_, ticket));
}

void MemoryTransport::end_as_unknown(Ticket& ticket, News& news) {
  if (!ticket.is_told) {
    ticket.is_told = true;
    ticket.is_quiet_due = true;
    news.completions.push_back({ticket.session, ticket.write.ticket, layout::WriteOutcome::kUnknown,
                                ticket.has_result && ticket.result == WriteResult::kTorn});
  }
  tell_quiet_if_due(ticket, news);
}

void MemoryTransport::tell_quiet_if_due(Ticket& ticket, News& news) {
  if (!ticket.is_quiet_due || ticket.copies != 0) return;
  ticket.is_quiet_due = false;
  news.quiet.push_back({ticket.session, ticket.write.ticket, layout::WriteOutcome::kUnknown});
}

void MemoryTransport::expire(Instant now, News& news) {
  for (const TicketPtr& ticket : pending_) {
    if (ticket->is_told || now < ticket->deadline) continue;
    drop_queued(ticket);
    end_as_unknown(*ticket, news);
  }
  forget_ended();
}

void MemoryTransport::forget_ended() {
  std::erase_if(pending_, [](const TicketPtr& ticket) {
    return ticket->is_told && !ticket->is_quiet_due && ticket->copies == 0;
  });
}

void MemoryTransport::tell(News& news) {
  if (!news.completions.empty()) uses_.writes_completed(news.completions);
  for (const WriteCompletion& quiet : news.quiet) {
    uses_.writes_quiet(quiet.session, std::span(&quiet.ticket, 1));
  }
  for (const SessionEpoch session : news.lost_lanes) {
    sink_.lane_failed(
        session,
        Failure{FailureCode::kPeerLost, FailureWhere::kPath, "the fabric broke a copy", {}, -1});
  }
  news = News{};
}

}  // namespace kvferry::data_plane
