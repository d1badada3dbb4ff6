// One decode process and two prefill ranks, one of them the subject of a fuzz input. Honest
// messages wait until they are delivered, so that a scene can stop at any point of a room's life.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "room_node.h"

namespace kvferry::fuzz {

inline constexpr RoomId kRoom{5};
inline constexpr Binding kBinding{1, 5};
inline constexpr std::uint32_t kPagesOfRoom = 3;

class RoomWorld {
 public:
  RoomWorld(Role subject, core::TransportClass transport_class);

  RoomNode& subject() { return *nodes_[subject_]; }
  RoomNode& decode() { return *nodes_[0]; }
  RoomNode& prefill(std::size_t rank) { return *nodes_[1 + rank]; }
  Instant now() const { return now_; }
  void advance(RoomNode& node, Duration by);

  // Messages that the subject was sent, delivered or not: material for replays.
  const std::vector<core::FrameArrived>& heard() const { return heard_; }
  // A number that the subject has not had in this session.
  std::uint64_t next_sequence(SessionEpoch session) const;

  // --- honest deliveries; false when there was nothing to deliver ---
  bool answer_dial(RoomNode& node);
  bool answer_query(RoomNode& node);
  bool deliver_frame(RoomNode& from);
  bool finish_fence(RoomNode& node);
  // The oldest posted write lands at its target and its outcome at its source.
  bool land_write(RoomNode& from, layout::WriteOutcome outcome = layout::WriteOutcome::kLanded);
  // Dials, queries and frames of everybody, until nothing is left.
  void exchange();
  void land_all(RoomNode& from);

  // --- steps of a room's life that scenes are made of ---
  std::uint64_t open_on(RoomNode& node) { return node.open(now_, kRoom, kBinding); }
  // The decode room of the scene, opened and, with its sessions, ready for pages.
  std::uint64_t connect_decode_room();

 private:
  RoomNode* node_with_key(const std::string& key);
  std::vector<core::PeerRow> prefill_rows() const;

  std::vector<std::unique_ptr<RoomNode>> nodes_;
  const std::size_t subject_;
  const core::TransportClass transport_class_;
  Instant now_{milliseconds(1'000)};
  std::vector<core::FrameArrived> heard_;
};

}  // namespace kvferry::fuzz
