// The decode translator and the real core against stock prefill ranks that behave as SGLang's do,
// strangers that say anything, connections that break, in an order drawn from a seed. What is
// checked: pages become free, and rooms succeed, only when no rank may write there any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "decode_rig.h"

namespace kvferry::sglang {
namespace {

constexpr std::uint32_t kRooms = 6;
constexpr std::uint32_t kPagesPerRoom = 2;

// What a stock rank holds of a room that it has metadata of.
struct StockRoom {
  std::vector<std::uint32_t> pages;
  std::uint32_t aux_slot = 0;
  bool writes = true;                // may still write there; not so a dummy
  bool has_spoken = false;           // said a status
  std::vector<std::uint64_t> owed;   // generations of ABORTs that are not acknowledged yet
  std::vector<std::uint64_t> asked;  // of all of them
};

class Storm {
 public:
  Storm(std::uint64_t seed, RigShape shape) : prng_(seed), shape_(shape), rig_(shape) {
    ranks_.resize(shape.prefill_tp);
    rig_.on_message = [this](std::uint32_t rank, const Message& message) { hear(rank, message); };
    rig_.on_release = [this](const core::ReleasePages& released) { expect_quiet(released); };
    rig_.on_terminal = [this](core::ReceiverId receiver, KvPoll status) {
      if (status == KvPoll::kSuccess) {
        ++successes_;
        expect_all_written(receiver);
      }
    };
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
    }
    finish();
  }

  std::size_t successes() const { return successes_; }
  std::size_t releases() const { return releases_; }
  std::size_t losses() const { return losses_; }
  std::size_t refused() const { return refused_; }

 private:
  // --- stock ranks ---
  void hear(std::uint32_t rank, const Message& message) {
    if (const auto* metadata = std::get_if<MooncakeMetadata>(&message)) {
      auto& rooms = ranks_[rank];
      const std::uint64_t room = metadata->target.room.value();
      EXPECT_FALSE(rooms.contains(room) && rooms[room].writes)
          << "room " << room << " was given anew while rank " << rank << " may write";
      StockRoom held;
      for (const PageIndex page : metadata->target.pages) {
        held.pages.push_back(page.value());
      }
      held.aux_slot = metadata->aux_index.value_or(0);
      held.writes = !metadata->is_dummy();
      rooms[room] = std::move(held);
    } else if (const auto* abort = std::get_if<AbortRoom>(&message)) {
      const auto found = ranks_[rank].find(abort->room.value());
      if (found != ranks_[rank].end() && abort->generation) {
        found->second.owed.push_back(*abort->generation);
        found->second.asked.push_back(*abort->generation);
      }
    }
  }
  bool may_write(std::uint32_t page) const {
    return std::ranges::any_of(ranks_, [&](const auto& rooms) {
      return std::ranges::any_of(rooms, [&](const auto& entry) {
        return entry.second.writes && std::ranges::count(entry.second.pages, page) > 0;
      });
    });
  }
  void expect_quiet(const core::ReleasePages& released) {
    for (const PageIndex page : released.pages) {
      ++releases_;
      EXPECT_FALSE(may_write(page.value())) << "page " << page.value() << " became free";
      busy_.erase(page.value());
    }
  }
  void expect_all_written(core::ReceiverId receiver) {
    for (const std::uint32_t page : granted_[receiver]) {
      EXPECT_FALSE(may_write(page)) << "page " << page << " succeeded";
      busy_.erase(page);
    }
  }

  // --- what happens ---
  std::uint64_t draw_room() { return 1 + prng_.below(kRooms); }
  std::uint32_t draw_rank() { return static_cast<std::uint32_t>(prng_.below(ranks_.size())); }
  StockRoom* draw_stock_room(std::uint32_t rank, std::uint64_t& room) {
    room = draw_room();
    const auto found = ranks_[rank].find(room);
    return found == ranks_[rank].end() ? nullptr : &found->second;
  }

  void open_room() {
    const std::uint64_t room = draw_room();
    std::vector<std::uint32_t> pages;
    for (std::uint32_t page = 0; page < kRigPages && pages.size() < kPagesPerRoom; ++page) {
      if (!busy_.contains(page)) {
        pages.push_back(page);
      }
    }
    const auto open = receivers_.find(room);
    const bool is_open = open != receivers_.end() && !is_terminal(rig_.status(open->second));
    if (is_open || pages.size() < kPagesPerRoom) {
      return;
    }
    const core::ReceiverId receiver = rig_.open(room);
    receivers_[room] = receiver;
    if (prng_.below(8) == 0) {
      rig_.abort(receiver);
      return;
    }
    for (const std::uint32_t page : pages) {
      busy_.insert(page);
    }
    granted_[receiver] = pages;
    // A page pair has its own aux slot.
    rig_.give_metadata(receiver, pages, pages.front() / kPagesPerRoom % kRigAuxSlots);
  }
  void abort_room() {
    const auto found = receivers_.find(draw_room());
    if (found != receivers_.end() && !is_terminal(rig_.status(found->second))) {
      rig_.abort(found->second);
    }
  }
  void finish_writing() {
    std::uint64_t room = 0;
    const std::uint32_t rank = draw_rank();
    StockRoom* held = draw_stock_room(rank, room);
    if (held == nullptr || !held->writes) {
      return;
    }
    held->has_spoken = true;
    if (prng_.below(4) == 0) {
      rig_.arrive(RoomStatus{RoomId(room), KvPoll::kFailed, rank, "failed"});
      return;  // and writes on
    }
    if (prng_.below(8) != 0) {
      rig_.write_aux(held->aux_slot, room);
    }
    held->writes = false;
    rig_.succeed(room, rank);
  }
  void acknowledge() {
    std::uint64_t room = 0;
    const std::uint32_t rank = draw_rank();
    StockRoom* held = draw_stock_room(rank, room);
    if (held == nullptr || held->owed.empty()) {
      return;
    }
    const std::uint64_t generation = held->owed.back();
    // A rank that waits for a second decode rank may answer for the first, and write to it later.
    held->writes = held->writes && shape_.decode_tp > 1 && !held->has_spoken;
    held->owed.clear();
    rig_.acknowledge(room, generation, rank);
  }
  // Anything but the very words that the rank itself would say.
  void lie() {
    const std::uint64_t room = draw_room();
    const std::uint32_t rank = static_cast<std::uint32_t>(prng_.below(ranks_.size() + 2));
    switch (prng_.below(6)) {
      case 0:
      case 1: {
        AbortAck ack{RoomId(room), rank, prng_.below(40)};
        if (rank < ranks_.size() && ranks_[rank].contains(room) &&
            std::ranges::count(ranks_[rank][room].asked, *ack.generation) > 0) {
          ack.generation.reset();
        }
        rig_.arrive(ack);
        return;
      }
      case 2:
        rig_.arrive(RoomStatus{RoomId(room),
                               KvPoll::kSuccess,
                               static_cast<std::uint32_t>(ranks_.size() + prng_.below(3)),
                               {}});
        return;
      case 3:
        rig_.arrive(RoomStatus{RoomId(room), KvPoll::kWaitingForInput, rank, {}});
        return;
      case 4:
        rig_.arrive(AuxData{RoomId(room + kRooms), static_cast<std::uint32_t>(prng_.below(6)),
                            static_cast<std::uint32_t>(prng_.below(10)),
                            std::vector<std::uint8_t>(prng_.below(80))});
        return;
      default:
        rig_.arrive(ChunkReady{});
        rig_.arrive(AbortRoom{RoomId(room), DecodeRig::own_endpoint(), 1});
        rig_.arrive(MooncakeMetadata{});
    }
  }
  void step() {
    switch (prng_.below(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return open_room();
      case 5:
        return abort_room();
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
        return finish_writing();
      case 11:
      case 12:
        return acknowledge();
      case 13:
      case 14:
      case 15:
        return lie();
      case 16:
        if (prng_.below(20) == 0) {
          ++losses_;
          rig_.lose(draw_rank());
        }
        return;
      default:
        return rig_.pass(milliseconds(prng_.below(400)));
    }
  }
  // Every rank acknowledges what it was asked for: then nothing is left but what was lost.
  void finish() {
    for (const auto& [room, receiver] : receivers_) {
      if (!is_terminal(rig_.status(receiver))) {
        rig_.abort(receiver);
      }
    }
    rig_.pass(std::chrono::seconds(10));
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      for (auto& [room, held] : ranks_[rank]) {
        if (!held.owed.empty() && held.writes) {
          rig_.arrive(RoomStatus{RoomId(room), KvPoll::kFailed, rank, {}});
        }
        for (const std::uint64_t generation : std::exchange(held.owed, {})) {
          held.writes = false;
          rig_.acknowledge(room, generation, rank);
        }
      }
    }
    EXPECT_EQ(rig_.translator().open_rooms(), 0U);
    EXPECT_FALSE(rig_.translator().next_deadline());
    if (losses_ == 0) {
      EXPECT_TRUE(busy_.empty()) << busy_.size() << " pages never came back";
    }
    refused_ = rig_.take_not_done().size();
  }

  Prng prng_;
  const RigShape shape_;
  DecodeRig rig_;
  std::vector<std::map<std::uint64_t, StockRoom>> ranks_;
  std::map<std::uint64_t, core::ReceiverId> receivers_;
  std::map<core::ReceiverId, std::vector<std::uint32_t>> granted_;
  std::set<std::uint32_t> busy_;
  std::size_t successes_ = 0;
  std::size_t releases_ = 0;
  std::size_t losses_ = 0;
  std::size_t refused_ = 0;
};

void run_storms(RigShape shape, std::uint64_t seeds) {
  std::size_t successes = 0;
  std::size_t releases = 0;
  std::size_t losses = 0;
  std::size_t refused = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Storm storm(seed, shape);
    storm.run(300);
    successes += storm.successes();
    releases += storm.releases();
    losses += storm.losses();
    refused += storm.refused();
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
  // It did go through all of it.
  EXPECT_GT(successes, seeds);
  EXPECT_GT(releases, seeds);
  EXPECT_GT(losses, seeds / 4);
  EXPECT_GT(refused, seeds * 10);
}

TEST(DecodeTranslatorStorm, OneRankOnEachSide) { run_storms({}, 80); }
TEST(DecodeTranslatorStorm, TwoPrefillRanksForOneDecodeRank) { run_storms({2, 1}, 80); }
TEST(DecodeTranslatorStorm, TwoDecodeRanksForOnePrefillRank) { run_storms({1, 2}, 80); }
TEST(DecodeTranslatorStorm, ADummyBesideTheWriter) { run_storms({2, 1, true}, 80); }

}  // namespace
}  // namespace kvferry::sglang
