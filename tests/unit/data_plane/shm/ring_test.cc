#include "data_plane/shm/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include "base/prng.h"
#include "memory_tools.h"

namespace kvferry::data_plane::shm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kEntries = kMinRingEntries;
constexpr std::uint64_t kAllOnes = ~std::uint64_t{0};

Descriptor numbered(std::uint64_t number) {
  Descriptor descriptor;
  descriptor.slot = GrantSlot(static_cast<std::uint32_t>(number));
  descriptor.generation = Generation(number + 1);
  descriptor.write = {TicketId(number), RegionId(static_cast<std::uint32_t>(number) + 2),
                      static_cast<std::uint32_t>(number) + 3, number + 4, number + 5};
  descriptor.source_region = RegionId(static_cast<std::uint32_t>(number) + 6);
  descriptor.source_offset = number + 7;
  descriptor.digest = number + 8;
  return descriptor;
}

bool equal(const Descriptor& a, const Descriptor& b) {
  return a.slot == b.slot && a.generation == b.generation && a.write.ticket == b.write.ticket &&
         a.write.region == b.write.region && a.write.item == b.write.item &&
         a.write.offset_in_item == b.write.offset_in_item && a.write.length == b.write.length &&
         a.source_region == b.source_region && a.source_offset == b.source_offset &&
         a.digest == b.digest;
}

struct Ring {
  explicit Ring(std::uint32_t entries = kEntries)
      : writer(std::move(RingWriter::create(entries).value())),
        reader(std::move(RingReader::create(map_ring(writer.fd()), entries).value())) {
    EXPECT_TRUE(writer.attach(map_ring(reader.fd())));
  }
  std::size_t take_answers() {
    answers.clear();
    return writer.take_answers(answers).value();
  }

  RingWriter writer;
  RingReader reader;
  std::vector<std::uint8_t> answers;
};

// Memory of a peer that keeps no rules. Both kinds begin with a counter; the second word is bell_at
// or waits.
class WildMemory {
 public:
  explicit WildMemory(std::uint64_t bytes) : fd_(make_memfd(bytes, F_SEAL_SHRINK)), bytes_(bytes) {
    words_ = static_cast<std::atomic<std::uint64_t>*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
  }
  ~WildMemory() { ::munmap(words_, bytes_); }
  WildMemory(const WildMemory&) = delete;
  WildMemory& operator=(const WildMemory&) = delete;

  PeerMemory map() const { return map_ring(fd_.get()); }
  std::atomic<std::uint64_t>& counter() { return words_[0]; }
  std::atomic<std::uint64_t>& second() { return words_[8]; }
  std::atomic<std::uint64_t>& word(std::size_t index) { return words_[index]; }

 private:
  Fd fd_;
  std::uint64_t bytes_;
  std::atomic<std::uint64_t>* words_ = nullptr;
};

TEST(Ring, RefusesSizesThatAreNone) {
  for (const std::uint32_t entries : {0U, 1U, 32U, 65U, 1'000U, 2 * kMaxRingEntries}) {
    EXPECT_FALSE(is_ring_size(entries));
    EXPECT_FALSE(RingWriter::create(entries)) << entries;
    const WildMemory memory(submission_bytes(kMaxRingEntries));
    EXPECT_FALSE(RingReader::create(memory.map(), entries)) << entries;
  }
  EXPECT_TRUE(RingWriter::create(kMaxRingEntries));
}

TEST(Ring, RefusesMemoryThatIsTooSmall) {
  const WildMemory submissions(submission_bytes(1'024) - 1);
  const auto reader = RingReader::create(submissions.map(), 1'024);
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, FailureCode::kMalformed);
  auto writer = RingWriter::create(4'096);
  ASSERT_TRUE(writer);
  const WildMemory answers(answer_bytes(4'096) - 1);
  EXPECT_FALSE(writer->attach(answers.map()));
  EXPECT_FALSE(writer->is_attached());
}

TEST(Ring, CarriesEveryFieldInFull) {
  Ring ring;
  Descriptor sent;
  sent.slot = GrantSlot(0xFFFF'FFFF);
  sent.generation = Generation(kAllOnes);
  sent.write = {TicketId(kAllOnes - 1), RegionId(0xFFFF'FFFE), 0xFFFF'FFFD, kAllOnes - 2,
                kAllOnes - 3};
  sent.source_region = RegionId(0xFFFF'FFFC);
  sent.source_offset = kAllOnes - 4;
  sent.digest = kAllOnes - 5;
  ring.writer.put(sent);
  ring.writer.publish();
  Descriptor taken[2];
  ASSERT_EQ(ring.reader.take(taken).value(), 1U);
  EXPECT_TRUE(equal(taken[0], sent));
}

TEST(Ring, ShowsNothingBeforeItIsPublished) {
  Ring ring;
  Descriptor out[4];
  EXPECT_EQ(ring.reader.take(out).value(), 0U);
  ring.writer.put(numbered(1));
  EXPECT_EQ(ring.reader.take(out).value(), 0U);
  EXPECT_EQ(ring.writer.outstanding(), 1U);
  ring.writer.publish();
  EXPECT_EQ(ring.reader.take(out).value(), 1U);
  EXPECT_EQ(ring.reader.take(out).value(), 0U);
  EXPECT_EQ(ring.take_answers(), 0U);
}

TEST(Ring, IsFullUntilAnswersAreTaken) {
  Ring ring;
  std::vector<Descriptor> out(kEntries);
  for (std::uint64_t round = 0; round < 5; ++round) {
    for (std::uint64_t i = 0; i < kEntries; ++i) {
      ASSERT_EQ(ring.writer.free_entries(), kEntries - i);
      ring.writer.put(numbered(round * kEntries + i));
    }
    EXPECT_EQ(ring.writer.free_entries(), 0U);
    ring.writer.publish();
    ASSERT_EQ(ring.reader.take(out).value(), kEntries);
    for (std::uint64_t i = 0; i < kEntries; ++i) {
      ASSERT_TRUE(equal(out[i], numbered(round * kEntries + i)));
    }
    EXPECT_EQ(ring.writer.free_entries(), 0U);
    ring.reader.answer(std::vector<std::uint8_t>(kEntries, 1));
    EXPECT_EQ(ring.writer.free_entries(), 0U);
    EXPECT_EQ(ring.take_answers(), kEntries);
    EXPECT_EQ(ring.writer.free_entries(), kEntries);
  }
}

TEST(Ring, AnswersInOrderAcrossItsEnd) {
  Ring ring;
  std::vector<Descriptor> out(kEntries);
  const std::uint32_t lead = kEntries - 2;  // the answers below straddle the end
  for (std::uint32_t i = 0; i < lead; ++i) ring.writer.put(numbered(i));
  ring.writer.publish();
  ASSERT_EQ(ring.reader.take(out).value(), lead);
  ring.reader.answer(std::vector<std::uint8_t>(lead, 0));
  ring.take_answers();
  for (std::uint32_t i = 0; i < 5; ++i) ring.writer.put(numbered(i));
  ring.writer.publish();
  ASSERT_EQ(ring.reader.take(std::span(out).first(3)).value(), 3U);
  ASSERT_EQ(ring.reader.take(out).value(), 2U);
  EXPECT_EQ(ring.reader.unanswered(), 5U);
  const std::uint8_t first[] = {10, 11};
  const std::uint8_t rest[] = {12, 13, 14};
  ring.reader.answer(first);
  EXPECT_EQ(ring.take_answers(), 2U);
  EXPECT_THAT(ring.answers, ElementsAre(10, 11));
  ring.reader.answer(rest);
  EXPECT_EQ(ring.reader.unanswered(), 0U);
  EXPECT_EQ(ring.take_answers(), 3U);
  EXPECT_THAT(ring.answers, ElementsAre(12, 13, 14));
}

TEST(RingBell, OfTheTargetRingsOnceForEachSleep) {
  Ring ring;
  Descriptor out[4];
  const auto post = [&ring] {
    ring.writer.put(numbered(0));
    return ring.writer.publish();
  };
  EXPECT_FALSE(post());  // awake
  ASSERT_EQ(ring.reader.take(out).value(), 1U);
  EXPECT_TRUE(ring.reader.wait());
  EXPECT_FALSE(ring.writer.publish());  // nothing new
  EXPECT_TRUE(post());
  EXPECT_FALSE(post());  // it was rung for this sleep
  ring.reader.stop_waiting();
  EXPECT_FALSE(post());
  ASSERT_EQ(ring.reader.take(out).value(), 3U);
  EXPECT_TRUE(ring.reader.wait());
  EXPECT_TRUE(ring.reader.wait());  // awake for another reason and asleep again
  EXPECT_TRUE(post());
}

TEST(RingBell, NobodySleepsOverWhatIsThere) {
  Ring ring;
  Descriptor out[1];
  ring.writer.put(numbered(0));
  ring.writer.put(numbered(1));
  ring.writer.publish();
  EXPECT_FALSE(ring.reader.wait());
  ASSERT_EQ(ring.reader.take(out).value(), 1U);
  EXPECT_FALSE(ring.reader.wait());  // one is left
  ring.writer.put(numbered(2));
  EXPECT_FALSE(ring.writer.publish());  // a refused sleep needs no bell
  const std::uint8_t result[] = {0};
  ring.reader.answer(result);
  EXPECT_FALSE(ring.writer.wait_for_answers());
  ring.take_answers();
  EXPECT_TRUE(ring.writer.wait_for_answers());
}

TEST(RingBell, OfTheSourceRingsAtHalf) {
  Ring ring;
  std::vector<Descriptor> out(kEntries);
  const std::uint8_t result[] = {0};
  for (std::uint64_t i = 0; i < 10; ++i) ring.writer.put(numbered(i));
  ring.writer.publish();
  ASSERT_EQ(ring.reader.take(out).value(), 10U);
  EXPECT_FALSE(ring.reader.answer(result));  // nobody asked
  ring.take_answers();
  ASSERT_TRUE(ring.writer.wait_for_answers());  // nine are outstanding: at four of them
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(ring.reader.answer(result));
  EXPECT_TRUE(ring.reader.answer(result));
  EXPECT_FALSE(ring.reader.answer(result));  // rung already
  ring.take_answers();
  ASSERT_TRUE(ring.writer.wait_for_answers());
  const std::uint8_t rest[] = {0, 0, 0, 0};
  EXPECT_TRUE(ring.reader.answer(rest));  // past the number that was asked for
  ring.take_answers();
  ASSERT_TRUE(ring.writer.wait_for_answers());  // none outstanding
  ring.writer.put(numbered(0));
  ring.writer.publish();
  ASSERT_EQ(ring.reader.take(out).value(), 1U);
  EXPECT_TRUE(ring.reader.answer(result));
  EXPECT_FALSE(ring.reader.answer({}));
}

TEST(WildPeer, HeadIsCheckedAtBothEnds) {
  WildMemory memory(submission_bytes(kEntries));
  auto reader = RingReader::create(memory.map(), kEntries);
  ASSERT_TRUE(reader);
  std::vector<Descriptor> out(2 * kEntries);
  const auto is_malformed = [&](std::uint64_t head) {
    memory.counter() = head;
    EXPECT_FALSE(reader->wait());  // a lane must not sleep over it
    const auto taken = reader->take(out);
    return !taken && taken.error().code == FailureCode::kMalformed;
  };
  EXPECT_TRUE(is_malformed(kEntries + 1));
  EXPECT_TRUE(is_malformed(kAllOnes));
  memory.counter() = kEntries;
  ASSERT_EQ(reader->take(out).value(), kEntries);
  EXPECT_TRUE(is_malformed(kEntries - 1));
  EXPECT_TRUE(is_malformed(kEntries + 1));  // none of them was answered yet
  const std::uint8_t result[] = {0};
  reader->answer(result);
  memory.counter() = kEntries + 1;
  EXPECT_EQ(reader->take(out).value(), 1U);
  EXPECT_TRUE(is_malformed(kEntries + 2));
  memory.counter() = kEntries + 2;
  const auto taken = reader->take(out);
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().what, HasSubstr("is 66 where it must be from 65 to 65"));
}

TEST(WildPeer, AnswersAreCheckedAtBothEnds) {
  auto writer = RingWriter::create(kEntries);
  ASSERT_TRUE(writer);
  WildMemory memory(answer_bytes(kEntries));
  ASSERT_TRUE(writer->attach(memory.map()));
  std::vector<std::uint8_t> out;
  const auto is_malformed = [&](std::uint64_t answered) {
    memory.counter() = answered;
    EXPECT_FALSE(writer->wait_for_answers());
    const auto taken = writer->take_answers(out);
    return !taken && taken.error().code == FailureCode::kMalformed;
  };
  EXPECT_TRUE(is_malformed(1));
  for (std::uint64_t i = 0; i < 4; ++i) writer->put(numbered(i));
  EXPECT_TRUE(is_malformed(1));  // not published yet
  writer->publish();
  EXPECT_TRUE(is_malformed(5));
  EXPECT_TRUE(is_malformed(kAllOnes));
  EXPECT_TRUE(out.empty());
  memory.counter() = 3;
  EXPECT_EQ(writer->take_answers(out).value(), 3U);
  EXPECT_TRUE(is_malformed(2));
  EXPECT_TRUE(is_malformed(0));
  EXPECT_EQ(out.size(), 3U);
}

TEST(WildPeer, CannotMakeTheOtherSideRingForEver) {
  WildMemory memory(submission_bytes(kEntries));
  auto reader = RingReader::create(memory.map(), kEntries);
  ASSERT_TRUE(reader);
  std::vector<Descriptor> out(kEntries);
  memory.counter() = 8;
  ASSERT_EQ(reader->take(out).value(), 8U);
  const std::uint8_t result[] = {0};
  memory.second() = 1;
  EXPECT_TRUE(reader->answer(result));
  EXPECT_FALSE(reader->answer(result));
  memory.second() = 0;
  EXPECT_FALSE(reader->answer(result));
  memory.second() = 1;
  EXPECT_FALSE(reader->answer(result));
  memory.second() = kAllOnes;
  EXPECT_FALSE(reader->answer(result));
}

// Any head at any time: what is taken is what a simple rule allows, and no more than a ring of it
// is ever held.
RC_GTEST_PROP(WildPeer, HeadsAtRandomStayWithinTheRing, (std::uint64_t seed)) {
  Prng prng(seed);
  WildMemory memory(submission_bytes(kEntries));
  auto reader = RingReader::create(memory.map(), kEntries);
  RC_ASSERT(reader.has_value());
  std::vector<Descriptor> out(kEntries);
  std::uint64_t taken = 0;
  std::uint64_t answered = 0;
  for (int step = 0; step < 200; ++step) {
    const std::uint64_t head =
        prng.below(8) == 0 ? prng.next() : taken - 2 + prng.below(kEntries / 2);
    memory.counter() = head;
    const std::size_t room = prng.below(kEntries) + 1;
    const auto got = reader->take(std::span(out).first(room));
    const bool allowed = head >= taken && head <= answered + kEntries;
    RC_ASSERT(got.has_value() == allowed);
    if (allowed) {
      RC_ASSERT(*got == std::min<std::uint64_t>(room, head - taken));
      taken += *got;
    }
    RC_ASSERT(reader->unanswered() == taken - answered);
    RC_ASSERT(reader->unanswered() <= kEntries);
    const std::vector<std::uint8_t> results(prng.below(reader->unanswered() + 1));
    reader->answer(results);
    answered += results.size();
  }
}

// For the sanitizers: entries that change while they are copied.
TEST(WildPeer, ScribblesOverEntriesWhileTheyAreTaken) {
  WildMemory memory(submission_bytes(kEntries));
  auto reader = RingReader::create(memory.map(), kEntries);
  ASSERT_TRUE(reader);
  std::atomic<bool> done{false};
  std::thread scribbler([&] {
    Prng prng(3);
    while (!done.load()) {
      memory.word(16 + prng.below(kEntries * 8)).store(prng.next(), std::memory_order_relaxed);
    }
  });
  std::vector<Descriptor> out(kEntries);
  std::size_t sum = 0;
  for (std::uint64_t round = 1; round <= 2'000; ++round) {
    memory.counter() = round * kEntries;
    const auto taken = reader->take(out);
    if (!taken) break;
    sum += *taken;
    reader->answer(std::vector<std::uint8_t>(*taken, 0));
  }
  done = true;
  scribbler.join();
  EXPECT_EQ(sum, 2'000U * kEntries);
}

// Both ends, driven at random, against two queues.
RC_GTEST_PROP(Ring, BehavesLikeTwoQueues, (std::uint64_t seed)) {
  Prng prng(seed);
  Ring ring(kEntries << prng.below(3));
  const std::uint32_t entries = ring.writer.entries();
  std::deque<std::uint64_t> put;
  std::deque<std::uint64_t> published;
  std::deque<std::uint64_t> taken;
  std::deque<std::uint8_t> answered;
  std::uint64_t next = prng.next() >> 1;
  std::vector<Descriptor> out(entries);
  for (int step = 0; step < 400; ++step) {
    switch (prng.below(4)) {
      case 0:
        for (std::uint64_t n = prng.below(ring.writer.free_entries() + 1); n > 0; --n) {
          put.push_back(++next);
          ring.writer.put(numbered(next));
        }
        break;
      case 1:
        ring.writer.publish();
        published.insert(published.end(), put.begin(), put.end());
        put.clear();
        break;
      case 2: {
        const std::size_t room = prng.below(entries) + 1;
        const auto got = ring.reader.take(std::span(out).first(room));
        RC_ASSERT(got.has_value() && *got == std::min(room, published.size()));
        for (std::size_t i = 0; i < *got; ++i) {
          RC_ASSERT(equal(out[i], numbered(published.front())));
          taken.push_back(published.front());
          published.pop_front();
        }
        break;
      }
      default: {
        std::vector<std::uint8_t> results(prng.below(taken.size() + 1));
        prng.fill(results);
        ring.reader.answer(results);
        answered.insert(answered.end(), results.begin(), results.end());
        taken.erase(taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(results.size()));
        if (prng.below(2) == 0) {
          RC_ASSERT(ring.take_answers() == answered.size());
          RC_ASSERT(std::equal(answered.begin(), answered.end(), ring.answers.begin()));
          answered.clear();
        }
      }
    }
    RC_ASSERT(ring.reader.unanswered() == taken.size());
    RC_ASSERT(ring.writer.outstanding() ==
              put.size() + published.size() + taken.size() + answered.size());
    RC_ASSERT(ring.writer.free_entries() == entries - ring.writer.outstanding());
  }
}

}  // namespace
}  // namespace kvferry::data_plane::shm
