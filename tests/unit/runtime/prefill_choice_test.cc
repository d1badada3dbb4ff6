#include "runtime/prefill_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvferry::runtime {
namespace {

using testing::HasSubstr;

core::RegistryRow rank(std::string instance, std::uint32_t tp, std::uint32_t tp_size,
                       std::uint64_t epoch = 1) {
  core::RegistryRow row;
  row.instance = std::move(instance);
  row.rank.tp_rank = tp;
  row.rank.tp_size = tp_size;
  row.endpoint = row.instance + ":" + std::to_string(tp);
  row.engine_epoch = EngineEpoch(epoch);
  return row;
}

core::ResolvePrefill query(std::string instance, std::uint32_t dp_rank = 0) {
  return {core::ReceiverId(1), "registry:1", std::move(instance), dp_rank};
}

TEST(PrefillChoice, TakesTheOnlyInstanceWhenNoneIsNamed) {
  const std::vector rows{rank("p", 1, 2), rank("p", 0, 2)};
  const auto chosen = choose_prefill(rows, query(""));
  ASSERT_TRUE(chosen);
  ASSERT_EQ(chosen->size(), 2U);
  EXPECT_EQ((*chosen)[0].address.endpoint, "p:0");
  EXPECT_EQ((*chosen)[1].address.endpoint, "p:1");
}

TEST(PrefillChoice, SaysWhatIsThereWhenTheInstanceIsNot) {
  core::RegistryRow decode = rank("d", 0, 1);
  decode.role = Role::kDecode;
  const std::vector rows{rank("p", 0, 1), rank("q", 0, 1), decode};
  const auto ambiguous = choose_prefill(rows, query(""));
  ASSERT_FALSE(ambiguous);
  EXPECT_EQ(ambiguous.error().code, FailureCode::kPrefillUnknown);
  EXPECT_THAT(ambiguous.error().what, HasSubstr("p, q"));
  const auto absent = choose_prefill(rows, query("d"));
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().what, HasSubstr("not 'd'"));
}

TEST(PrefillChoice, NamesTheRanksThatAreMissing) {
  const std::vector rows{rank("p", 0, 4), rank("p", 3, 4)};
  const auto chosen = choose_prefill(rows, query("p"));
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().code, FailureCode::kPrefillUnknown);
  EXPECT_THAT(chosen.error().what, HasSubstr("2 of 4 ranks registered, missing tp 1, tp 2"));
  EXPECT_FALSE(choose_prefill(rows, query("p", 1)));
}

TEST(PrefillChoice, DoesNotMixTwoLaunches) {
  const std::vector rows{rank("p", 0, 2, 1), rank("p", 1, 2, 2)};
  const auto chosen = choose_prefill(rows, query("p"));
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().code, FailureCode::kEngineEpochMismatch);
}

TEST(PrefillChoice, SizesFromAPeerSizeNothing) {
  core::RegistryRow huge = rank("p", 0, 0xFFFFFFFFU);
  huge.rank.pp_size = 0xFFFFFFFFU;
  const auto chosen = choose_prefill(std::vector{huge}, query("p"));
  ASSERT_FALSE(chosen);
  EXPECT_LT(chosen.error().what.size(), 500U);
}

}  // namespace
}  // namespace kvferry::runtime
