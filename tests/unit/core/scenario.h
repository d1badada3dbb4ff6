// What the dialogue tests share: short deadlines, one-line rooms, the stages at which a room can be
// stopped, and the demand that at the end nothing is left.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "world.h"

namespace kvferry::core::fake {

Options quick_options();

struct RoomPair {
  std::uint64_t receiver = 0;
  std::uint64_t sender = 0;
};

// Where a room of p0 and d0 stands still until the world is healed.
enum class Stage : std::uint8_t {
  kUnresolved,          // the registry is silent
  kGreeting,            // no hello arrives
  kWaitingForPages,     // the receiver's caller gives no pages
  kWaitingForSender,    // nobody opened the room on prefill
  kWaitingForChunks,    // the sender's caller gives no chunk
  kWriting,             // every write stays in the fabric
  kFencing,             // everything landed, no fence is done
  kWaitingForDone,      // Done does not arrive
  kWaitingForConsumed,  // Success on decode, and Consumed does not arrive
};
inline constexpr std::array kStages{
    Stage::kUnresolved,       Stage::kGreeting,         Stage::kWaitingForPages,
    Stage::kWaitingForSender, Stage::kWaitingForChunks, Stage::kWriting,
    Stage::kFencing,          Stage::kWaitingForDone,   Stage::kWaitingForConsumed};
std::string stage_name(Stage stage);

class Scenario : public ::testing::Test {
 protected:
  explicit Scenario(const Options& options = quick_options()) : options_(options) {}

  void engines(std::uint32_t prefill_tp = 1, std::uint32_t decode_tp = 1) {
    world.add_engines(prefill_tp, decode_tp, options_);
  }
  Process& p(std::uint32_t rank = 0) { return world["p" + std::to_string(rank)]; }
  Process& d(std::uint32_t rank = 0) { return world["d" + std::to_string(rank)]; }

  // Opens, names the prefill and gives pages.
  std::uint64_t receive(Process& decode, RoomName room, std::vector<std::uint32_t> pages,
                        std::int64_t aux_slot = -1, std::uint32_t expected_grants = 1);
  // Opens, announces and sends all pages in one chunk.
  std::uint64_t send(Process& prefill, RoomName room, std::vector<std::uint32_t> pages,
                     std::int64_t aux_slot = -1);
  // A room of three pages from p0 to d0, run for long enough to succeed.
  RoomPair transfer(RoomName room);

  RoomPair reach(Stage stage, RoomName room = name_room(1));
  void heal();
  // Clears every room, heals, lets time pass, and expects that no protocol holds anything and every
  // page is back with its caller (R1).
  void expect_rest();

  // For lines like EXPECT_STATUS: polls count as reading.
  void expect_failed(Process& process, std::uint64_t owner, FailureCode code) {
    EXPECT_EQ(process.poll(owner), KvPoll::kFailed) << process.name();
    EXPECT_EQ(process.code(owner), code) << process.name() << ": " << process.cause(owner);
  }
  void expect_success(Process& process, std::uint64_t owner) {
    EXPECT_EQ(process.poll(owner), KvPoll::kSuccess)
        << process.name() << ": " << process.cause(owner);
  }
  void expect_status(Process& process, std::uint64_t owner, KvPoll status) {
    EXPECT_EQ(process.cell(owner).status, status) << process.name() << ": " << process.cause(owner);
  }

  World world;
  Options options_;
};

}  // namespace kvferry::core::fake
