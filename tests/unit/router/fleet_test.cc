#include "router/fleet.h"

#include <gtest/gtest.h>

#include "contains.h"
#include "router/json.h"

namespace kvferry::router {
namespace {

class FleetTest : public testing::Test {
 protected:
  void ready(Role role, std::size_t index, std::string instance = {}) {
    fleet_.server_answered(role, index, {true, std::move(instance), ""});
  }
  void all_ready() {
    ready(Role::kPrefill, 0, "p0");
    ready(Role::kPrefill, 1, "p1");
    for (std::size_t d = 0; d < 2; ++d) {
      ready(Role::kDecode, d);
      fleet_.pairs_answered(d, std::vector<PairReport>{{"p0", true, ""}, {"p1", true, ""}});
    }
  }
  std::string refusal() {
    const auto choice = fleet_.choose();
    return choice ? "" : choice.error().what;
  }

  Fleet fleet_{{"p0:1", "p1:1"}, {"d0:1", "d1:1"}};
};

TEST_F(FleetTest, SaysWhichRoleIsMissingAndWhy) {
  EXPECT_TRUE(contains(refusal(), "no prefill server is ready: p0:1: not asked yet")) << refusal();
  ready(Role::kPrefill, 0, "p0");
  fleet_.server_answered(Role::kDecode, 1, {false, "", "quarantine is full"});
  EXPECT_TRUE(contains(refusal(), "no decode server is ready")) << refusal();
  EXPECT_TRUE(contains(refusal(), "d1:1: quarantine is full")) << refusal();
}

TEST_F(FleetTest, SaysWhyNoPairIsReady) {
  ready(Role::kPrefill, 0, "p0");
  ready(Role::kDecode, 0);
  EXPECT_TRUE(contains(refusal(), "its table of pairs was not read yet")) << refusal();
  fleet_.pairs_answered(0, std::vector<PairReport>{});
  EXPECT_TRUE(contains(refusal(), "no session with instance 'p0'")) << refusal();
  fleet_.pairs_answered(
      0, std::vector<PairReport>{{"p0", false, "layout-mismatch: page_size_tokens 64 and 32"}});
  EXPECT_TRUE(contains(refusal(), "page_size_tokens 64 and 32")) << refusal();
  fleet_.pairs_answered(0, std::vector<PairReport>{{"", false, "dtype f16 and bf16"}});
  EXPECT_TRUE(contains(refusal(), "no session with instance 'p0' yet; refused: dtype f16 and bf16"))
      << refusal();
  fleet_.pairs_answered(0, fail(FailureCode::kPeerLost, "connection reset"));
  EXPECT_TRUE(contains(refusal(), "connection reset")) << refusal();
  EXPECT_EQ(fleet_.ready_pairs(), 0U);
}

TEST_F(FleetTest, AReadyRowOfANewLifeCountsBesideTheOldOne) {
  ready(Role::kPrefill, 0, "p0");
  ready(Role::kDecode, 0);
  fleet_.pairs_answered(0, std::vector<PairReport>{{"p0", false, "peer-lost"}, {"p0", true, ""}});
  EXPECT_EQ(fleet_.ready_pairs(), 1U);
}

TEST_F(FleetTest, OneNameForTwoServersIsNotReady) {
  all_ready();
  ready(Role::kPrefill, 1, "p0");
  EXPECT_TRUE(contains(refusal(), "instance name 'p0' is used by two prefill servers"));
}

TEST_F(FleetTest, ChoosesTheLeastLoadedPairAndGivesItBack) {
  all_ready();
  const auto first = fleet_.choose();
  const auto second = fleet_.choose();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->prefill, second->prefill);
  EXPECT_NE(first->decode, second->decode);
  fleet_.release(*first);
  const auto third = fleet_.choose();
  ASSERT_TRUE(third);
  EXPECT_EQ(third->prefill, first->prefill);
  EXPECT_EQ(third->decode, first->decode);
  EXPECT_EQ(third->prefill_instance, third->prefill == 0 ? "p0" : "p1");
}

TEST_F(FleetTest, AvoidsTheServerThatCouldNotBeReached) {
  all_ready();
  for (int i = 0; i < 4; ++i) {
    const auto choice = fleet_.choose({std::nullopt, 0});
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->decode, 1U);
  }
  fleet_.connection_failed(Role::kDecode, 1, "connection refused");
  const auto none = fleet_.choose({std::nullopt, 0});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().what, "no other pair is ready");
  ready(Role::kDecode, 1);
  EXPECT_TRUE(fleet_.choose({std::nullopt, 0}));
}

TEST_F(FleetTest, TheTableShowsEachPairWithItsReason) {
  all_ready();
  fleet_.server_answered(Role::kPrefill, 1, {false, "", "connection refused"});
  const auto document = JsonDocument::parse(fleet_.to_json());
  ASSERT_TRUE(document);
  const JsonView root = document->root();
  EXPECT_EQ(root["ready_pairs"].integer(), 2);
  ASSERT_EQ(root["pairs"].size(), 4U);
  EXPECT_EQ(root["servers"].size(), 4U);
  const JsonView lost = root["pairs"].at(2);
  EXPECT_EQ(lost["instance"].text(), "p1");  // known from before
  EXPECT_EQ(lost["ready"].boolean(), false);
  EXPECT_TRUE(contains(lost["reason"].text().value_or(""), "connection refused"));
  EXPECT_TRUE(contains(fleet_.metrics(), "kvferry_router_ready_pairs 2"));
}

}  // namespace
}  // namespace kvferry::router
