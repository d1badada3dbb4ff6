#include "data_plane/claim_table.h"

#include <gtest/gtest.h>

#include <map>

namespace kvferry::data_plane {
namespace {

using Take = ClaimTable::Take;
using State = ClaimTable::State;

// A table of which a test names claims by their tickets.
class Claims {
 public:
  explicit Claims(std::size_t max_claims) : table_(max_claims, 4) {}
  Take take(std::uint64_t ticket, std::uint64_t begin, std::uint64_t length,
            std::size_t place = 0) {
    ClaimTable::ClaimId claim = 0;
    const Take result = table_.take(TicketId(ticket), place, begin, length, claim);
    if (result == Take::kTaken) ids_[ticket] = claim;
    return result;
  }
  void settle(std::uint64_t ticket, State state) { table_.settle(ids_.at(ticket), state); }
  std::optional<State> find(std::uint64_t ticket) { return table_.find(TicketId(ticket)); }

 private:
  ClaimTable table_;
  std::map<std::uint64_t, ClaimTable::ClaimId> ids_;
};

TEST(ClaimTable, RefusesEveryKindOfOverlapAndTakesNeighbours) {
  Claims claims(100);
  EXPECT_EQ(claims.take(1, 100, 100), Take::kTaken);
  EXPECT_EQ(claims.take(2, 100, 100), Take::kOverlap);
  EXPECT_EQ(claims.take(3, 50, 51), Take::kOverlap);
  EXPECT_EQ(claims.take(4, 199, 1), Take::kOverlap);
  EXPECT_EQ(claims.take(5, 120, 10), Take::kOverlap);
  EXPECT_EQ(claims.take(6, 0, 300), Take::kOverlap);
  EXPECT_EQ(claims.take(7, 0, 100), Take::kTaken);
  EXPECT_EQ(claims.take(8, 200, 1), Take::kTaken);
  EXPECT_EQ(claims.take(9, 100, 100, 1), Take::kTaken);
}

TEST(ClaimTable, KnowsATicketForEver) {
  Claims claims(100);
  EXPECT_FALSE(claims.find(1));
  claims.take(1, 0, 10);
  EXPECT_EQ(claims.find(1), State::kCopying);
  EXPECT_EQ(claims.take(1, 50, 10), Take::kKnownTicket);
  claims.settle(1, State::kLanded);
  claims.settle(1, State::kTorn);
  EXPECT_EQ(claims.find(1), State::kLanded);
}

TEST(ClaimTable, GivesBackAnUntouchedRangeButNotItsTicket) {
  Claims claims(100);
  claims.take(1, 0, 10);
  EXPECT_EQ(claims.take(2, 5, 10), Take::kOverlap);
  claims.settle(1, State::kRefused);
  EXPECT_EQ(claims.take(3, 0, 10), Take::kTaken);
  EXPECT_EQ(claims.find(1), State::kRefused);
  EXPECT_EQ(claims.find(2), State::kRefused);
}

TEST(ClaimTable, KeepsATornRange) {
  Claims claims(100);
  claims.take(1, 0, 10);
  claims.settle(1, State::kTorn);
  EXPECT_EQ(claims.take(2, 0, 10), Take::kOverlap);
}

TEST(ClaimTable, StopsAtItsLimit) {
  Claims claims(2);
  EXPECT_EQ(claims.take(1, 0, 1), Take::kTaken);
  EXPECT_EQ(claims.take(2, 1, 1), Take::kTaken);
  EXPECT_EQ(claims.take(3, 2, 1), Take::kFull);
}

}  // namespace
}  // namespace kvferry::data_plane
