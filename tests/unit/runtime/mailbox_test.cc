#include "runtime/mailbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

namespace kvferry::runtime {
namespace {

std::unique_ptr<Mailbox> make(std::size_t limit) { return std::move(*Mailbox::make(limit)); }

core::SenderOpened opened(std::uint64_t id) { return {SenderId(id), RoomId(id), Binding{}}; }
core::SenderCleared cleared(std::uint64_t id) { return {SenderId(id)}; }

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

bool await_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 20'000) == 1;
}

TEST(Mailbox, AFullQueueIsAValueAndNothingOwedIsRefused) {
  const auto mailbox = make(2);
  EXPECT_TRUE(mailbox->push(opened(1)));
  EXPECT_TRUE(mailbox->push(opened(2)));
  const Status full = mailbox->push(opened(3));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, FailureCode::kQueueFull);
  EXPECT_TRUE(mailbox->push_reserved(cleared(1)));
  mailbox->fence_done(GrantId(1));

  std::vector<core::Event> events;
  mailbox->drain(events);
  ASSERT_EQ(events.size(), 4U);
  EXPECT_TRUE(std::holds_alternative<core::FenceCompleted>(events[0]));
  EXPECT_EQ(std::get<core::SenderOpened>(events[1]).sender, SenderId(1));
  EXPECT_EQ(std::get<core::SenderOpened>(events[2]).sender, SenderId(2));
  EXPECT_TRUE(std::holds_alternative<core::SenderCleared>(events[3]));
  EXPECT_TRUE(mailbox->push(opened(3)));
}

TEST(Mailbox, AtMostSoManyCallsComeAtOnceAndTheRestKeepsItsOrderAndCounts) {
  const auto mailbox = make(3);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EXPECT_TRUE(mailbox->push(opened(id)));
  }
  std::vector<core::Event> events;
  std::uint64_t next = 1;
  const auto take = [&](std::size_t count) {
    mailbox->drain(events, 2);
    EXPECT_EQ(events.size(), count);
    for (const core::Event& event : events) {
      EXPECT_EQ(std::get<core::SenderOpened>(event).sender, SenderId(next++));
    }
  };
  take(2);
  // The third waits: it is announced, and it counts until it was taken.
  EXPECT_TRUE(readable(mailbox->wake_fd()));
  EXPECT_FALSE(mailbox->push(opened(4)));
  mailbox->fence_done(GrantId(1));
  mailbox->drain(events, 0);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<core::FenceCompleted>(events[0]));
  take(1);
  EXPECT_FALSE(readable(mailbox->wake_fd()));
  for (std::uint64_t id = 4; id <= 6; ++id) {
    EXPECT_TRUE(mailbox->push(opened(id)));
  }
  EXPECT_FALSE(mailbox->push(opened(7)));
  take(2);
  take(1);
  EXPECT_TRUE(mailbox->push(opened(7)));
  take(1);
}

TEST(Mailbox, ATeardownNamesItsSession) {
  const auto mailbox = make(2);
  mailbox->session_torn_down(SessionEpoch(7));
  mailbox->session_torn_down(SessionEpoch(8));
  std::vector<core::Event> events;
  mailbox->drain(events);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(std::get<core::SessionTornDown>(events[0]).session, SessionEpoch(7));
  EXPECT_EQ(std::get<core::SessionTornDown>(events[1]).session, SessionEpoch(8));
}

TEST(Mailbox, JoinsConsecutiveCompletions) {
  const auto mailbox = make(2);
  const layout::WriteCompletion landed{SessionEpoch(1), TicketId(1), layout::WriteOutcome::kLanded};
  const layout::Landing landing{};
  const TicketId tickets[] = {TicketId(1), TicketId(2)};
  mailbox->writes_completed({&landed, 1});
  mailbox->writes_completed({&landed, 1});
  mailbox->writes_landed({&landing, 1});
  mailbox->writes_landed({&landing, 1});
  mailbox->fence_done(GrantId(1));
  mailbox->fence_done(GrantId(2));
  mailbox->writes_quiet(SessionEpoch(1), tickets);
  mailbox->writes_quiet(SessionEpoch(1), tickets);
  mailbox->writes_quiet(SessionEpoch(2), tickets);
  mailbox->write_torn(landing, "stopped in the middle");
  mailbox->write_torn(landing, "landed altered");

  std::vector<core::Event> events;
  mailbox->drain(events);
  ASSERT_EQ(events.size(), 8U);
  EXPECT_EQ(std::get<core::WritesCompleted>(events[0]).completions.size(), 2U);
  EXPECT_EQ(std::get<core::WritesLanded>(events[1]).landings.size(), 2U);
  EXPECT_EQ(std::get<core::FenceCompleted>(events[2]).grant, GrantId(1));
  EXPECT_EQ(std::get<core::FenceCompleted>(events[3]).grant, GrantId(2));
  EXPECT_EQ(std::get<core::WritesQuiet>(events[4]).tickets.size(), 4U);
  EXPECT_EQ(std::get<core::WritesQuiet>(events[5]).session, SessionEpoch(2));
  EXPECT_EQ(std::get<core::WriteTorn>(events[7]).how, "landed altered");
}

TEST(Mailbox, LaneFailuresAreCapped) {
  const auto mailbox = make(2);
  for (int i = 0; i < 5'000; ++i) {
    mailbox->lane_failed(SessionEpoch(1), Failure{});
  }
  std::vector<core::Event> events;
  mailbox->drain(events);
  EXPECT_EQ(events.size() + mailbox->lane_failures_dropped(), 5'000U);
  EXPECT_GT(mailbox->lane_failures_dropped(), 0U);
}

TEST(Mailbox, AnUnreachableSessionIsNeverDropped) {
  const auto mailbox = make(2);
  for (int i = 0; i < 5'000; ++i) {
    mailbox->lane_failed(SessionEpoch(1), Failure{});
  }
  mailbox->session_unreachable(SessionEpoch(2), Failure{FailureCode::kPeerUnreachable,
                                                        FailureWhere::kPath, "no lane", "a:1", -1});
  std::vector<core::Event> events;
  mailbox->drain(events);
  ASSERT_FALSE(events.empty());
  EXPECT_FALSE(std::get<core::LaneFailed>(events.front()).all_lanes);
  const auto& last = std::get<core::LaneFailed>(events.back());
  EXPECT_TRUE(last.all_lanes);
  EXPECT_EQ(last.session, SessionEpoch(2));
  EXPECT_EQ(last.cause.what, "no lane");
}

TEST(Mailbox, IsReadableWhileSomethingWaits) {
  const auto mailbox = make(8);
  std::vector<core::Event> events;
  EXPECT_FALSE(readable(mailbox->wake_fd()));
  ASSERT_TRUE(mailbox->push(opened(1)));
  EXPECT_TRUE(readable(mailbox->wake_fd()));
  mailbox->drain(events);
  EXPECT_FALSE(readable(mailbox->wake_fd()));
  mailbox->wake();
  EXPECT_TRUE(readable(mailbox->wake_fd()));
}

TEST(Mailbox, OnceClosedItSaysWhy) {
  const auto mailbox = make(8);
  ASSERT_TRUE(mailbox->push(opened(1)));
  mailbox->close(Failure{FailureCode::kControlThreadDead, FailureWhere::kLocal, "gone", {}, -1});
  mailbox->close(Failure{FailureCode::kShuttingDown, FailureWhere::kLocal, "stopped", {}, -1});
  const Status refused = mailbox->push(opened(2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, FailureCode::kControlThreadDead);
  EXPECT_FALSE(mailbox->push_reserved(cleared(1)));
}

// Nothing is lost or reordered between producers and the consumer that sleeps on the descriptor.
TEST(MailboxRace, EveryEventArrivesOnceInOrder) {
  constexpr int kProducers = 3;
  constexpr int kEach = 5'000;
  const auto mailbox = make(kProducers * kEach);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) {
        const std::uint64_t id = static_cast<std::uint64_t>(p) * 1'000'000 + i;
        if (i % 2 == 0) {
          ASSERT_TRUE(mailbox->push(opened(id)));
        } else {
          ASSERT_TRUE(mailbox->push_reserved(cleared(id)));
        }
      }
    });
  }
  std::thread transport([&] {
    for (int i = 0; i < kEach; ++i) {
      const layout::WriteCompletion done{SessionEpoch(1), TicketId(i),
                                         layout::WriteOutcome::kLanded};
      mailbox->writes_completed({&done, 1});
    }
  });

  std::vector<std::uint64_t> next(kProducers, 0);
  std::uint64_t next_ticket = 0;
  std::size_t calls = 0;
  std::vector<core::Event> events;
  while (calls < kProducers * kEach || next_ticket < kEach) {
    ASSERT_TRUE(await_readable(mailbox->wake_fd()));
    mailbox->drain(events);
    for (const core::Event& event : events) {
      if (const auto* done = std::get_if<core::WritesCompleted>(&event)) {
        for (const layout::WriteCompletion& completion : done->completions) {
          EXPECT_EQ(completion.ticket.value(), next_ticket++);
        }
        continue;
      }
      const auto* open = std::get_if<core::SenderOpened>(&event);
      const std::uint64_t id = open != nullptr
                                   ? open->sender.value()
                                   : std::get<core::SenderCleared>(event).sender.value();
      EXPECT_EQ(id % 1'000'000, next[id / 1'000'000]++);
      ++calls;
    }
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  transport.join();
}

}  // namespace
}  // namespace kvferry::runtime
