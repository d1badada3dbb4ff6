#include "bench/handoff/room_sides.h"

namespace kvferry::bench {
namespace {

constexpr std::int32_t kVocabulary = 32'000;

AuxRecord record_of(std::uint64_t room) {
  return {static_cast<std::int32_t>(room % kVocabulary), -0.5F, 48, 0};
}

std::string text_of(const std::optional<Failure>& failure) {
  return failure ? to_string(*failure) : "it did not end";
}

}  // namespace

PrefillSide::PrefillSide(KvManager& manager, RoomMemory& memory, const HandoffSetup& setup,
                         const HandoffOrder& order)
    : manager_(manager), memory_(memory), setup_(setup), order_(order), lanes_(order.concurrency) {
  for (std::uint32_t lane = 0; lane < order.concurrency; ++lane) {
    lanes_[lane].pages = memory.pages_of(lane);
  }
}

std::uint64_t PrefillSide::open(std::uint32_t lane, std::uint64_t room) {
  Lane& each = lanes_[lane];
  each.is_lent = false;
  each.sender.emplace(manager_, RoomId(room), binding_of(room));
  // A refusal fails the room, and poll() says so.
  (void)each.sender->init(setup_.pages_per_room, lane);
  return each.sender->id();
}

// The forward pass would begin once decode has set pages aside; here it takes no time.
void PrefillSide::step(std::uint32_t lane, std::uint64_t room, KvPoll status) {
  Lane& each = lanes_[lane];
  if (status < KvPoll::kWaitingForInput || each.is_lent) return;
  memory_.write(lane, room, order_.content);
  (void)manager_.write_aux(lane, RoomId(room), binding_of(room), record_of(room));
  each.is_lent = each.sender->send(each.pages).has_value();
}

std::string PrefillSide::failure(std::uint32_t lane) const {
  return "prefill: " + text_of(lanes_[lane].sender->failure());
}

DecodeSide::DecodeSide(KvManager& manager, RoomMemory& memory, const HandoffSetup& setup,
                       const HandoffOrder& order)
    : manager_(manager),
      memory_(memory),
      setup_(setup),
      order_(order),
      registry_(setup.registry.data()),
      lanes_(order.concurrency) {
  for (std::uint32_t lane = 0; lane < order.concurrency; ++lane) {
    lanes_[lane].pages = memory.pages_of(lane);
  }
}

std::uint64_t DecodeSide::open(std::uint32_t lane, std::uint64_t room) {
  Lane& each = lanes_[lane];
  if (each.is_poisoned) touched_items_ += memory_.count_touched(lane);
  each.is_poisoned = false;
  each.receiver.emplace(manager_, RoomId(room), binding_of(room));
  (void)each.receiver->init(registry_, kPrefillInstance);
  each.is_lent = each.receiver->send_metadata(each.pages, lane).has_value();
  return each.receiver->id();
}

void DecodeSide::check(std::uint32_t lane, std::uint64_t room, KvPoll end) {
  if (end != KvPoll::kSuccess) return;
  wrong_items_ += memory_.count_wrong(lane, room, order_.content);
  const auto record = manager_.read_aux(lane, RoomId(room), binding_of(room));
  if (!record || *record != record_of(room)) ++wrong_items_;
}

std::string DecodeSide::failure(std::uint32_t lane) const {
  return "decode: " + text_of(lanes_[lane].receiver->failure());
}

void DecodeSide::close(std::uint32_t lane) {
  Lane& each = lanes_[lane];
  each.receiver.reset();
  if (!watches()) return;
  memory_.poison(lane);
  each.is_poisoned = true;
}

std::uint64_t DecodeSide::touched_items() const {
  std::uint64_t touched = touched_items_;
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].is_poisoned) touched += memory_.count_touched(lane);
  }
  return touched;
}

}  // namespace kvferry::bench
