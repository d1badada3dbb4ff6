#include "wire/aux_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <boost/crc.hpp>

namespace kvferry::wire {
namespace {

using ::testing::HasSubstr;

constexpr RoomId kRoom(77);
constexpr Binding kBinding{1, 2};
const AuxRecord kRecord{123, -0.5F, 1'000, 64};

std::vector<std::byte> encoded(std::size_t slot_bytes = kAuxRecordBytes) {
  std::vector<std::byte> slot(slot_bytes, std::byte{0xEE});
  encode_aux(slot, kRoom, kBinding, kRecord);
  return slot;
}

std::string refusal(std::span<const std::byte> slot, RoomId room = kRoom,
                    Binding binding = kBinding, std::uint32_t vocab_size = 1'000) {
  const auto record = decode_aux(slot, room, binding, vocab_size);
  if (record) {
    return "accepted";
  }
  EXPECT_EQ(record.error().code, FailureCode::kAuxInvalid);
  return record.error().what;
}

TEST(AuxRecord, RoundTripsAndZeroesTheRestOfTheSlot) {
  const auto slot = encoded(100);
  EXPECT_EQ(decode_aux(slot, kRoom, kBinding, 124), kRecord);
  for (std::size_t i = kAuxRecordBytes; i < slot.size(); ++i) {
    EXPECT_EQ(slot[i], std::byte{0});
  }
}

TEST(AuxRecord, RefusalsNameBothValues) {
  EXPECT_THAT(refusal(std::span<const std::byte>(encoded()).first(63)), HasSubstr("63 bytes"));
  EXPECT_THAT(refusal(encoded(), RoomId(78)), HasSubstr("room 77, not 78"));
  EXPECT_THAT(refusal(encoded(), kRoom, Binding{1, 3}), HasSubstr("binding 0"));
  EXPECT_THAT(refusal(encoded(), kRoom, kBinding, 123),
              HasSubstr("token 123 is outside the vocabulary of 123"));
  EXPECT_THAT(refusal(std::vector<std::byte>(kAuxRecordBytes)), HasSubstr("starts with"));
}

TEST(AuxRecord, ATokenIsCheckedOnlyAgainstAVocabulary) {
  std::vector<std::byte> slot(kAuxRecordBytes);
  encode_aux(slot, kRoom, kBinding, AuxRecord{});
  EXPECT_EQ(refusal(slot, kRoom, kBinding, 0), "accepted");
  EXPECT_THAT(refusal(slot, kRoom, kBinding, 10), HasSubstr("token -1"));
}

TEST(AuxRecord, EveryFlippedBitIsSeen) {
  const auto good = encoded();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto slot = good;
    slot[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(refusal(slot), "accepted") << bit;
  }
}

RC_GTEST_PROP(AuxRecord, ChecksumIsCrc32c, (std::uint64_t room, std::uint32_t tokens)) {
  std::vector<std::byte> slot(kAuxRecordBytes);
  encode_aux(slot, RoomId(room), kBinding, AuxRecord{1, 2.0F, tokens, 0});
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(slot.data(), kAuxRecordBytes - 4);
  std::uint32_t stored = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    stored |= static_cast<std::uint32_t>(slot[kAuxRecordBytes - 4 + i]) << (8 * i);
  }
  RC_ASSERT(stored == crc.checksum());
}

}  // namespace
}  // namespace kvferry::wire
