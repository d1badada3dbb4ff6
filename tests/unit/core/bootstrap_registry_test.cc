#include "core/bootstrap_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvferry::core {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr Duration kLease = std::chrono::seconds(10);
Instant at(int seconds) { return Instant(std::chrono::seconds(seconds)); }

RegistryRow row(std::string instance, std::uint32_t tp, std::string endpoint,
                std::uint64_t incarnation) {
  RegistryRow result;
  result.instance = std::move(instance);
  result.rank.tp_rank = tp;
  result.rank.tp_size = 2;
  result.endpoint = std::move(endpoint);
  result.incarnation = Incarnation{incarnation, 1};
  return result;
}

TEST(BootstrapRegistry, ARowLivesAsLongAsItsLease) {
  BootstrapRegistry registry{RegistryLimits{}};
  ASSERT_TRUE(registry.put(row("p", 0, "a:1", 1), at(0), kLease));
  EXPECT_EQ(registry.find({}, at(9)).size(), 1U);
  EXPECT_EQ(registry.find({}, at(10)).size(), 0U);
  EXPECT_EQ(registry.size(at(10)), 0U);
  ASSERT_TRUE(registry.put(row("p", 0, "a:1", 1), at(11), kLease));
  EXPECT_EQ(registry.find({}, at(20)).size(), 1U);
}

TEST(BootstrapRegistry, ALiveRankHasOneOwner) {
  BootstrapRegistry registry{RegistryLimits{}};
  ASSERT_TRUE(registry.put(row("p", 0, "a:1", 1), at(0), kLease));
  const Status other = registry.put(row("p", 0, "b:2", 2), at(1), kLease);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, FailureCode::kConflict);
  EXPECT_THAT(other.error().what, AllOf(HasSubstr("a:1"), HasSubstr("b:2")));
  EXPECT_EQ(registry.find({}, at(1)).front().endpoint, "a:1");
}

TEST(BootstrapRegistry, ARestartAtTheSameEndpointTakesOverAndTheFormerLifeIsRefused) {
  BootstrapRegistry registry{RegistryLimits{}};
  ASSERT_TRUE(registry.put(row("p", 0, "a:1", 1), at(0), kLease));
  ASSERT_TRUE(registry.put(row("p", 0, "a:1", 2), at(1), kLease));
  const Status zombie = registry.put(row("p", 0, "a:1", 1), at(2), kLease);
  ASSERT_FALSE(zombie);
  EXPECT_EQ(zombie.error().code, FailureCode::kConflict);
  EXPECT_THAT(zombie.error().what, HasSubstr("superseded"));
  // Under another name and after everything ran out, too.
  EXPECT_FALSE(registry.put(row("q", 1, "a:1", 1), at(99), kLease));
}

TEST(BootstrapRegistry, AfterTheLeaseAnybodyTakesOver) {
  BootstrapRegistry registry{RegistryLimits{}};
  ASSERT_TRUE(registry.put(row("p", 0, "a:1", 1), at(0), kLease));
  ASSERT_TRUE(registry.put(row("p", 0, "b:2", 2), at(10), kLease));
  EXPECT_FALSE(registry.put(row("p", 0, "a:1", 1), at(11), kLease));
}

TEST(BootstrapRegistry, OnlyTheOwnerLeaves) {
  BootstrapRegistry registry{RegistryLimits{}};
  ASSERT_TRUE(registry.put(row("p", 0, "a:1", 1), at(0), kLease));
  const Status other = registry.remove(row("p", 0, "b:2", 2), at(1));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, FailureCode::kConflict);
  EXPECT_TRUE(registry.remove(row("p", 0, "a:1", 1), at(1)));
  EXPECT_TRUE(registry.remove(row("p", 0, "a:1", 1), at(1)));
  EXPECT_EQ(registry.size(at(1)), 0U);
}

TEST(BootstrapRegistry, FindsByRoleInstanceAndReplicaInOrder) {
  BootstrapRegistry registry{RegistryLimits{}};
  RegistryRow decode = row("d", 0, "d:1", 3);
  decode.role = Role::kDecode;
  RegistryRow replica = row("p", 0, "p:3", 4);
  replica.rank.dp_rank = 1;
  replica.rank.dp_size = 2;
  ASSERT_TRUE(registry.put(row("p", 1, "p:2", 2), at(0), kLease));
  ASSERT_TRUE(registry.put(decode, at(0), kLease));
  ASSERT_TRUE(registry.put(replica, at(0), kLease));
  ASSERT_TRUE(registry.put(row("p", 0, "p:1", 1), at(0), kLease));
  const auto all = registry.find({}, at(1));
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].endpoint, "p:1");
  EXPECT_EQ(all[1].endpoint, "p:2");
  EXPECT_EQ(all[2].endpoint, "p:3");
  EXPECT_EQ(all[3].endpoint, "d:1");
  EXPECT_EQ(registry.find({Role::kDecode, {}, {}}, at(1)).size(), 1U);
  EXPECT_EQ(registry.find({Role::kPrefill, "p", 1U}, at(1)).size(), 1U);
  EXPECT_EQ(registry.find({{}, "none", {}}, at(1)).size(), 0U);
}

TEST(BootstrapRegistry, LimitsAreRefusalsThatExpiredRowsMakeRoomFor) {
  BootstrapRegistry registry{RegistryLimits{2, 1}};
  ASSERT_TRUE(registry.put(row("a", 0, "a:1", 1), at(0), kLease));
  ASSERT_TRUE(registry.put(row("b", 0, "b:1", 2), at(5), kLease));
  const Status full = registry.put(row("c", 0, "c:1", 3), at(6), kLease);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, FailureCode::kTableFull);
  EXPECT_TRUE(registry.put(row("c", 0, "c:1", 3), at(11), kLease));
  // One superseded incarnation is remembered: the second pushes the first out.
  ASSERT_TRUE(registry.put(row("b", 0, "b:1", 4), at(11), kLease));
  ASSERT_TRUE(registry.put(row("c", 0, "c:1", 5), at(11), kLease));
  EXPECT_FALSE(registry.put(row("c", 0, "c:1", 3), at(11), kLease));
  EXPECT_TRUE(registry.put(row("b", 0, "b:1", 2), at(11), kLease));
}

TEST(BootstrapRegistry, RefusesRowsThatNameNobody) {
  BootstrapRegistry registry{RegistryLimits{}};
  EXPECT_FALSE(registry.put(row("", 0, "a:1", 1), at(0), kLease));
  EXPECT_FALSE(registry.put(row("p", 0, "", 1), at(0), kLease));
  EXPECT_FALSE(registry.put(row("p", 2, "a:1", 1), at(0), kLease));
  RegistryRow nobody = row("p", 0, "a:1", 1);
  nobody.incarnation = Incarnation{};
  EXPECT_FALSE(registry.put(nobody, at(0), kLease));
}

}  // namespace
}  // namespace kvferry::core
