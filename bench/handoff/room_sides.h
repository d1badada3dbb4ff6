// The two sides of a room as engines use them: handles, pages and aux records of each lane.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/handoff/room_loop.h"
#include "bench/handoff/room_memory.h"
#include "kvferry/kv_receiver.h"
#include "kvferry/kv_sender.h"

namespace kvferry::bench {

// References outlive the side.
class PrefillSide final : public RoomSide {
 public:
  PrefillSide(KvManager& manager, RoomMemory& memory, const HandoffSetup& setup,
              const HandoffOrder& order);

  std::uint64_t open(std::uint32_t lane, std::uint64_t room) override;
  void step(std::uint32_t lane, std::uint64_t room, KvPoll status) override;
  bool is_lent(std::uint32_t lane, KvPoll) const override { return lanes_[lane].is_lent; }
  void check(std::uint32_t, std::uint64_t, KvPoll) override {}
  void abort(std::uint32_t lane) override { lanes_[lane].sender->abort(); }
  KvPoll poll(std::uint32_t lane) override { return lanes_[lane].sender->poll(); }
  std::string failure(std::uint32_t lane) const override;
  void close(std::uint32_t lane) override { lanes_[lane].sender.reset(); }
  bool aborts(const AbortPlan& plan) const override { return plan.by_prefill; }

 private:
  struct Lane {
    std::optional<KvSender> sender;
    std::vector<PageIndex> pages;
    bool is_lent = false;
  };
  KvManager& manager_;
  RoomMemory& memory_;
  const HandoffSetup& setup_;
  const HandoffOrder& order_;
  std::vector<Lane> lanes_;
};

class DecodeSide final : public RoomSide {
 public:
  DecodeSide(KvManager& manager, RoomMemory& memory, const HandoffSetup& setup,
             const HandoffOrder& order);

  std::uint64_t open(std::uint32_t lane, std::uint64_t room) override;
  void step(std::uint32_t, std::uint64_t, KvPoll) override {}
  bool is_lent(std::uint32_t lane, KvPoll end) const override {
    return lanes_[lane].is_lent && end == KvPoll::kFailed;
  }
  void check(std::uint32_t lane, std::uint64_t room, KvPoll end) override;
  void abort(std::uint32_t lane) override { lanes_[lane].receiver->abort(); }
  KvPoll poll(std::uint32_t lane) override { return lanes_[lane].receiver->poll(); }
  std::string failure(std::uint32_t lane) const override;
  void close(std::uint32_t lane) override;
  bool aborts(const AbortPlan& plan) const override { return plan.by_decode; }

  std::uint64_t wrong_items() const { return wrong_items_; }
  // Until now, those that nobody has been given since included.
  std::uint64_t touched_items() const;

 private:
  struct Lane {
    std::optional<KvReceiver> receiver;
    std::vector<PageIndex> pages;
    bool is_lent = false;
    bool is_poisoned = false;
  };
  bool watches() const { return order_.content == Content::kFull; }

  KvManager& manager_;
  RoomMemory& memory_;
  const HandoffSetup& setup_;
  const HandoffOrder& order_;
  const std::string registry_;
  std::vector<Lane> lanes_;
  std::uint64_t wrong_items_ = 0;
  std::uint64_t touched_items_ = 0;
};

// The name under which the prefill side registers.
inline constexpr const char* kPrefillInstance = "prefill";

}  // namespace kvferry::bench
