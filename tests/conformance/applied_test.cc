// D1, looked at in the moment: when either side is told that a write landed, its bytes are in
// place, and an end that is not clear is never called a success.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

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
  static constexpr std::uint64_t kBefore =
      kHeaderBytes + kDescriptorBytes + stream_padding(kDescriptorBytes);
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

// A chunk of 4 MiB that a producer fills at 100 MB/s while its send waits already: what is posted
// on the producer's word arrives as the producer left it.
class SlowProducer : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::uint64_t kChunkBytes = 4U << 20;
  static constexpr std::uint64_t kBytesPerSecond = 100'000'000;
  static constexpr std::size_t kStepBytes = 64U << 10;

  enum class Post { kOnSignal, kBefore };

  SlowProducer() : rig_({GetParam().kind, {1, kChunkBytes, 2}}) { rig_.open(kSession); }

  // Whether the chunk at the target is the whole of what was produced when its landing is told.
  bool arrives_whole(Post post) {
    ++round_;
    rig_.grant(round_, kSession, 0, round_, {0});
    const auto seed = static_cast<std::uint8_t>(round_ * 37);
    const auto chunk = rig_.source_pool().item(0, 0);
    std::promise<void> signal;
    std::thread producer([&] {
      const auto begin = std::chrono::steady_clock::now();
      for (std::size_t at = 0; at < chunk.size(); at += kStepBytes) {
        const std::chrono::nanoseconds due(at * 1'000'000'000 / kBytesPerSecond);
        while (std::chrono::steady_clock::now() < begin + due) std::this_thread::yield();
        std::memset(chunk.data() + at, seed + static_cast<int>(at / kStepBytes % 7), kStepBytes);
      }
      signal.set_value();
    });
    if (post == Post::kOnSignal) signal.get_future().wait();
    const WriteOutcome outcome = rig_.send(kSession, rig_.write(0, round_, 0, 0));
    const auto landed = rig_.target_pool().item(0, 0);
    bool is_whole = outcome == WriteOutcome::kLanded;
    for (std::size_t at = 0; at < landed.size() && is_whole; ++at) {
      is_whole = landed[at] == static_cast<std::byte>(seed + at / kStepBytes % 7);
    }
    producer.join();
    EXPECT_TRUE(rig_.fence(round_));
    return is_whole;
  }

  Rig rig_;
  std::uint64_t round_ = 0;
};

TEST_P(SlowProducer, PostedOnItsSignalTheChunkIsWhole) {
  const std::uint64_t chunks = by_length(3, 50);
  for (std::uint64_t i = 0; i < chunks; ++i) EXPECT_TRUE(arrives_whole(Post::kOnSignal)) << i;
}

#if !defined(__SANITIZE_THREAD__)
// The control reads what is being written, which is a race by intention.
TEST_P(SlowProducer, PostedBeforeItsSignalTheChunkIsCaughtIncomplete) {
  EXPECT_FALSE(arrives_whole(Post::kBefore));
}
#endif

// Addresses that are no longer, or not yet, or never were those of registered memory.
class BadAddress : public testing::TestWithParam<Case> {
 protected:
  // A page that no test looks at before something lands there: in one process ThreadSanitizer can't
  // see that a look comes before a copy through a ring.
  static constexpr std::uint32_t kUnseen = 5;

  BadAddress() : rig_(GetParam()) { rig_.open(kSession); }

  std::uint64_t refused_at_target() {
    std::uint64_t count = 0;
    for (const TransportCounter& counter : rig_.target().counters()) {
      if (counter.name == "writes_refused" || counter.name == "writes_stale")
        count += counter.value;
    }
    return count;
  }
  void expect_nothing_written(const Write& write) {
    for (std::uint32_t region = 0; region < rig_.shape().regions; ++region) {
      for (std::uint32_t page = 0; page < 4; ++page) {
        ASSERT_TRUE(rig_.item_is(region, page, kCanary)) << "region " << region << " page " << page;
      }
    }
    const auto state = rig_.target_sink().snapshot();
    EXPECT_TRUE(std::none_of(state.landings.begin(), state.landings.end(), [&](const auto& record) {
      return record.landing.ticket == write.ticket;
    }));
  }
  // Refused at the target, which says so to both.
  void expect_refused(const Write& write) {
    const std::uint64_t before = refused_at_target();
    EXPECT_EQ(rig_.send(kSession, write), WriteOutcome::kRefused);
    EXPECT_EQ(refused_at_target(), before + 1);
    expect_nothing_written(write);
  }
  // The control: a write like the refused ones, but to an address that is registered and granted.
  void expect_lands(const Write& write) {
    EXPECT_EQ(rig_.send(kSession, write), WriteOutcome::kLanded);
    EXPECT_TRUE(rig_.item_equals_source(write.target_region.value(), write.target_item));
  }
  void take_back(std::uint64_t grant) {
    ASSERT_TRUE(rig_.fence(grant));
    rig_.target_pool().fill(kCanary);
  }
  void free_target() {
    ASSERT_TRUE(rig_.target().unregister_regions(Unregister::kRefuseWhileUsed));
  }
  void register_target() {
    ASSERT_TRUE(rig_.target().register_regions(rig_.target_pool().regions()));
  }

  Rig rig_;
};

TEST_P(BadAddress, NeverRegistered) {
  rig_.grant(1, kSession, 0, 1, {0, 1, kUnseen});
  Write write = rig_.write(0, 1, 0, 1);
  write.target_region = RegionId(rig_.shape().regions);
  expect_refused(write);
  write = rig_.write(0, 1, 0, 1);
  write.target_item = rig_.shape().items;
  expect_refused(write);
  write = rig_.write(0, 1, 0, 1);
  write.source_region = RegionId(rig_.shape().regions);
  EXPECT_EQ(rig_.send(kSession, write), WriteOutcome::kRefused) << "its source can't be read";
  expect_nothing_written(write);
  expect_lands(rig_.write(0, 1, 0, kUnseen));
}

TEST_P(BadAddress, FreedAtTheTarget) {
  rig_.grant(1, kSession, 0, 1, {0, 1, kUnseen});
  expect_lands(rig_.write(0, 1, 0, 0));
  ASSERT_NO_FATAL_FAILURE(take_back(1));
  ASSERT_NO_FATAL_FAILURE(free_target());
  expect_refused(rig_.write(0, 1, 0, 1));
  rig_.grant(2, kSession, 0, 2, {0, 1, kUnseen});
  expect_refused(rig_.write(0, 2, 0, 1));
}

TEST_P(BadAddress, FreedAtTheSource) {
  rig_.grant(1, kSession, 0, 1, {0, 1, kUnseen});
  ASSERT_TRUE(rig_.source().unregister_regions(Unregister::kRefuseWhileUsed));
  const Write write = rig_.write(0, 1, 0, 1);
  EXPECT_EQ(rig_.send(kSession, write), WriteOutcome::kRefused);
  expect_nothing_written(write);
  ASSERT_TRUE(rig_.source().register_regions(rig_.source_pool().regions()));
  expect_lands(rig_.write(0, 1, 0, kUnseen));
}

TEST_P(BadAddress, RegisteredAgain) {
  rig_.grant(1, kSession, 0, 1, {0, 1, kUnseen});
  expect_lands(rig_.write(0, 1, 0, 0));
  ASSERT_NO_FATAL_FAILURE(take_back(1));
  ASSERT_NO_FATAL_FAILURE(free_target());
  ASSERT_NO_FATAL_FAILURE(register_target());
  expect_refused(rig_.write(0, 1, 0, 1));
  rig_.grant(2, kSession, 0, 2, {1, kUnseen});
  expect_refused(rig_.write(0, 1, 0, 1));
  expect_refused(rig_.write(0, 2, 0, 0));
  expect_lands(rig_.write(0, 2, 0, kUnseen));
}

std::vector<Case> simple_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& c) { return c.shape.regions != 1; });
  return cases;
}
constexpr auto kName = [](const auto& shown) { return case_name(shown.param); };
INSTANTIATE_TEST_SUITE_P(All, SlowProducer, testing::ValuesIn(simple_cases()), kName);
INSTANTIATE_TEST_SUITE_P(All, BadAddress, testing::ValuesIn(all_cases()), kName);

}  // namespace
}  // namespace kvferry::data_plane
