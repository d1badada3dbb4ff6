#include "room_node.h"

#include <algorithm>
#include <utility>

#include "target.h"

namespace kvferry::fuzz {
namespace {

constexpr std::uint32_t kPages = 16;
constexpr std::uint32_t kSlots = 4;
// More steps than this at one instant are a livelock.
constexpr int kMostStepsAtOnce = 200;

// Short, so that every deadline of the library passes within one input.
Options short_options() {
  Options options;
  options.bootstrap_timeout_ms = 500;
  options.input_timeout_ms = 500;
  options.transfer_timeout_ms = 500;
  options.unopened_room_timeout_ms = 500;
  options.fence_timeout_ms = 200;
  options.source_hold_timeout_ms = 200;
  options.heartbeat_interval_ms = 100;
  options.heartbeat_timeout_ms = 400;
  options.session_grace_ms = 300;
  options.hello_timeout_ms = 300;
  options.redial_max_ms = 400;
  options.retransmit_min_ms = 50;
  options.retransmit_max_ms = 400;
  // Small tables, so that their ends are reached.
  options.max_rooms = 6;
  options.max_peers = 4;
  options.max_grant_slots = 4;
  options.max_tombstones = 8;
  options.max_unopened_grants = 4;
  options.max_ended_senders = 4;
  options.quarantine_max_pages = 8;
  options.send_window_messages = 16;
  options.max_queued_messages = 32;
  return options;
}

LayoutShape shape_of(std::uint32_t tp_rank, std::uint32_t tp_size) {
  constexpr std::uint32_t kHeads = 2;
  LayoutShape shape;
  shape.model_fingerprint = "model";
  shape.page_size_tokens = 2;
  shape.total_layers = 1;
  shape.total_kv_heads = kHeads;
  shape.head_dim = 2;
  shape.dtype = DType::kU8;
  shape.rank = {tp_rank, tp_size, 0, 1, 0, 1};
  shape.layers = {0, 1};
  shape.heads = {tp_rank * kHeads / tp_size, (tp_rank + 1) * kHeads / tp_size};
  const std::uint64_t item_bytes = std::uint64_t{4} * (shape.heads.end - shape.heads.begin);
  shape.regions = {{RegionKind::kKey, 0, item_bytes, kPages, MemoryKind::kHost},
                   {RegionKind::kValue, 0, item_bytes, kPages, MemoryKind::kHost},
                   {RegionKind::kAux, 0, kAuxRecordBytes, kSlots, MemoryKind::kHost},
                   {RegionKind::kState, 0, 5, kSlots, MemoryKind::kHost}};
  return shape;
}

wire::Introduction introduce(const std::string& name, Role role, std::uint32_t tp_rank,
                             std::uint32_t tp_size, const Options& options) {
  wire::Introduction self;
  self.role = role;
  self.instance = role == Role::kPrefill ? "prefill" : "decode";
  self.control_endpoint = name + ":1";
  self.incarnation = Incarnation{1, tp_rank};
  self.engine_epoch = EngineEpoch(role == Role::kPrefill ? 7 : 8);
  self.layout = shape_of(tp_rank, tp_size);
  self.limits = {options.max_grant_slots, options.control_message_max_bytes,
                 options.send_window_messages};
  self.transports = {{"fake", {}}};
  return self;
}

Failure caller_aborted() {
  return {FailureCode::kAborted, FailureWhere::kLocal, "the client went away", {}, -1};
}

}  // namespace

RoomNode::RoomNode(std::string name, Role role, std::uint32_t tp_rank, std::uint32_t tp_size,
                   core::TransportClass transport_class)
    : key_("key of " + name),
      transport_class_(transport_class),
      prng_(1 + static_cast<std::uint64_t>(role) * 16 + tp_rank),
      self_(introduce(name, role, tp_rank, tp_size, short_options())) {
  core::ProtocolConfig config;
  config.options = short_options();
  config.self = self_;
  config.transport_class = transport_class;
  protocol_ = role == Role::kPrefill ? core::make_prefill_protocol(std::move(config), *this)
                                     : core::make_decode_protocol(std::move(config), *this);
}

void RoomNode::step(Instant now, std::vector<core::Event> events) {
  int steps = 0;
  do {
    protocol_->step(now, events, *this);
    events.clear();
    for (const std::string& broken : protocol_->check_invariants()) {
      require(false, broken);
    }
    require(++steps < kMostStepsAtOnce, "L5: the timers come to rest");
  } while (protocol_->next_deadline() <= now);
}

void RoomNode::step(Instant now, core::Event event) {
  std::vector<core::Event> events;
  events.push_back(std::move(event));
  step(now, std::move(events));
}

core::PeerRow RoomNode::row() const {
  return {PeerAddress{self_.control_endpoint, key_}, self_.instance, self_.layout.rank,
          self_.engine_epoch};
}

// --- the caller's side ---

std::vector<PageIndex> RoomNode::take_pages(Cell& cell, std::uint32_t count) {
  std::vector<PageIndex> pages;
  for (std::uint32_t page = 0; page < kPages && pages.size() < count; ++page) {
    if (pages_out_.insert(PageIndex(page)).second) {
      pages.emplace_back(page);
    }
  }
  cell.pages.insert(cell.pages.end(), pages.begin(), pages.end());
  return pages;
}

std::uint64_t RoomNode::open(Instant now, RoomId room, Binding binding) {
  const std::uint64_t owner = next_owner_++;
  cells_[owner];
  if (role() == Role::kPrefill) {
    step(now, core::SenderOpened{SenderId(owner), room, binding});
  } else {
    step(now, core::ReceiverOpened{core::ReceiverId(owner), room, binding});
  }
  return owner;
}

void RoomNode::name_prefill(Instant now, std::uint64_t owner) {
  if (!std::exchange(cells_.at(owner).initialized, true)) {
    step(now, core::PrefillNamed{core::ReceiverId(owner), "registry:1", "prefill", 0});
  }
}

void RoomNode::give_metadata(Instant now, std::uint64_t owner, std::uint32_t pages,
                             std::uint32_t expected_grants) {
  Cell& cell = cells_.at(owner);
  if (cell.cleared || std::exchange(cell.given, true)) {
    return;
  }
  const auto slot = static_cast<std::uint32_t>(owner % kSlots);
  step(now,
       core::MetadataGiven{
           core::ReceiverId(owner), take_pages(cell, pages), slot, {slot}, 0, expected_grants});
}

void RoomNode::init_sender(Instant now, std::uint64_t owner, std::uint32_t pages) {
  Cell& cell = cells_.at(owner);
  if (!cell.cleared && !std::exchange(cell.initialized, true)) {
    step(now, core::SenderInitialized{SenderId(owner), pages,
                                      static_cast<std::int64_t>(owner % kSlots)});
  }
}

void RoomNode::send(Instant now, std::uint64_t owner, std::uint32_t pages) {
  Cell& cell = cells_.at(owner);
  if (!cell.cleared && cell.initialized) {
    step(now, core::ChunkGiven{SenderId(owner),
                               take_pages(cell, pages),
                               {static_cast<std::uint32_t>(owner % kSlots)}});
  }
}

void RoomNode::abort(Instant now, std::uint64_t owner) {
  Cell& cell = cells_.at(owner);
  if (is_terminal(cell.status)) {
    return;
  }
  cell.status = KvPoll::kFailed;  // the caller won the compare-and-swap
  if (role() == Role::kPrefill) {
    step(now, core::SenderAborted{SenderId(owner), caller_aborted()});
  } else {
    step(now, core::ReceiverAborted{core::ReceiverId(owner), caller_aborted()});
  }
}

void RoomNode::clear(Instant now, std::uint64_t owner) {
  Cell& cell = cells_.at(owner);
  if (std::exchange(cell.cleared, true)) {
    return;  // A handle goes once.
  }
  const bool unread = cell.status == KvPoll::kSuccess;
  if (!is_terminal(cell.status)) {
    cell.status = KvPoll::kFailed;
  }
  if (role() == Role::kPrefill) {
    step(now, core::SenderCleared{SenderId(owner)});
  } else {
    step(now, core::ReceiverCleared{core::ReceiverId(owner), unread});
  }
}

// --- ActionSink ---

void RoomNode::publish_status(std::uint64_t owner, KvPoll status) {
  Cell& cell = cells_.at(owner);
  if (!is_terminal(cell.status)) {
    require(!is_terminal(status) && status > cell.status, "S5: a status never goes back");
    cell.status = status;
  }
}

bool RoomNode::publish_terminal(std::uint64_t owner, KvPoll status,
                                const std::optional<Failure>& failure) {
  Cell& cell = cells_.at(owner);
  require(is_terminal(status), "a terminal status is one");
  require(failure.has_value() == (status == KvPoll::kFailed), "a failure has a cause");
  if (is_terminal(cell.status)) {
    return false;
  }
  cell.status = status;
  if (status == KvPoll::kSuccess && role() == Role::kDecode) {
    expect_closed(cell.pages, "S1: Success of a grant that is still open");
  }
  return true;
}

void RoomNode::expect_closed(const std::vector<PageIndex>& pages, const char* when) const {
  if (!transport_class_.local_fence) {
    return;
  }
  for (const auto& [grant, granted] : open_grants_) {
    for (const PageIndex page : pages) {
      require(std::ranges::find(granted, page) == granted.end(), when);
    }
  }
}

void RoomNode::release_pages(core::ReleasePages released) {
  for (const PageIndex page : released.pages) {
    require(pages_out_.erase(page) == 1, "a page comes back once");
  }
  if (role() == Role::kDecode) {
    expect_closed(released.pages, "S1: release of a grant that is still open");
  }
}

void RoomNode::dial_peer(core::DialPeer dial) {
  peers[dial.peer] = dial.address;
  dials.push_back(std::move(dial));
}

Status RoomNode::open_data_session(core::OpenDataSession open) {
  sessions.push_back(open.epoch);
  peer_regions_[open.epoch] = open.peer_regions;
  return {};
}

void RoomNode::open_grant(core::OpenGrant open) {
  grants.push_back(open.grant);
  std::vector<PageIndex>& pages = open_grants_[open.grant];
  for (const core::GrantedSlot& slot : open.slots) {
    pages.assign(slot.extent.pages().begin(), slot.extent.pages().end());
    slots.push_back(slot);
  }
}

void RoomNode::fence_grant(GrantId grant) {
  require(fenced_.insert(grant).second, "a grant is fenced once");
  fences.push_back(grant);
}

void RoomNode::post_writes(core::PostWrites post) {
  const auto target = peer_regions_.find(post.session);
  require(target != peer_regions_.end(), "S8: writes go to a session that was opened");
  for (const layout::Write& write : post.writes) {
    require(write.target_region.value() < target->second.size() &&
                write.source_region.value() < self_.layout.regions.size(),
            "S8: a write names regions that exist");
    const RegionShape& to = target->second[write.target_region.value()];
    const RegionShape& from = self_.layout.regions[write.source_region.value()];
    require(write.target_item < to.item_count && write.length <= to.item_bytes &&
                write.offset_in_item <= to.item_bytes - write.length,
            "S8: a write stays within its target region");
    require(write.source_offset + write.length <= from.item_bytes * from.item_count,
            "S8: a write stays within its source region");
    writes.push_back(write);
    write_sessions.push_back(post.session);
    posted.push_back(write);
  }
}

// Every second slot holds another room's record.
Status RoomNode::inspect_aux(std::uint32_t aux_slot, RoomId, Binding) {
  return aux_slot % 2 == 0 ? fail(FailureCode::kAuxInvalid, "the aux record is another room's")
                           : Status{};
}

}  // namespace kvferry::fuzz
