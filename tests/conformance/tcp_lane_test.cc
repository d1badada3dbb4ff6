// What only the tcp transport has: lanes that break, strangers, and writers that keep to no
// protocol.
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/crypto.h"
#include "data_plane/factory.h"
#include "process_state.h"
#include "raw_lane.h"
#include "rig.h"

namespace kvferry::data_plane {
namespace {

using layout::Write;
using layout::WriteOutcome;

constexpr std::uint64_t kSession = 21;
constexpr std::uint32_t kRawSerial = 1'000'000;  // far from those of the rig's own source
constexpr Case kCase{Kind::kTcp, kSimple};

std::uint64_t counter(const Transport& transport, std::string_view name) {
  for (const TransportCounter& counter : transport.counters()) {
    if (counter.name == name) return counter.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

class TcpLane : public testing::Test {
 protected:
  explicit TcpLane(const Rig::Tuning& tuning = Rig::Tuning()) : rig_(kCase, tuning) {
    rig_.open(kSession);
  }
  RawLane raw(std::uint32_t serial = kRawSerial) {
    auto lane = RawLane::connect(rig_.target_address());
    EXPECT_TRUE(lane);
    EXPECT_TRUE(lane->authenticate(rig_.secret(kSession), SessionEpoch(kSession), serial));
    return std::move(*lane);
  }
  void expect_untouched(std::uint32_t page) { EXPECT_TRUE(rig_.item_is(0, page, kCanary)); }

  Rig rig_;
};

TEST_F(TcpLane, AWriterThatStopsInMidFrameHoldsNoFence) {
  rig_.grant(1, kSession, 0, 1, {0});
  RawLane lane = raw();
  const Write write = rig_.write(0, 1, 0, 0);
  const auto bytes = RawLane::frame(std::span(&write, 1), 1, 0xAB);
  const std::span<const std::uint8_t> all(bytes);
  const std::size_t half = bytes.size() / 2;
  ASSERT_TRUE(lane.send(all.first(half)));
  // The second heartbeat is made in a later turn of the target than the first, and a turn reads
  // before it sends heartbeats: the first half has been read by then.
  ASSERT_TRUE(lane.wait_heartbeat());
  ASSERT_TRUE(lane.wait_heartbeat());
  ASSERT_TRUE(rig_.fence(1));
  EXPECT_EQ(rig_.target_pool().item(0, 0)[0], std::byte{0xAB}) << "the half frame was read";
  const auto page = rig_.target_pool().item(0, 0);
  std::fill(page.begin(), page.end(), kCanary);
  ASSERT_TRUE(lane.send(all.subspan(half)));
  const auto answer = lane.answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->results, std::vector{WriteResult::kTorn});
  expect_untouched(0);
  EXPECT_TRUE(rig_.target_sink().snapshot().torn.empty()) << "the grant was over";
}

TEST_F(TcpLane, AWriterThatDiesInMidFrameLeavesATornWrite) {
  rig_.grant(1, kSession, 0, 1, {0, 1});
  const std::vector<Write> writes{rig_.write(0, 1, 0, 0), rig_.write(0, 1, 0, 1)};
  {
    RawLane lane = raw();
    const auto bytes = RawLane::frame(writes, 1, 0xAB);
    ASSERT_TRUE(lane.send(std::span(bytes).first(1'000)));
    ASSERT_TRUE(lane.wait_heartbeat());
    ASSERT_TRUE(lane.wait_heartbeat());
  }
  ASSERT_TRUE(rig_.target_sink().wait(
      [](const auto& state) { return !state.torn.empty() && !state.lane_failures.empty(); }));
  const auto state = rig_.target_sink().snapshot();
  ASSERT_EQ(state.torn.size(), 1U) << "the second write was not touched";
  EXPECT_EQ(state.torn.front().ticket, writes[0].ticket);
  // The untouched range is free for another ticket; the torn one is not.
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 1)), WriteOutcome::kLanded);
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 0)), WriteOutcome::kRefused);
}

TEST_F(TcpLane, ASecondCopyOfATicketGetsTheFirstOnesAnswer) {
  rig_.grant(1, kSession, 0, 1, {0, 1});
  const Write write = rig_.write(0, 1, 0, 0);
  RawLane first = raw();
  ASSERT_TRUE(first.send(RawLane::frame(std::span(&write, 1), 1, 0xAB)));
  auto answer = first.answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->results, std::vector{WriteResult::kLanded});
  RawLane second = raw(kRawSerial + 1);
  ASSERT_TRUE(second.send(RawLane::frame(std::span(&write, 1), 9, 0xCD)));
  answer = second.answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.sequence, 9U);
  EXPECT_EQ(answer->results, std::vector{WriteResult::kLanded});
  EXPECT_TRUE(rig_.item_is(0, 0, std::byte{0xAB})) << "the second copy was executed";
  EXPECT_EQ(rig_.target_sink().snapshot().landings.size(), 1U);
  // Also after its grant is over.
  ASSERT_TRUE(rig_.fence(1));
  ASSERT_TRUE(second.send(RawLane::frame(std::span(&write, 1), 10, 0xCD)));
  answer = second.answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->results, std::vector{WriteResult::kLanded});
  EXPECT_TRUE(rig_.item_is(0, 0, std::byte{0xAB}));
}

TEST_F(TcpLane, ASecondCopyWaitsForTheFirstOnesEnd) {
  rig_.grant(1, kSession, 0, 1, {0, 1});
  const Write write = rig_.write(0, 1, 0, 0);
  const auto bytes = RawLane::frame(std::span(&write, 1), 1, 0xAB);
  const std::span<const std::uint8_t> all(bytes);
  RawLane first = raw();
  ASSERT_TRUE(first.send(all.first(500)));
  ASSERT_TRUE(first.wait_heartbeat());
  ASSERT_TRUE(first.wait_heartbeat());
  RawLane second = raw(kRawSerial + 1);
  ASSERT_TRUE(second.send(RawLane::frame(std::span(&write, 1), 5, 0xCD)));
  // A later frame on the same lane is answered meanwhile.
  const Write other = rig_.write(0, 1, 0, 1);
  ASSERT_TRUE(second.send(RawLane::frame(std::span(&other, 1), 6, 0xCD)));
  auto answer = second.answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.sequence, 6U);
  ASSERT_TRUE(first.send(all.subspan(500)));
  answer = second.answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.sequence, 5U);
  EXPECT_EQ(answer->results, std::vector{WriteResult::kLanded});
  EXPECT_TRUE(rig_.item_is(0, 0, std::byte{0xAB}));
}

TEST_F(TcpLane, AVoidFrameIsTorn) {
  rig_.grant(1, kSession, 0, 1, {0});
  const Write write = rig_.write(0, 1, 0, 0);
  auto bytes = RawLane::frame(std::span(&write, 1), 1, 0);
  bytes.resize(bytes.size() - kTrailerBytes);
  append_trailer(bytes, Trailer::kVoid);
  RawLane lane = raw();
  ASSERT_TRUE(lane.send(bytes));
  const auto answer = lane.answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->results, std::vector{WriteResult::kTorn});
  const auto state = rig_.target_sink().snapshot();
  EXPECT_EQ(state.torn.size(), 1U);
  EXPECT_TRUE(state.landings.empty());
}

TEST_F(TcpLane, OneFrameMayHoldGoodAndBadWrites) {
  rig_.grant(1, kSession, 0, 1, {0, 2});
  std::vector<Write> writes{rig_.write(0, 1, 0, 0), rig_.write(0, 1, 0, 1), rig_.write(0, 1, 0, 2),
                            rig_.write(0, 1, 0, 0)};
  writes[1].length = 300'000;  // longer than an item; its bytes are read and thrown away
  for (Write& write : writes) write.length = std::min<std::uint64_t>(write.length, 50'000);
  Write empty = rig_.write(0, 1, 0, 2);
  empty.length = 0;
  writes.push_back(empty);
  RawLane lane = raw();
  ASSERT_TRUE(lane.send(RawLane::frame(writes, 1, 0xAB)));
  const auto answer = lane.answer();
  ASSERT_TRUE(answer);
  const auto refused = WriteResult::kRefused;
  EXPECT_EQ(answer->results,
            (std::vector{WriteResult::kLanded, refused, WriteResult::kLanded, refused, refused}));
  expect_untouched(1);
}

TEST_F(TcpLane, GarbageClosesItsLaneWithTheReasonAndNoOther) {
  rig_.grant(1, kSession, 0, 1, {0});
  std::vector<std::vector<std::uint8_t>> garbage;
  garbage.emplace_back(200, std::uint8_t{0xA5});
  Write write = rig_.write(0, 1, 0, 0);
  FrameHeader header;
  header.type = FrameType::kData;
  header.count = 0xFFFF;
  append_header(garbage.emplace_back(), header);
  header.count = 1;
  header.payload_bytes = ~0ULL;
  append_header(garbage.emplace_back(), header);
  header.count = 2;
  header.payload_bytes = 100;
  append_header(garbage.emplace_back(), header);
  write.length = ~0ULL - 50;  // the sum of the two lengths wraps to 100
  append_descriptor(garbage.back(), write);
  write.length = 151;
  append_descriptor(garbage.back(), write);
  append_stream_padding(garbage.back(), garbage.back().size());
  header.type = FrameType::kAck;
  append_header(garbage.emplace_back(), header);
  header.type = FrameType::kResolve;
  header.count = 60'000;
  append_header(garbage.emplace_back(), header);
  write = rig_.write(0, 1, 0, 0);
  write.length = 100;
  garbage.push_back(RawLane::frame(std::span(&write, 1), 1, 0xAB));
  garbage.back()[garbage.back().size() - kTrailerBytes] ^= 1;
  garbage.push_back(garbage.back());
  garbage.back()[garbage.back().size() - kTrailerBytes] ^= 1;
  garbage.back().back() = 1;  // of the trailer's reserve
  header = {};
  append_header(garbage.emplace_back(), header);
  garbage.back().back() = 1;  // of the header's reserve

  for (std::size_t i = 0; i < garbage.size(); ++i) {
    RawLane lane = raw(kRawSerial + static_cast<std::uint32_t>(i));
    ASSERT_TRUE(lane.send(garbage[i]));
    EXPECT_TRUE(lane.wait_closed()) << "garbage " << i;
  }
  ASSERT_TRUE(rig_.target_sink().wait(
      [&](const auto& state) { return state.lane_failures.size() == garbage.size(); }));
  for (const Failure& failure : rig_.target_sink().snapshot().lane_failures) {
    EXPECT_EQ(failure.code, FailureCode::kMalformed);
    EXPECT_NE(failure.what.find("framing"), std::string::npos) << failure.what;
  }
  rig_.grant(2, kSession, 1, 1, {1});
  EXPECT_EQ(rig_.send(kSession, rig_.write(1, 1, 0, 1)), WriteOutcome::kLanded);
  EXPECT_TRUE(rig_.source_sink().snapshot().lane_failures.empty());
}

TEST_F(TcpLane, AStrangerGetsNothing) {
  rig_.grant(1, kSession, 0, 1, {0});
  const Write write = rig_.write(0, 1, 0, 0);
  const auto frame = RawLane::frame(std::span(&write, 1), 1, 0xAB);
  {
    auto lane = RawLane::connect(rig_.target_address());
    ASSERT_TRUE(lane);
    std::array<std::uint8_t, 32> wrong{};
    EXPECT_FALSE(lane->authenticate(wrong, SessionEpoch(kSession), kRawSerial));
    lane->send(frame);
    EXPECT_TRUE(lane->wait_closed());
    EXPECT_EQ(counter(rig_.target(), "lane_strangers_rejected"), 1U);
  }
  {
    auto lane = RawLane::connect(rig_.target_address());
    ASSERT_TRUE(lane);
    ASSERT_TRUE(lane->send(frame));
    EXPECT_EQ(lane->bytes_until_closed(), 0U);
  }
  {
    // Half a response and then silence: closed by its deadline.
    auto lane = RawLane::connect(rig_.target_address());
    ASSERT_TRUE(lane);
    ASSERT_TRUE(lane->send(std::span(frame).first(10)));
    EXPECT_EQ(lane->bytes_until_closed(), 0U);
  }
  expect_untouched(0);
  EXPECT_TRUE(rig_.target_sink().snapshot().lane_failures.empty())
      << "a stranger can't make a session look broken";
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded);
}

TEST_F(TcpLane, ASecretOfAnotherSessionOpensNoLane) {
  rig_.open(kSession + 1);
  auto lane = RawLane::connect(rig_.target_address());
  ASSERT_TRUE(lane);
  EXPECT_FALSE(lane->authenticate(rig_.secret(kSession + 1), SessionEpoch(kSession), kRawSerial));
}

TEST_F(TcpLane, StrangersAreLimitedInNumber) {
  std::vector<RawLane> strangers;
  for (int i = 0; i < 400; ++i) {
    auto lane = RawLane::connect(rig_.target_address());
    if (!lane) break;
    strangers.push_back(std::move(*lane));
  }
  EXPECT_LE(strangers.size(), 256U);
  // They hold nobody up who is inside.
  rig_.grant(1, kSession, 0, 1, {0});
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded);
}

TEST(TcpStrangers, TheirLimitIsAnOptionAndThoseBeyondItAreCounted) {
  Rig::Tuning tuning;
  tuning.max_lane_strangers = 3;
  Rig rig(kCase, tuning);
  std::vector<RawLane> strangers;
  for (int i = 0; i < 20; ++i) {
    auto lane = RawLane::connect(rig.target_address());
    if (!lane) break;
    strangers.push_back(std::move(*lane));
  }
  EXPECT_EQ(strangers.size(), 3U);
  EXPECT_EQ(counter(rig.target(), "lane_strangers_full"), 1U);
  EXPECT_TRUE(comes_to([&] { return counter(rig.target(), "lane_strangers_timed_out"); }, 3));
}

TEST_F(TcpLane, ALaneMayComeBeforeItsSession) {
  std::array<std::uint8_t, 32> secret{};
  auto lane = RawLane::connect(rig_.target_address());
  ASSERT_TRUE(lane);
  std::thread opener([&] {
    SessionLink link;
    link.epoch = SessionEpoch(99);
    link.local_role = Role::kDecode;
    EXPECT_TRUE(rig_.target().open_session(link));
  });
  EXPECT_TRUE(lane->authenticate(secret, SessionEpoch(99), 1));
  opener.join();
}

TEST_F(TcpLane, AskingHowALaneEndedEndsIt) {
  rig_.grant(1, kSession, 0, 1, {0, 1});
  const Write begun = rig_.write(0, 1, 0, 0);
  const Write never = rig_.write(0, 1, 0, 1);
  RawLane lost = raw();
  const auto frame = RawLane::frame(std::span(&begun, 1), 1, 0xAB);
  ASSERT_TRUE(lost.send(std::span(frame).first(500)));
  ASSERT_TRUE(lost.wait_heartbeat());
  ASSERT_TRUE(lost.wait_heartbeat());
  RawLane next = raw(kRawSerial + 1);
  FrameHeader header;
  header.type = FrameType::kResolve;
  header.count = 2;
  header.slot = kRawSerial;
  header.sequence = 77;
  std::vector<std::uint8_t> question;
  append_header(question, header);
  for (const Write& write : {begun, never}) {
    append_resolve_entry(question, {write.ticket, write.slot, write.generation});
  }
  append_stream_padding(question, question.size());
  ASSERT_TRUE(next.send(question));
  const auto answer = next.answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.type, FrameType::kResolved);
  EXPECT_EQ(answer->header.sequence, 77U);
  EXPECT_EQ(answer->results, (std::vector{WriteResult::kTorn, WriteResult::kRefused}));
  EXPECT_TRUE(lost.wait_closed()) << "what it still holds must not land after the answer";
}

// A listener whose connections come up in the kernel and are never answered.
class TcpBlackHole : public testing::Test {
 protected:
  TcpBlackHole() : listener_(std::move(tcp::listen_on("127.0.0.1", 0).value())) {
    TransportConfig config;
    config.lane_timeout_ms = 100;
    config.lane_heartbeat_ms = 20;
    config.max_queued_writes = 4;
    source_ = std::move(make_transport("tcp", config, sink_).value());
    pool_.fill_pattern(1);
    EXPECT_TRUE(source_->register_regions(pool_.regions()));
    SessionLink link;
    link.epoch = SessionEpoch(kSession);
    link.peer_blob = encode_blob({"127.0.0.1", listener_.port, 1U << 20, 128});
    link.peer_item_bytes = {kSimple.item_bytes};
    EXPECT_TRUE(source_->open_session(link));
  }

  std::atomic<std::uint64_t> clock_{0};
  RecordingSink sink_{clock_};
  Pool pool_{kSimple};
  tcp::Listener listener_;
  std::unique_ptr<Transport> source_;
};

TEST_F(TcpBlackHole, TheSessionIsReportedUnreachableOnce) {
  ASSERT_TRUE(sink_.wait([](const auto& state) { return !state.unreachable.empty(); }));
  const std::size_t failures = sink_.snapshot().lane_failures.size();
  ASSERT_TRUE(
      sink_.wait([&](const auto& state) { return state.lane_failures.size() >= failures + 6; }));
  const auto state = sink_.snapshot();
  ASSERT_EQ(state.unreachable.size(), 1U);
  const auto& [session, cause] = state.unreachable.front();
  EXPECT_EQ(session, SessionEpoch(kSession));
  EXPECT_EQ(cause.code, FailureCode::kPeerUnreachable);
  const std::string address = "127.0.0.1:" + std::to_string(listener_.port);
  EXPECT_EQ(cause.peer, address);
  EXPECT_NE(cause.what.find(address), std::string::npos) << cause.what;
  EXPECT_NE(cause.what.find("lane_timeout_ms"), std::string::npos) << cause.what;
}

TEST_F(TcpBlackHole, WritesBeyondTheQueueAreRefusedAndCounted) {
  std::vector<Write> writes(6);
  for (std::uint32_t i = 0; i < writes.size(); ++i) {
    writes[i].ticket = TicketId(i + 1);
    writes[i].target_item = i;
    writes[i].length = kSimple.item_bytes;
  }
  source_->post(SessionEpoch(kSession), writes);
  ASSERT_TRUE(sink_.wait_outcome(6));
  EXPECT_EQ(sink_.snapshot().completed(), 2U);
  EXPECT_EQ(sink_.outcome(5), WriteOutcome::kRefused);
  EXPECT_EQ(sink_.outcome(6), WriteOutcome::kRefused);
  EXPECT_EQ(counter(*source_, "queued_writes_refused"), 2U);
  source_->stop();
  EXPECT_EQ(counter(*source_, "queued_writes_refused"), 2U) << "also after the end";
}

class TcpRelay : public TcpLane {
 protected:
  static Rig::Tuning tuning() {
    Rig::Tuning tuning;
    tuning.with_relay = true;
    tuning.frame_bytes = 200U << 10;
    tuning.lane_timeout_ms = 2'000;
    return tuning;
  }
  TcpRelay() : TcpLane(tuning()) {}

  std::vector<Write> writes_of(std::uint32_t slot, std::uint64_t generation, std::uint32_t pages) {
    std::vector<Write> writes;
    for (std::uint32_t page = 0; page < pages; ++page) {
      writes.push_back(rig_.write(slot, generation, 0, page));
    }
    return writes;
  }
  static std::vector<std::uint32_t> pages(std::uint32_t count) {
    std::vector<std::uint32_t> list;
    for (std::uint32_t page = 0; page < count; ++page) list.push_back(page);
    return list;
  }
};

TEST_F(TcpRelay, AfterACutTheTargetStatesEachTicketsOutcome) {
  constexpr std::uint32_t kPages = 60;
  std::size_t landed = 0;
  std::size_t refused = 0;
  std::size_t torn = 0;
  for (std::uint64_t round = 1; round <= 20; ++round) {
    rig_.grant(round, kSession, 0, round, pages(kPages));
    rig_.target_pool().fill(kCanary);
    const auto writes = writes_of(0, round, kPages);
    rig_.relay().cut_after(round * 100'000 + 137);
    rig_.post(kSession, writes);
    ASSERT_TRUE(rig_.source_sink().wait(
        [&](const auto& state) { return state.completed() == round * kPages; }));
    const auto target = rig_.target_sink().snapshot();
    for (const Write& write : writes) {
      const auto outcome = rig_.source_sink().outcome(write.ticket.value());
      const bool was_torn =
          std::any_of(target.torn.begin(), target.torn.end(),
                      [&](const Landing& torn_one) { return torn_one.ticket == write.ticket; });
      if (outcome == WriteOutcome::kLanded) {
        ++landed;
        EXPECT_TRUE(rig_.item_equals_source(0, write.target_item));
      } else if (outcome == WriteOutcome::kRefused) {
        ++refused;
        EXPECT_TRUE(rig_.item_is(0, write.target_item, kCanary));
      } else {
        ++torn;
        EXPECT_TRUE(was_torn);
        EXPECT_TRUE(rig_.source_sink().wait_quiet(write.ticket.value()));
      }
      EXPECT_TRUE(outcome == WriteOutcome::kUnknown || !was_torn);
    }
    ASSERT_TRUE(rig_.fence(round));
  }
  EXPECT_GT(landed, 0U);
  EXPECT_GT(refused + torn, 0U);
  EXPECT_FALSE(rig_.source_sink().snapshot().lane_failures.empty());
  rig_.grant(100, kSession, 0, 100, {0});
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 100, 0, 0)), WriteOutcome::kLanded);
  for (const auto& [ticket, record] : rig_.source_sink().snapshot().tickets) {
    EXPECT_EQ(record.outcomes.size(), 1U);
  }
}

TEST_F(TcpRelay, ASilentLaneIsClosedOnBothSidesAndComesBack) {
  rig_.grant(1, kSession, 0, 1, {0, 1});
  ASSERT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded);
  rig_.relay().freeze(true);
  const Write write = rig_.write(0, 1, 0, 1);
  rig_.post(kSession, {write});
  const auto has_failed = [](const auto& state) { return state.lane_failures.size() >= 2; };
  ASSERT_TRUE(rig_.source_sink().wait(has_failed));
  ASSERT_TRUE(rig_.target_sink().wait(has_failed));
  EXPECT_FALSE(rig_.source_sink().snapshot().has_outcome(write.ticket.value()))
      << "its end is not known before the target can be asked";
  rig_.relay().freeze(false);
  ASSERT_TRUE(rig_.source_sink().wait_outcome(write.ticket.value()));
  EXPECT_EQ(rig_.source_sink().outcome(write.ticket.value()), WriteOutcome::kRefused);
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 1)), WriteOutcome::kLanded);
}

TEST_F(TcpRelay, APeerThatIsNotThereIsReportedAndNotFatal) {
  rig_.target().stop();
  rig_.relay().cut();
  ASSERT_TRUE(
      rig_.source_sink().wait([](const auto& state) { return state.lane_failures.size() >= 4; }));
  const Write write = rig_.write(0, 1, 0, 0);
  rig_.post(kSession, {write});
  rig_.source().close_session(SessionEpoch(kSession));
  EXPECT_TRUE(rig_.source_sink().wait_quiet(write.ticket.value()));
}

TEST(TcpResources, SessionsLeaveNoDescriptorAndNoThread) {
  // A sanitizer has a thread of its own, which it starts together with the first of a process.
  std::thread([] {}).join();
  const std::size_t files_before = open_files();
  const std::size_t threads_before = threads();
  {
    Rig rig(kCase);
    const std::size_t files = open_files();
    const std::size_t running = threads();
    for (std::uint64_t session = 1; session <= 10; ++session) {
      rig.open(session);
      rig.grant(session, session, 0, 1, {0});
      ASSERT_EQ(rig.send(session, rig.write(0, 1, 0, 0)), WriteOutcome::kLanded);
      ASSERT_TRUE(rig.fence(session));
      rig.close(session);
    }
    EXPECT_TRUE(comes_to(open_files, files));
    EXPECT_TRUE(comes_to(threads, running));
  }
  EXPECT_TRUE(comes_to(open_files, files_before));
  EXPECT_TRUE(comes_to(threads, threads_before));
}

}  // namespace
}  // namespace kvferry::data_plane
