#include "room_world.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry::fuzz {
namespace {

template <typename T>
T take_front(std::deque<T>& queue) {
  T front = std::move(queue.front());
  queue.pop_front();
  return front;
}

}  // namespace

RoomWorld::RoomWorld(Role subject, core::TransportClass transport_class)
    : subject_(subject == Role::kDecode ? 0 : 1), transport_class_(transport_class) {
  nodes_.push_back(std::make_unique<RoomNode>("decode", Role::kDecode, 0, 1, transport_class));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    nodes_.push_back(std::make_unique<RoomNode>("prefill" + std::to_string(rank), Role::kPrefill,
                                                rank, 2, transport_class));
  }
}

void RoomWorld::advance(RoomNode& node, Duration by) {
  const Instant until = now_ + by;
  while (node.protocol().next_deadline() <= until) {
    now_ = std::max(now_, node.protocol().next_deadline());
    node.step(now_, std::vector<core::Event>{});
  }
  now_ = until;
}

std::uint64_t RoomWorld::next_sequence(SessionEpoch session) const {
  std::uint64_t next = 1;
  for (const core::FrameArrived& arrived : heard_) {
    if (arrived.frame.session == session && arrived.frame.sequence != 0) {
      next = std::max(next, arrived.frame.sequence + arrived.frame.messages.size());
    }
  }
  return next;
}

RoomNode* RoomWorld::node_with_key(const std::string& key) {
  const auto found =
      std::ranges::find_if(nodes_, [&](const auto& node) { return node->key() == key; });
  return found == nodes_.end() ? nullptr : found->get();
}

std::vector<core::PeerRow> RoomWorld::prefill_rows() const {
  return {nodes_[1]->row(), nodes_[2]->row()};
}

bool RoomWorld::answer_dial(RoomNode& node) {
  if (node.dials.empty()) {
    return false;
  }
  const core::DialPeer dial = take_front(node.dials);
  if (node_with_key(dial.address.public_key) != nullptr) {
    node.step(now_, core::LinkUp{dial.peer});
  } else {
    node.step(now_, core::LinkDown{dial.peer, core::LinkDown::Why::kRefused});
  }
  return true;
}

bool RoomWorld::answer_query(RoomNode& node) {
  if (node.queries.empty()) {
    return false;
  }
  node.step(now_, core::PrefillResolved{take_front(node.queries).receiver, prefill_rows()});
  return true;
}

bool RoomWorld::deliver_frame(RoomNode& from) {
  if (from.frames.empty()) {
    return false;
  }
  core::SendFrame send = take_front(from.frames);
  const auto peer = from.peers.find(send.peer);
  RoomNode* to = peer == from.peers.end() ? nullptr : node_with_key(peer->second.public_key);
  if (to != nullptr) {
    core::FrameArrived arrived{from.key(), std::move(send.frame)};
    if (to == &subject()) {
      heard_.push_back(arrived);
    }
    to->step(now_, std::move(arrived));
  }
  return true;
}

bool RoomWorld::finish_fence(RoomNode& node) {
  if (node.fences.empty()) {
    return false;
  }
  const GrantId grant = take_front(node.fences);
  node.note_fenced(grant);
  node.step(now_, core::FenceCompleted{grant});
  return true;
}

bool RoomWorld::land_write(RoomNode& from, layout::WriteOutcome outcome) {
  if (from.writes.empty()) {
    return false;
  }
  const layout::Write write = take_front(from.writes);
  const SessionEpoch session = take_front(from.write_sessions);
  if (outcome == layout::WriteOutcome::kLanded && transport_class_.target_executes_copy) {
    decode().step(now_, core::WritesLanded{{{session, write.slot, write.generation, write.ticket,
                                             write.target_region, write.target_item,
                                             write.offset_in_item, write.length}}});
  }
  from.step(now_, core::WritesCompleted{{{session, write.ticket, outcome}}});
  return true;
}

void RoomWorld::exchange() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& node : nodes_) {
      moved = answer_dial(*node) || answer_query(*node) || deliver_frame(*node) || moved;
    }
  }
}

void RoomWorld::land_all(RoomNode& from) {
  while (land_write(from)) {
  }
}

std::uint64_t RoomWorld::connect_decode_room() {
  const std::uint64_t receiver = open_on(decode());
  decode().name_prefill(now_, receiver);
  exchange();
  return receiver;
}

}  // namespace kvferry::fuzz
