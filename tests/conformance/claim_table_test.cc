#include "data_plane/claim_table.h"

#include <gtest/gtest.h>

namespace kvferry::data_plane {
namespace {

using Take = ClaimTable::Take;
using State = ClaimTable::State;

IncomingWrite range(std::uint64_t ticket, std::uint64_t offset, std::uint64_t length,
                    std::uint32_t item = 0) {
  return IncomingWrite{TicketId(ticket), RegionId(0), item, offset, length};
}

TEST(ClaimTable, RefusesEveryKindOfOverlapAndTakesNeighbours) {
  ClaimTable claims(100);
  EXPECT_EQ(claims.take(range(1, 100, 100)), Take::kTaken);
  EXPECT_EQ(claims.take(range(2, 100, 100)), Take::kOverlap);
  EXPECT_EQ(claims.take(range(3, 50, 51)), Take::kOverlap);
  EXPECT_EQ(claims.take(range(4, 199, 1)), Take::kOverlap);
  EXPECT_EQ(claims.take(range(5, 120, 10)), Take::kOverlap);
  EXPECT_EQ(claims.take(range(6, 0, 300)), Take::kOverlap);
  EXPECT_EQ(claims.take(range(7, 0, 100)), Take::kTaken);
  EXPECT_EQ(claims.take(range(8, 200, 1)), Take::kTaken);
  EXPECT_EQ(claims.take(range(9, 100, 100, 1)), Take::kTaken);
}

TEST(ClaimTable, KnowsATicketForEver) {
  ClaimTable claims(100);
  EXPECT_FALSE(claims.find(TicketId(1)));
  claims.take(range(1, 0, 10));
  EXPECT_EQ(claims.find(TicketId(1)), State::kCopying);
  EXPECT_EQ(claims.take(range(1, 50, 10)), Take::kKnownTicket);
  claims.settle(TicketId(1), State::kLanded);
  claims.settle(TicketId(1), State::kTorn);
  EXPECT_EQ(claims.find(TicketId(1)), State::kLanded);
}

TEST(ClaimTable, GivesBackAnUntouchedRangeButNotItsTicket) {
  ClaimTable claims(100);
  claims.take(range(1, 0, 10));
  EXPECT_EQ(claims.take(range(2, 5, 10)), Take::kOverlap);
  claims.settle(TicketId(1), State::kRefused);
  EXPECT_EQ(claims.take(range(3, 0, 10)), Take::kTaken);
  EXPECT_EQ(claims.find(TicketId(1)), State::kRefused);
  EXPECT_EQ(claims.find(TicketId(2)), State::kRefused);
}

TEST(ClaimTable, KeepsATornRange) {
  ClaimTable claims(100);
  claims.take(range(1, 0, 10));
  claims.settle(TicketId(1), State::kTorn);
  EXPECT_EQ(claims.take(range(2, 0, 10)), Take::kOverlap);
}

TEST(ClaimTable, StopsAtItsLimit) {
  ClaimTable claims(2);
  EXPECT_EQ(claims.take(range(1, 0, 1)), Take::kTaken);
  EXPECT_EQ(claims.take(range(2, 1, 1)), Take::kTaken);
  EXPECT_EQ(claims.take(range(3, 2, 1)), Take::kFull);
}

}  // namespace
}  // namespace kvferry::data_plane
