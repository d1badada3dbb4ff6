// The process-vm transport against a process of its own: what of the contract concerns a source
// without a fence, and what keeps it from writing where it should not.
#include "data_plane/process_vm/process_vm_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>

#include "base/clock.h"
#include "recording_sink.h"

namespace kvferry::data_plane {
namespace {

using layout::WriteOutcome;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::uint64_t kItemBytes = 1'024;
constexpr std::uint32_t kItems = 4;
constexpr std::size_t kMappedBytes = kItemBytes * kItems;  // one page; nothing is mapped after it
constexpr std::size_t kPartBytes = 8;
constexpr SessionEpoch kSession{7};
constexpr std::byte kBefore{0xEE};

// A process with a page of memory that has a hole behind it. Lives until the object goes.
class Peer {
 public:
  Peer() {
    memory_ = static_cast<std::byte*>(::mmap(nullptr, 2 * kMappedBytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::munmap(memory_ + kMappedBytes, kMappedBytes);
    std::memset(memory_, static_cast<int>(kBefore), kMappedBytes);
    EXPECT_EQ(::pipe(ask_.data()) | ::pipe(answer_.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      serve();
    }
    ::close(ask_[0]);
    ::close(answer_[1]);
  }
  ~Peer() {
    end();
    ::close(ask_[1]);
    ::close(answer_[0]);
    ::munmap(memory_, kMappedBytes);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  pid_t pid() const { return pid_; }
  std::uint64_t address(std::size_t at = 0) const {
    return reinterpret_cast<std::uintptr_t>(memory_) + at;
  }
  // What its memory holds now, as it says itself.
  std::vector<std::byte> read() const {
    const char word = 'r';
    std::vector<std::byte> bytes(kMappedBytes);
    EXPECT_EQ(::write(ask_[1], &word, 1), 1);
    std::size_t have = 0;
    while (have < bytes.size()) {
      const ssize_t got = ::read(answer_[0], bytes.data() + have, bytes.size() - have);
      if (got <= 0) {
        ADD_FAILURE() << "the peer is gone";
        break;
      }
      have += static_cast<std::size_t>(got);
    }
    return bytes;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);  // it stays a zombie
  }

 private:
  [[noreturn]] void serve() {
    char word = 0;
    while (::read(ask_[0], &word, 1) == 1) {
      if (::write(answer_[1], memory_, kMappedBytes) != static_cast<ssize_t>(kMappedBytes)) break;
    }
    ::_exit(0);
  }
  void end() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  std::byte* memory_ = nullptr;
  std::array<int, 2> ask_{};
  std::array<int, 2> answer_{};
  pid_t pid_ = -1;
};

// One region that is the peer's page, one that lies in two parts of it.
struct ProcessVm : ::testing::Test {
  ProcessVm() {
    for (std::size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<std::byte>(i * 7 + i / 251);
    }
  }

  ProcessBlob blob() const {
    const Result<ProcessName> name = name_process(peer.pid());
    return {name.value_or(ProcessName{}),
            {{{peer.address()}, {}},
             {{peer.address(2'048), peer.address(3'072)}, {kPartBytes, kPartBytes}}}};
  }
  SessionLink link(const ProcessBlob& of) const {
    SessionLink out;
    out.epoch = kSession;
    out.peer_blob = encode(of);
    out.peer_item_bytes = {kItemBytes, 2 * kPartBytes};
    out.peer_item_counts = {kItems + 2, kItems};  // two items more than are mapped
    return out;
  }
  void start(const ItemSplit& split = halves) {
    transport = std::make_unique<ProcessVmTransport>(config, sink, split);
    const std::array regions{
        Region{RegionKind::kKey, 0, source.data(), kItemBytes, kItems},
        Region{RegionKind::kAux, 0, source.data() + kMappedBytes, 2 * kPartBytes, kItems}};
    ASSERT_TRUE(transport->register_regions(regions));
  }
  void open() {
    const Status opened = transport->open_session(link(blob()));
    ASSERT_TRUE(opened) << opened.error().what;
  }
  // Item to item, whole.
  layout::Write write(std::uint64_t ticket, std::uint32_t item, std::uint32_t region = 0) const {
    const std::uint64_t bytes = region == 0 ? kItemBytes : 2 * kPartBytes;
    layout::Write out;
    out.ticket = TicketId(ticket);
    out.slot = GrantSlot(1);
    out.generation = Generation(1);
    out.source_region = out.target_region = RegionId(region);
    out.source_offset = item * bytes;
    out.target_item = item;
    out.length = bytes;
    return out;
  }
  void post(const layout::Write& one) { transport->post(kSession, {&one, 1}); }
  WriteOutcome send(const layout::Write& one) {
    post(one);
    EXPECT_TRUE(sink.wait_outcome(one.ticket.value()));
    return sink.outcome(one.ticket.value());
  }

  static Result<std::vector<std::vector<std::byte>>> halves(std::span<const std::byte> item) {
    const auto half = item.begin() + static_cast<std::ptrdiff_t>(kPartBytes);
    return std::vector<std::vector<std::byte>>{{item.begin(), half}, {half, item.end()}};
  }

  Peer peer;
  std::atomic<std::uint64_t> clock{0};
  RecordingSink sink{clock};
  std::vector<std::byte> source =
      std::vector<std::byte>(kMappedBytes + 2 * kPartBytes * kItems, std::byte{0});
  ThreadRoster roster;
  TransportConfig config;
  std::unique_ptr<ProcessVmTransport> transport;
};

TEST_F(ProcessVm, WhatLandedIsInTheOtherProcessAndNothingElseIs) {
  start();
  open();
  ASSERT_EQ(send(write(1, 1)), WriteOutcome::kLanded);
  const std::vector<std::byte> there = peer.read();
  EXPECT_EQ(std::memcmp(there.data() + kItemBytes, source.data() + kItemBytes, kItemBytes), 0);
  EXPECT_THAT(std::vector(there.begin(), there.begin() + kItemBytes), Each(kBefore));
  EXPECT_THAT(std::vector(there.begin() + 2 * kItemBytes, there.end()), Each(kBefore));
  EXPECT_EQ(sink.snapshot().tickets.at(1).quiets, 0U) << "landed needs no quiet";
}

TEST_F(ProcessVm, AnItemInPartsGoesToEachOfItsBuffers) {
  start();
  open();
  ASSERT_EQ(send(write(1, 2, 1)), WriteOutcome::kLanded);
  const std::vector<std::byte> there = peer.read();
  const std::byte* item = source.data() + kMappedBytes + 2 * (2 * kPartBytes);
  EXPECT_EQ(std::memcmp(there.data() + 2'048 + 2 * kPartBytes, item, kPartBytes), 0);
  EXPECT_EQ(std::memcmp(there.data() + 3'072 + 2 * kPartBytes, item + kPartBytes, kPartBytes), 0);
}

TEST_F(ProcessVm, AnItemThatCannotBeTakenApartIsRefused) {
  start([](std::span<const std::byte>) -> Result<std::vector<std::vector<std::byte>>> {
    return fail(FailureCode::kAuxInvalid, "no record");
  });
  open();
  EXPECT_EQ(send(write(1, 2, 1)), WriteOutcome::kRefused);
  EXPECT_THAT(peer.read(), Each(kBefore));
}

// Its writes are never answered any more: the manager's watchdog reads the cause and ends the
// rooms.
TEST_F(ProcessVm, AThreadThatEndsByAnExceptionSaysSo) {
  config.threads = &roster;
  start([](std::span<const std::byte>) -> Result<std::vector<std::vector<std::byte>>> {
    throw std::runtime_error("no memory for the parts");
  });
  open();
  post(write(1, 2, 1));
  const auto has_ended = [&] {
    const std::vector<ThreadPlacePtr> places = roster.places();
    return places.size() == 1 && places.front()->has_ended();
  };
  const Instant deadline = monotonic_now() + std::chrono::seconds(30);
  while (!has_ended() && monotonic_now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(has_ended());
  EXPECT_EQ(roster.places().front()->cause(), "no memory for the parts");
}

TEST_F(ProcessVm, MemoryThatIsNotThereIsRefusedAndTheNextWriteGoesThrough) {
  start();
  open();
  layout::Write beyond = write(1, 0);
  beyond.target_item = kItems + 1;  // a page that the layout has and the process has not
  const std::array both{beyond, write(2, 3)};
  transport->post(kSession, both);
  ASSERT_TRUE(sink.wait_outcome(1) && sink.wait_outcome(2));
  EXPECT_EQ(sink.outcome(1), WriteOutcome::kRefused);
  EXPECT_EQ(sink.outcome(2), WriteOutcome::kLanded);
  EXPECT_TRUE(sink.snapshot().unreachable.empty());
}

TEST_F(ProcessVm, AWriteThatRunsIntoAHoleIsUnknownThenQuiet) {
  start();
  open();
  ProcessBlob shifted = blob();
  shifted.regions[0].pointers[0] += kItemBytes / 2;  // its last item ends behind the page
  SessionLink other = link(shifted);
  other.epoch = SessionEpoch(8);
  ASSERT_TRUE(transport->open_session(other));
  const layout::Write torn = write(1, kItems - 1);
  transport->post(SessionEpoch(8), {&torn, 1});
  ASSERT_TRUE(sink.wait_quiet(1));
  const auto ticket = sink.snapshot().tickets.at(1);
  EXPECT_THAT(ticket.outcomes, ::testing::ElementsAre(WriteOutcome::kUnknown));
  EXPECT_EQ(ticket.quiets, 1U);
  EXPECT_EQ(ticket.quiets_before_outcome, 0U);
}

TEST_F(ProcessVm, WhatNamesNothingIsRefused) {
  start();
  open();
  layout::Write region = write(1, 0);
  region.target_region = RegionId(2);
  layout::Write item = write(2, 0);
  item.target_item = kItems + 2;
  layout::Write length = write(3, 0);
  length.offset_in_item = 1;
  layout::Write from = write(4, 0);
  from.source_offset = kMappedBytes;
  layout::Write part = write(5, 0, 1);
  part.length = kPartBytes;
  for (const layout::Write& bad : {region, item, length, from, part}) {
    EXPECT_EQ(send(bad), WriteOutcome::kRefused) << "ticket " << bad.ticket.value();
  }
  const layout::Write stranger = write(6, 0);
  transport->post(SessionEpoch(99), {&stranger, 1});
  ASSERT_TRUE(sink.wait_outcome(6));
  EXPECT_EQ(sink.outcome(6), WriteOutcome::kRefused);
  EXPECT_THAT(peer.read(), Each(kBefore));
}

TEST_F(ProcessVm, AProcessThatEndedIsToldOnceAndNeverOpenedAgain) {
  start();
  open();
  peer.kill();
  EXPECT_EQ(send(write(1, 0)), WriteOutcome::kRefused);
  EXPECT_EQ(send(write(2, 0)), WriteOutcome::kRefused);
  ASSERT_TRUE(sink.wait([](const auto& state) { return !state.unreachable.empty(); }));
  transport->stop();  // after which nothing more comes
  EXPECT_EQ(sink.snapshot().unreachable.size(), 1U);
  const Status again = transport->open_session(link(blob()));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, FailureCode::kPeerLost);
}

TEST_F(ProcessVm, ANumberThatNamesAnotherProcessByNowIsNotOpened) {
  start();
  ProcessBlob reused = blob();
  --reused.process.start_ticks;
  const Status opened = transport->open_session(link(reused));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, FailureCode::kPeerLost);
  EXPECT_THAT(opened.error().what, HasSubstr("another process"));
}

TEST_F(ProcessVm, ThisProcessAndUnreadableMemoryAreNotOpened) {
  start();
  ProcessBlob own = blob();
  own.process = *name_process(::getpid());
  EXPECT_EQ(transport->open_session(link(own)).error().code, FailureCode::kInvalidArgument);
  ProcessBlob hole = blob();
  hole.regions[0].pointers[0] = peer.address(kMappedBytes);
  const Status opened = transport->open_session(link(hole));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, FailureCode::kOutsideGrant);
}

TEST_F(ProcessVm, WhatIsQueuedCanBeTakenBackWhileAnotherIsUnderWay) {
  std::promise<void> entered;
  std::promise<void> released;
  start([&, go = released.get_future().share()](std::span<const std::byte> item) {
    entered.set_value();
    go.wait();
    return halves(item);
  });
  open();
  post(write(1, 0, 1));
  entered.get_future().wait();
  post(write(2, 1));
  layout::Write other = write(3, 2);
  other.slot = GrantSlot(2);
  post(other);
  transport->give_up(kSession, GrantSlot(1), Generation(1));
  EXPECT_EQ(sink.outcome(2), WriteOutcome::kRefused) << "told within the call";
  EXPECT_FALSE(sink.snapshot().has_outcome(1)) << "it can't be taken back";
  EXPECT_FALSE(sink.snapshot().has_outcome(3)) << "of another grant";
  transport->close_session(kSession);
  EXPECT_EQ(sink.outcome(3), WriteOutcome::kRefused);
  ASSERT_TRUE(transport->unregister_regions(Unregister::kWhenUnused));
  EXPECT_EQ(sink.snapshot().releases, 0U) << "one write reads them still";
  released.set_value();
  ASSERT_TRUE(sink.wait_outcome(1));
  EXPECT_EQ(sink.outcome(1), WriteOutcome::kLanded);
  EXPECT_TRUE(sink.wait([](const auto& state) { return state.releases == 1; }));
  transport->stop();
  for (const auto& [ticket, record] : sink.snapshot().tickets) {
    EXPECT_EQ(record.outcomes.size(), 1U) << "ticket " << ticket;
  }
}

TEST(ProcessBlob, IsReadAsWrittenAndNotCutShort) {
  const ProcessBlob blob{{4'711, 12'345'678'901ULL},
                         {{{0x7F00'0000'1000ULL}, {}}, {{1, 2, 3}, {64, 64, 512}}}};
  const std::vector<std::uint8_t> bytes = encode(blob);
  ASSERT_EQ(decode_process_blob(bytes).value(), blob);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_process_blob(std::span(bytes).first(length))) << length;
  }
  std::vector<std::uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(decode_process_blob(longer));
  ProcessBlob uneven = blob;
  uneven.regions[1].part_bytes.pop_back();
  EXPECT_FALSE(decode_process_blob(encode(uneven)));
}

}  // namespace
}  // namespace kvferry::data_plane
