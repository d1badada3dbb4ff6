#include "runtime/cluster_tokens.h"

#include <gtest/gtest.h>

#include "runtime/nonce_table.h"
#include "temp_file.h"

namespace kvferry::runtime {
namespace {

TEST(ClusterTokens, TheFirstLineSignsAndBothVerify) {
  const test::TempFile before("0123456789abcdef-old\n");
  const test::TempFile during("0123456789abcdef-new\n0123456789abcdef-old\n");
  const test::TempFile after("  0123456789abcdef-new \r\n");
  const auto old_tokens = std::move(*ClusterTokens::load(before.path()));
  const auto both_tokens = std::move(*ClusterTokens::load(during.path()));
  const auto new_tokens = std::move(*ClusterTokens::load(after.path()));
  EXPECT_TRUE(both_tokens->verify("text", old_tokens->sign("text")));
  EXPECT_TRUE(both_tokens->verify("text", new_tokens->sign("text")));
  EXPECT_TRUE(new_tokens->verify("text", both_tokens->sign("text")));
  EXPECT_FALSE(new_tokens->verify("text", old_tokens->sign("text")));
  EXPECT_FALSE(both_tokens->verify("other", both_tokens->sign("text")));
  EXPECT_FALSE(both_tokens->verify("text", ""));
}

TEST(ClusterTokens, WithoutAFileNothingIsSigned) {
  const auto none = std::move(*ClusterTokens::load(""));
  EXPECT_FALSE(none->enabled());
  EXPECT_EQ(none->sign("text"), "");
  EXPECT_TRUE(none->verify("text", "anything"));
}

TEST(ClusterTokens, AFileWithoutATokenIsRefused) {
  const test::TempFile empty("\n");
  EXPECT_FALSE(ClusterTokens::load(empty.path()));
  EXPECT_FALSE(ClusterTokens::load("/nonexistent/token"));
}

TEST(ClusterTokens, EveryFieldOfARowIsSigned) {
  core::RegistryRow row;
  row.instance = "p";
  row.endpoint = "a:1";
  const std::string text = row_text(row);
  const auto differs = [&](auto&& change) {
    core::RegistryRow other = row;
    change(other);
    return row_text(other) != text;
  };
  EXPECT_TRUE(differs([](auto& r) { r.role = Role::kDecode; }));
  EXPECT_TRUE(differs([](auto& r) { r.instance = "q"; }));
  EXPECT_TRUE(differs([](auto& r) { r.rank.tp_rank = 1; }));
  EXPECT_TRUE(differs([](auto& r) { r.rank.pp_size = 2; }));
  EXPECT_TRUE(differs([](auto& r) { r.endpoint = "a:2"; }));
  EXPECT_TRUE(differs([](auto& r) { r.public_key = "k"; }));
  EXPECT_TRUE(differs([](auto& r) { r.incarnation = Incarnation{1, 2}; }));
  EXPECT_TRUE(differs([](auto& r) { r.engine_epoch = EngineEpoch(3); }));
  EXPECT_FALSE(differs([](auto& r) { r.signature = "s"; }));
  // Bytes can't move from one field to the next.
  core::RegistryRow shifted = row;
  shifted.endpoint = "a:1\n1:k";
  core::RegistryRow keyed = row;
  keyed.public_key = "k";
  EXPECT_NE(row_text(shifted), row_text(keyed));
}

TEST(NonceTable, ASecondComingAndAForeignTimeAreRefused) {
  using Verdict = NonceTable::Verdict;
  NonceTable nonces(100, 300);
  EXPECT_EQ(nonces.check(1'000, "a", 1'000), Verdict::kFresh);
  EXPECT_EQ(nonces.check(1'000, "a", 1'001), Verdict::kReplayed);
  EXPECT_EQ(nonces.check(1'000, "b", 1'300), Verdict::kFresh);
  EXPECT_EQ(nonces.check(1'000, "a", 1'301), Verdict::kOutsideTolerance);
  EXPECT_EQ(nonces.check(2'000, "c", 1'699), Verdict::kOutsideTolerance);
}

TEST(NonceTable, WhatWasForgottenIsRefusedByItsTime) {
  using Verdict = NonceTable::Verdict;
  NonceTable nonces(2, 300);
  EXPECT_EQ(nonces.check(1'000, "a", 1'000), Verdict::kFresh);
  EXPECT_EQ(nonces.check(1'001, "b", 1'001), Verdict::kFresh);
  EXPECT_EQ(nonces.check(1'002, "c", 1'002), Verdict::kFresh);
  EXPECT_EQ(nonces.size(), 2U);
  EXPECT_EQ(nonces.check(1'000, "a", 1'002), Verdict::kOutsideTolerance);
  EXPECT_EQ(nonces.check(1'001, "b", 1'002), Verdict::kReplayed);
}

}  // namespace
}  // namespace kvferry::runtime
