#include "dialect/sglang/aux_shadow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "wire/aux_record.h"

namespace kvferry::sglang {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kSlots = 4;

class AuxShadowTest : public ::testing::Test {
 protected:
  AuxShadowTest()
      : memory_(std::size_t{kSlots} * kAuxRecordBytes),
        shadow_(*AuxShadow::make(region(), {{64, 64, 64, 64, 512, 64}})) {}

  Region region() {
    return {RegionKind::kAux, 0, memory_.data(), kAuxRecordBytes, kSlots, MemoryKind::kHost};
  }
  template <typename T>
  void put(std::size_t buffer, std::uint32_t slot, std::size_t item_bytes, T value) {
    std::memcpy(reinterpret_cast<std::byte*>(shadow_->pointers()[buffer]) + slot * item_bytes,
                &value, sizeof(value));
  }

  std::vector<std::byte> memory_;
  std::unique_ptr<AuxShadow> shadow_;
};

TEST_F(AuxShadowTest, TheRecordIsMadeOfWhatSglangWrote) {
  put(0, 2, 64, std::int32_t{123});
  put(1, 2, 64, std::int32_t{7});
  put(2, 2, 64, -0.5F);
  put(5, 2, 64, std::uint64_t{99});
  EXPECT_EQ(shadow_->room_number(2), 99U);
  EXPECT_EQ(shadow_->room_number(1), 0U);
  const Binding binding{3, 4};
  shadow_->deliver(2, RoomId(99), binding);
  const auto record = wire::decode_aux(
      std::span(memory_).subspan(std::size_t{2} * kAuxRecordBytes, kAuxRecordBytes), RoomId(99),
      binding, 0);
  ASSERT_TRUE(record) << record.error().what;
  EXPECT_EQ(*record, (AuxRecord{123, -0.5F, 0, 7}));
}

TEST_F(AuxShadowTest, ClearingASlotLeavesItsNeighboursAlone) {
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    put(5, slot, 64, std::uint64_t{slot + 1});
    put(4, slot, 512, std::uint64_t{slot + 1});
  }
  shadow_->clear(1);
  EXPECT_EQ(shadow_->room_number(0), 1U);
  EXPECT_EQ(shadow_->room_number(1), 0U);
  EXPECT_EQ(shadow_->room_number(2), 3U);
  std::uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<std::byte*>(shadow_->pointers()[4]) + 512, sizeof(value));
  EXPECT_EQ(value, 0U);
  std::memcpy(&value, reinterpret_cast<std::byte*>(shadow_->pointers()[4]) + 1'024, sizeof(value));
  EXPECT_EQ(value, 3U);
}

TEST_F(AuxShadowTest, AnItemIsStoredOnlyWhereItFits) {
  std::vector<std::uint8_t> bytes(64);
  bytes[0] = 5;
  EXPECT_TRUE(shadow_->store(5, 3, bytes));
  EXPECT_EQ(shadow_->room_number(3), 5U);
  EXPECT_FALSE(shadow_->store(6, 3, bytes));
  EXPECT_FALSE(shadow_->store(5, kSlots, bytes));
  EXPECT_FALSE(shadow_->store(4, 3, bytes)) << "that buffer's items are longer";
  bytes.resize(65);
  EXPECT_FALSE(shadow_->store(5, 3, bytes));
  EXPECT_FALSE(shadow_->store(5, 3, {}));
}

TEST_F(AuxShadowTest, ImpossibleArgumentsAreRefused) {
  const auto reason = [](const Region& aux, std::vector<std::uint32_t> item_bytes,
                         bool has_checksum = false) {
    const auto made = AuxShadow::make(aux, {std::move(item_bytes), has_checksum});
    return made ? std::string("made") : made.error().what;
  };
  EXPECT_EQ(reason(region(), {64, 64, 64, 64, 64}), "made");
  EXPECT_THAT(reason(region(), {64, 64, 64, 64}), HasSubstr("4 aux buffers"));
  EXPECT_THAT(reason(region(), {64, 64, 64, 64, 60}), HasSubstr("60 bytes for a slot"));
  EXPECT_THAT(reason(region(), {64, 64, 64, 64, 60, 64}, true), HasSubstr("60 bytes for a slot"));
  EXPECT_THAT(reason(region(), {64, 64, 64, 64, 1U << 21, 64}), HasSubstr("2097152 bytes"));
  Region other = region();
  other.kind = RegionKind::kState;
  EXPECT_THAT(reason(other, {64, 64, 64, 64, 64}), HasSubstr("needs an aux region"));
  EXPECT_THAT(reason(Region{}, {64, 64, 64, 64, 64}), HasSubstr("needs an aux region"));
}

}  // namespace
}  // namespace kvferry::sglang
