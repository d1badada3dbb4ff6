// Wake-ups between two threads. First both sides meet again and again at the very moment when one
// publishes and the other one falls asleep: there, a weaker order of memory shows. Then both sleep
// whenever the ring lets them, over many writes: a wake-up that is lost leaves one asleep for ever,
// which shows as a wait past its limit.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "data_plane/shm/ring.h"
#include "memory_tools.h"

namespace kvferry::data_plane::shm {
namespace {

constexpr std::uint64_t kWrites = 1'000'000;
constexpr int kLimitMs = 30'000;

class Bell {
 public:
  Bell() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  void ring() { ::eventfd_write(fd_.get(), 1); }
  // Sleeps until it was rung, then empties it; false when the limit has passed.
  bool await() {
    ++sleeps_;
    pollfd wanted{fd_.get(), POLLIN, 0};
    if (::poll(&wanted, 1, kLimitMs) != 1) return false;
    eventfd_t count = 0;
    ::eventfd_read(fd_.get(), &count);
    return true;
  }
  std::uint64_t sleeps() const { return sleeps_; }

 private:
  Fd fd_;
  std::uint64_t sleeps_ = 0;  // the sleeper's own
};

std::uint8_t result_of(std::uint64_t ticket) { return static_cast<std::uint8_t>(ticket * 7); }

// Each returns what went wrong, empty when nothing did.
std::string run_source(RingWriter& writer, Bell& own, Bell& target) {
  Prng prng(1);
  std::vector<std::uint8_t> answers;
  std::uint64_t sent = 0;
  std::uint64_t answered = 0;
  while (answered < kWrites) {
    const std::uint64_t burst =
        std::min<std::uint64_t>({prng.below(16) + 1, writer.free_entries(), kWrites - sent});
    for (std::uint64_t i = 0; i < burst; ++i) {
      Descriptor descriptor;
      descriptor.write.ticket = TicketId(sent++);
      writer.put(descriptor);
    }
    if (writer.publish()) target.ring();
    answers.clear();
    const auto taken = writer.take_answers(answers);
    if (!taken) return taken.error().what;
    for (const std::uint8_t answer : answers) {
      if (answer != result_of(answered++)) return "an answer is not its write's";
    }
    const bool idle = writer.free_entries() == 0 || sent == kWrites;
    if (answered < kWrites && (idle || prng.below(8) == 0) && writer.outstanding() > 0 &&
        writer.wait_for_answers() && !own.await()) {
      return "the source was not woken";
    }
  }
  return {};
}

std::string run_target(RingReader& reader, Bell& own, Bell& source) {
  Prng prng(2);
  std::array<Descriptor, 32> out;
  std::vector<std::uint8_t> results;
  std::uint64_t taken = 0;
  while (taken < kWrites) {
    const auto count = reader.take(std::span(out).first(prng.below(out.size()) + 1));
    if (!count) return count.error().what;
    results.clear();
    for (std::size_t i = 0; i < *count; ++i) {
      if (out[i].write.ticket.value() != taken++) return "a write is out of order";
      results.push_back(result_of(out[i].write.ticket.value()));
    }
    // In two parts, so that the source's number is met and passed in every way.
    const std::size_t part = prng.below(results.size() + 1);
    if (reader.answer(std::span(results).first(part))) source.ring();
    if (reader.answer(std::span(results).subspan(part))) source.ring();
    if (*count == 0 && reader.wait()) {
      const bool woken = own.await();
      reader.stop_waiting();
      if (!woken) return "the target was not woken";
    }
  }
  return {};
}

// Two threads leave it together. They spin for long: only while both have a core do they meet at
// all, and who yields loses it.
class Meeting {
 public:
  void arrive(std::size_t who) {
    const std::uint64_t round = arrived_[who].fetch_add(1) + 1;
    for (int spins = 0; arrived_[1 - who].load() < round; ++spins) {
      if (spins > 1'000'000) std::this_thread::yield();
    }
  }

 private:
  std::array<std::atomic<std::uint64_t>, 2> arrived_{};
};

struct Encounters {
  std::uint64_t rounds = 0;
  std::uint64_t target_lost = 0;  // asleep, and its bell was not rung
  std::uint64_t source_lost = 0;
};

// As many as fit into a few seconds, since they crawl when other processes hold the cores.
Encounters let_them_meet(RingWriter& writer, RingReader& reader) {
  Encounters seen;
  Meeting meeting;
  bool target_sleeps = false;
  bool source_rang = false;
  bool target_rang = false;
  std::atomic<bool> done{false};
  std::thread target([&] {
    std::array<Descriptor, 2> out;
    const std::array<std::uint8_t, 1> result{};
    for (;;) {
      meeting.arrive(1);
      if (done.load()) return;
      target_sleeps = reader.wait();
      meeting.arrive(1);
      reader.stop_waiting();
      reader.take(out).value();
      meeting.arrive(1);
      target_rang = reader.answer(result);
      meeting.arrive(1);
    }
  });
  std::vector<std::uint8_t> answers;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  for (; seen.rounds < 1'000'000 && std::chrono::steady_clock::now() < end; ++seen.rounds) {
    writer.put(Descriptor{});
    meeting.arrive(0);
    source_rang = writer.publish();
    meeting.arrive(0);
    if (target_sleeps && !source_rang) ++seen.target_lost;
    meeting.arrive(0);
    const bool source_sleeps = writer.wait_for_answers();
    meeting.arrive(0);
    if (source_sleeps && !target_rang) ++seen.source_lost;
    answers.clear();
    writer.take_answers(answers).value();
  }
  done = true;
  meeting.arrive(0);
  target.join();
  return seen;
}

TEST(RingWake, OneOfTwoWhoMeetAlwaysSeesTheOther) {
  auto writer = RingWriter::create(kMinRingEntries);
  ASSERT_TRUE(writer);
  auto reader = RingReader::create(map_ring(writer->fd()), kMinRingEntries);
  ASSERT_TRUE(reader);
  ASSERT_TRUE(writer->attach(map_ring(reader->fd())));
  const Encounters seen = let_them_meet(*writer, *reader);
  RecordProperty("rounds", static_cast<int>(seen.rounds));
  EXPECT_GT(seen.rounds, 0U);
  EXPECT_EQ(seen.target_lost, 0U) << "of " << seen.rounds;
  EXPECT_EQ(seen.source_lost, 0U) << "of " << seen.rounds;
}

TEST(RingWake, NoWakeUpIsLost) {
  auto writer = RingWriter::create(kMinRingEntries);
  ASSERT_TRUE(writer);
  auto reader = RingReader::create(map_ring(writer->fd()), kMinRingEntries);
  ASSERT_TRUE(reader);
  ASSERT_TRUE(writer->attach(map_ring(reader->fd())));
  Bell source_bell;
  Bell target_bell;
  std::string source_end;
  std::string target_end;
  std::thread source([&] { source_end = run_source(*writer, source_bell, target_bell); });
  std::thread target([&] { target_end = run_target(*reader, target_bell, source_bell); });
  source.join();
  target.join();
  EXPECT_EQ(source_end, "");
  EXPECT_EQ(target_end, "");
  // Else this showed nothing.
  EXPECT_GT(source_bell.sleeps(), 100U);
  EXPECT_GT(target_bell.sleeps(), 100U);
}

}  // namespace
}  // namespace kvferry::data_plane::shm
