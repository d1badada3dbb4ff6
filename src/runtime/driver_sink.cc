#include "runtime/driver_sink.h"

#include <utility>

#include "base/clock.h"
#include "wire/codec.h"

namespace kvferry::runtime {
namespace {

constexpr std::uint32_t kNotesPerSecond = 20;

// Failures that say that the registry's answer was, or has become, wrong.
bool concerns_address(FailureCode code) {
  return code == FailureCode::kPeerUnreachable || code == FailureCode::kPeerLost ||
         code == FailureCode::kPeerRestarted || code == FailureCode::kSessionRefused ||
         code == FailureCode::kEngineEpochMismatch || code == FailureCode::kShuttingDown;
}

}  // namespace

void DriverSink::publish_status(std::uint64_t owner, KvPoll status) {
  if (StatusCell* const cell = parts_.table.find_held(owner); cell != nullptr) {
    if (cell->advance(status)) {
      note_changed(owner);
    }
  }
}

void DriverSink::note_changed(std::uint64_t owner) {
  news_ = true;
  changed_.push_back(owner);
}

bool DriverSink::take_news() {
  if (!changed_.empty()) {
    parts_.table.changes().add(changed_);
    changed_.clear();
  }
  return std::exchange(news_, false);
}

bool DriverSink::publish_terminal(std::uint64_t owner, KvPoll status,
                                  const std::optional<Failure>& failure) {
  if (failure && concerns_address(failure->code)) {
    // Before the caller sees it, so that the room it opens next is resolved anew.
    parts_.resolver.invalidate(failure->peer);
  }
  // No cell: the caller cleared the handle, which had ended the room first.
  StatusCell* const cell = parts_.table.find_held(owner);
  if (cell == nullptr || !cell->end(status, failure)) {
    return false;
  }
  note_changed(owner);
  return true;
}

void DriverSink::publish_attempt(core::ReceiverId receiver, AttemptId attempt) {
  if (StatusCell* const cell = parts_.table.find_held(receiver.value()); cell != nullptr) {
    cell->attempt.store(attempt.value(), std::memory_order_release);
  }
}

void DriverSink::publish_prefix(SenderId sender, std::uint32_t decode_prefix_pages) {
  if (StatusCell* const cell = parts_.table.find_held(sender.value()); cell != nullptr) {
    cell->prefix_pages.store(decode_prefix_pages, std::memory_order_release);
  }
}

void DriverSink::publish_landed_bytes(SenderId sender, std::uint64_t bytes) {
  if (StatusCell* const cell = parts_.table.find_held(sender.value()); cell != nullptr) {
    cell->landed_bytes.store(bytes, std::memory_order_release);
  }
}

void DriverSink::release_pages(core::ReleasePages released) {
  parts_.releases.push(ReleasedPages{released.owner, released.room, released.binding,
                                     std::move(released.pages), released.aux_slot,
                                     std::move(released.state_slots)});
  news_ = true;
}

void DriverSink::resolve_prefill(core::ResolvePrefill query) { parts_.resolver.resolve(query); }

void DriverSink::doubt(PeerId peer) {
  const auto found = dialled_.find(peer);
  parts_.resolver.invalidate(found == dialled_.end() ? std::string() : found->second);
}

void DriverSink::dial_peer(core::DialPeer dial) {
  dialled_[dial.peer] = dial.address.endpoint;
  const Status status = parts_.link.dial(dial.peer, dial.address);
  if (!status) {
    note(fmt::format("dialling {}: {}", dial.address.endpoint, status.error().what));
    caused_.emplace_back(core::LinkDown{dial.peer, core::LinkDown::Why::kClosed});
  }
}

void DriverSink::hang_up(PeerId peer) {
  parts_.link.hang_up(peer);
  doubt(peer);
  dialled_.erase(peer);
}

void DriverSink::send_frame(core::SendFrame send) {
  const net::LinkSend sent =
      parts_.link.send(send.peer, wire::encode(send.frame),
                       send.urgent ? net::LinkPriority::kUrgent : net::LinkPriority::kNormal);
  switch (sent) {
    case net::LinkSend::kQueued:
      ++frames_sent_;
      return;
    case net::LinkSend::kQueueFull:
      count("control_queue_full", 1);
      return;
    case net::LinkSend::kNotConnected:
      count("frames_not_connected", 1);
      return;
  }
}

Status DriverSink::open_data_session(core::OpenDataSession open) {
  const std::vector<std::string_view> offers = parts_.transport.offers();
  if (std::find(offers.begin(), offers.end(), open.transport) == offers.end()) {
    return fail(FailureCode::kSessionRefused,
                fmt::format("transport {} was chosen, this side runs {}", open.transport,
                            parts_.transport.properties().name));
  }
  data_plane::SessionLink link;
  link.epoch = open.epoch;
  link.local_role = open.local_role;
  link.secret = open.secret;
  link.peer_blob = std::move(open.peer_blob);
  for (const RegionShape& region : open.peer_regions) {
    link.peer_item_bytes.push_back(region.item_bytes);
    link.peer_item_counts.push_back(region.item_count);
  }
  return parts_.transport.open_session(link);
}

void DriverSink::close_data_session(SessionEpoch epoch) { parts_.transport.close_session(epoch); }

void DriverSink::open_grant(core::OpenGrant open) {
  std::vector<data_plane::SlotGrant> slots;
  slots.reserve(open.slots.size());
  for (core::GrantedSlot& slot : open.slots) {
    slots.push_back({slot.session, slot.slot, slot.generation, std::move(slot.extent)});
  }
  parts_.transport.open_grant(open.grant, std::move(slots));
}

void DriverSink::fence_grant(GrantId grant) { parts_.transport.fence(grant); }

void DriverSink::post_writes(core::PostWrites post) {
  parts_.transport.post(post.session, post.writes);
}

void DriverSink::give_up_writes(core::GiveUpWrites give_up) {
  parts_.transport.give_up(give_up.session, give_up.slot, give_up.generation);
}

Status DriverSink::inspect_aux(std::uint32_t aux_slot, RoomId room, Binding binding) {
  return parts_.aux.read(aux_slot, room, binding).map([](const AuxRecord&) {});
}

void DriverSink::count(std::string_view counter, std::uint64_t by) {
  const auto found = counters_.find(counter);
  if (found != counters_.end()) {
    found->second += by;
  } else {
    counters_.emplace(counter, by);
  }
}

void DriverSink::note(std::string_view text) {
  const Instant now = monotonic_now();
  if (now >= note_window_ + std::chrono::seconds(1)) {
    if (notes_suppressed_ > 0) {
      log::info("{} further lines were left out", notes_suppressed_);
    }
    note_window_ = now;
    notes_in_window_ = 0;
    notes_suppressed_ = 0;
  }
  if (notes_in_window_ >= kNotesPerSecond) {
    ++notes_suppressed_;
    return;
  }
  ++notes_in_window_;
  log::info("{}", text);
}

}  // namespace kvferry::runtime
