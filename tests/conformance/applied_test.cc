// D1, looked at in the moment: when either side is told that a write landed, its bytes are in
// place, and an end that is not clear is never called a success.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "rig.h"
#include "run_length.h"

namespace kvferry::data_plane {
namespace {

using layout::Write;
using layout::WriteOutcome;

constexpr std::uint64_t kSession = 41;
constexpr std::uint32_t kWritesPerRoom = 8;  // four of whole items, four of small parts
constexpr std::uint32_t kMostRooms = 64;
constexpr std::uint64_t kSmallBytes = 16'384;
constexpr std::byte kSpent{0x55};

// Rooms of eight writes per region, each with bytes that no other write ever had. The source
// overwrites its bytes as soon as it is told that they landed.
class Rooms {
 public:
  enum class Completion {
    kByTransport,
    kOnAcceptance,  // as soon as the transport has taken the write: must be caught
  };

  Rooms(const Case& c, Completion completion) : completion_(completion), rig_(c) {
    rig_.open(kSession);
    if (completion != Completion::kByTransport) return;
    rig_.target_sink().on_landed = [this](std::span<const Landing> landings) {
      for (const Landing& landing : landings) check(landing.ticket, false);
    };
    rig_.source_sink().on_completed = [this](std::span<const layout::WriteCompletion> completions) {
      for (const auto& completed : completions) {
        if (completed.outcome == WriteOutcome::kLanded) check(completed.ticket, true);
      }
    };
  }

  // Carries `count` rooms, so many at a time; false when something did not land.
  bool carry(std::uint64_t count, std::uint32_t at_a_time) {
    for (std::uint64_t done = 0; done < count; done += at_a_time) {
      if (!carry_together(at_a_time)) return false;
    }
    return true;
  }
  std::uint64_t checked() const { return checked_; }
  std::uint64_t torn() const { return torn_; }

 private:
  struct Sent {
    Write write;
    std::uint64_t seed = 0;
  };

  bool carry_together(std::uint32_t rooms) {
    ++round_;
    std::vector<Write> writes;
    sent_.clear();
    const std::uint64_t first = next_ticket_;
    for (std::uint32_t room = 0; room < rooms; ++room) {
      std::vector<std::uint32_t> pages;
      for (std::uint32_t i = 0; i < kWritesPerRoom; ++i) pages.push_back(room * kWritesPerRoom + i);
      rig_.grant(round_ * kMostRooms + room, kSession, room, round_, pages);
      for (std::uint32_t region = 0; region < rig_.shape().regions; ++region) {
        for (const std::uint32_t page : pages) {
          Write write = rig_.write(room, round_, region, page);
          write.ticket = TicketId(next_ticket_++);
          if (page % 2 == 1) write.length = std::min(write.length / 2, kSmallBytes);
          fill(rig_.source_pool().item(region, page).first(write.length), write.ticket.value());
          sent_.push_back({write, write.ticket.value()});
          writes.push_back(write);
        }
      }
    }
    first_ticket_ = first;
    rig_.post(kSession, writes);
    if (completion_ == Completion::kOnAcceptance) {
      std::for_each(writes.rbegin(), writes.rend(),
                    [this](const Write& write) { check(write.ticket, false); });
    }
    const std::uint64_t wanted = next_ticket_ - 1;
    if (!rig_.source_sink().wait([&](const auto& state) { return state.completed() == wanted; })) {
      return false;
    }
    for (std::uint32_t room = 0; room < rooms; ++room) {
      if (!rig_.fence(round_ * kMostRooms + room)) return false;
    }
    return std::all_of(writes.begin(), writes.end(), [&](const Write& write) {
      return rig_.source_sink().outcome(write.ticket.value()) == WriteOutcome::kLanded;
    });
  }

  static std::uint64_t word(std::uint64_t seed, std::uint64_t index) {
    return (seed * 0x9E37'79B9'7F4A'7C15ULL) ^ (index * 0xBF58'476D'1CE4'E5B9ULL);
  }
  static void fill(std::span<std::byte> bytes, std::uint64_t seed) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t value = word(seed, at);
      std::memcpy(bytes.data() + at, &value, std::min(sizeof value, bytes.size() - at));
    }
  }
  static bool is_filled(std::span<const std::byte> bytes, std::uint64_t seed) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t value = word(seed, at);
      const std::size_t length = std::min(sizeof value, bytes.size() - at);
      if (std::memcmp(bytes.data() + at, &value, length) != 0) return false;
    }
    return true;
  }
  void check(TicketId ticket, bool source_is_free) {
    const Sent& sent = sent_[ticket.value() - first_ticket_];
    const std::uint32_t region = sent.write.target_region.value();
    const auto target = rig_.target_pool().item(region, sent.write.target_item);
    ++checked_;
    if (!is_filled(target.first(sent.write.length), sent.seed)) ++torn_;
    if (!source_is_free) return;
    const auto source = rig_.source_pool().item(region, sent.write.target_item);
    std::fill(source.begin(), source.end(), kSpent);
  }

  const Completion completion_;
  std::atomic<std::uint64_t> checked_{0};
  std::atomic<std::uint64_t> torn_{0};
  std::vector<Sent> sent_;  // of this round; not changed while any of it is under way
  std::uint64_t round_ = 0;
  // Stored when sent_ is filled and read before it: the transport's threads may be told of a write
  // through memory whose order no tool can see.
  std::atomic<std::uint64_t> first_ticket_{1};
  std::uint64_t next_ticket_ = 1;
  Rig rig_;  // last, so that its threads end first
};

std::vector<Case> cases_of_rooms() {
  std::vector<Case> cases;
  for (const Case& c : all_cases()) {
    const Shape large{1, is_long_run() ? 2'424'832U : 151'552U, kMostRooms * kWritesPerRoom};
    const Shape sixty{60, 2'048, kMostRooms * kWritesPerRoom};
    cases.push_back({c.kind, c.shape.regions == 1 ? large : sixty});
  }
  return cases;
}

class Applied : public testing::TestWithParam<Case> {};

TEST_P(Applied, CompletedMeansInPlaceOnBothSides) {
  const std::uint64_t writes = kWritesPerRoom * GetParam().shape.regions;
  const bool is_simple = GetParam().shape.regions == 1;
  for (const std::uint32_t at_a_time : {1U, 8U, kMostRooms}) {
    // One at a time is bound by the wake-ups of each room, and sixty regions are sixty times the
    // writes.
    const std::uint64_t count = is_long_run() ? 400 : !is_simple ? 16 : at_a_time == 1 ? 50 : 400;
    if (at_a_time > count) break;
    const std::uint64_t rounded = (count + at_a_time - 1) / at_a_time * at_a_time;
    Rooms carried(GetParam(), Rooms::Completion::kByTransport);
    ASSERT_TRUE(carried.carry(count, at_a_time));
    EXPECT_EQ(carried.checked(), rounded * writes * 2) << "at the target and at the source";
    EXPECT_EQ(carried.torn(), 0U) << at_a_time << " rooms at a time";
  }
}

#if !defined(__SANITIZE_THREAD__)
// The control looks at pages while they are being written, which is a race by intention.
TEST_P(Applied, ACompletionOnAcceptanceIsCaught) {
  constexpr std::uint32_t kAtATime = 8;
  Rooms carried(GetParam(), Rooms::Completion::kOnAcceptance);
  for (std::uint32_t rooms = 0; rooms < 400 && carried.torn() == 0; rooms += kAtATime) {
    ASSERT_TRUE(carried.carry(kAtATime, kAtATime));
  }
  EXPECT_GT(carried.torn(), 0U);
}
#endif

INSTANTIATE_TEST_SUITE_P(All, Applied, testing::ValuesIn(cases_of_rooms()),
                         [](const auto& shown) { return case_name(shown.param); });

// A lane that is cut somewhere in a write of 1 MiB, or between its last byte and its answer. The
// lane has no heartbeats, so the relay counts bytes of the one frame only.
class CutWrite : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 1U << 20;
  static constexpr std::uint64_t kBefore = kHeaderBytes + kDescriptorBytes;
  static constexpr Shape kShape{1, kBytes, 8};

  static Rig::Tuning tuning() {
    Rig::Tuning tuning;
    tuning.with_relay = true;
    tuning.lanes = 1;
    tuning.frame_bytes = kBytes;
    tuning.lane_heartbeat_ms = 100'000;
    tuning.lane_timeout_ms = 300'000;
    return tuning;
  }
  CutWrite() : rig_(Case{Kind::kTcp, kShape}, tuning()) { rig_.open(kSession); }

  // How the write ended that the cut met. Its page is the test's own afterwards.
  WriteOutcome cut(support::Way way, std::uint64_t after_bytes) {
    ++round_;
    rig_.grant(round_ * 2, kSession, 0, round_, {0});
    rig_.grant(round_ * 2 + 1, kSession, 1, round_, {1});
    rig_.target_pool().fill(kCanary);
    // The lane is up, and nothing else is under way on it.
    EXPECT_EQ(rig_.send(kSession, rig_.write(1, round_, 0, 1)), WriteOutcome::kLanded);
    rig_.relay().cut_after(way, after_bytes);
    const Write write = rig_.write(0, round_, 0, 0);
    const WriteOutcome outcome = rig_.send(kSession, write);
    EXPECT_TRUE(rig_.relay().has_cut());
    if (outcome == WriteOutcome::kUnknown) {
      EXPECT_TRUE(rig_.source_sink().wait_quiet(write.ticket.value()));
    }
    if (outcome != WriteOutcome::kUnknown) {
      const bool has_landed = outcome == WriteOutcome::kLanded;
      EXPECT_TRUE(has_landed ? rig_.item_equals_source(0, 0) : rig_.item_is(0, 0, kCanary));
    }
    const auto state = rig_.target_sink().snapshot();
    const auto is_this = [&](const Landing& landing) { return landing.ticket == write.ticket; };
    EXPECT_EQ(std::count_if(state.torn.begin(), state.torn.end(), is_this),
              outcome == WriteOutcome::kUnknown ? 1 : 0);
    EXPECT_EQ(std::count_if(state.landings.begin(), state.landings.end(),
                            [&](const auto& record) { return is_this(record.landing); }),
              outcome == WriteOutcome::kLanded ? 1 : 0);
    expect_untouched_once_released();
    EXPECT_EQ(rig_.source_sink().snapshot().tickets.at(write.ticket.value()).outcomes.size(), 1U);
    return outcome;
  }

  Rig rig_;
  std::uint64_t round_ = 0;

 private:
  // The page's next owner keeps its bytes, while the lane that came back carries other writes.
  void expect_untouched_once_released() {
    ASSERT_TRUE(rig_.fence(round_ * 2));
    const auto page = rig_.target_pool().item(0, 0);
    std::fill(page.begin(), page.end(), std::byte{0x77});
    ASSERT_TRUE(rig_.fence(round_ * 2 + 1));
    rig_.grant(1'000 + round_, kSession, 2, round_, {2});
    EXPECT_EQ(rig_.send(kSession, rig_.write(2, round_, 0, 2)), WriteOutcome::kLanded);
    ASSERT_TRUE(rig_.fence(1'000 + round_));
    EXPECT_TRUE(rig_.item_is(0, 0, std::byte{0x77}));
  }
};

TEST_F(CutWrite, BeforeItsFirstByteItIsRefused) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, kHeaderBytes / 2, kHeaderBytes}) {
    EXPECT_EQ(cut(support::Way::kToTarget, bytes), WriteOutcome::kRefused) << bytes;
  }
  // Its range was claimed and no byte of its page was written.
  EXPECT_EQ(cut(support::Way::kToTarget, kBefore), WriteOutcome::kRefused);
}

TEST_F(CutWrite, InItsMidstItIsTornAndNeverASuccess) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, kBytes / 2, kBytes - 1, kBytes}) {
    EXPECT_EQ(cut(support::Way::kToTarget, kBefore + bytes), WriteOutcome::kUnknown) << bytes;
  }
}

TEST_F(CutWrite, BeforeItsAnswerItHasLanded) {
  EXPECT_EQ(cut(support::Way::kToTarget, kBefore + kBytes + kTrailerBytes), WriteOutcome::kLanded);
  EXPECT_EQ(cut(support::Way::kToSource, 0), WriteOutcome::kLanded);
  EXPECT_EQ(cut(support::Way::kToSource, 1), WriteOutcome::kLanded);
}

}  // namespace
}  // namespace kvferry::data_plane
