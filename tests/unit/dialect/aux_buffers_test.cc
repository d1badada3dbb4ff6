#include "dialect/sglang/aux_buffers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "wire/aux_record.h"

namespace kvferry::sglang {
namespace {

using ::testing::HasSubstr;

const AuxBuffers kSeven{{64, 64, 64, 64, 512, 512, 64}, false};

template <typename T>
T load(const std::vector<std::byte>& item) {
  T value{};
  std::memcpy(&value, item.data(), sizeof value);
  return value;
}

TEST(AuxBuffersTest, ARecordIsTakenApart) {
  std::array<std::byte, kAuxRecordBytes> slot{};
  const AuxRecord record{4711, -0.25F, 300, 48};
  wire::encode_aux(slot, RoomId(0x1122'3344'5566'7788), Binding{}, record);
  for (const bool has_checksum : {false, true}) {
    AuxBuffers buffers = kSeven;
    buffers.has_checksum = has_checksum;
    if (has_checksum) {
      buffers.item_bytes.push_back(64);
    }
    const auto items = split_aux(buffers, slot);
    ASSERT_TRUE(items);
    ASSERT_EQ(items->size(), buffers.item_bytes.size());
    for (std::size_t i = 0; i < items->size(); ++i) {
      EXPECT_EQ((*items)[i].size(), buffers.item_bytes[i]);
    }
    EXPECT_EQ(load<std::int32_t>((*items)[0]), 4711);
    EXPECT_EQ(load<std::int32_t>((*items)[1]), 48);
    EXPECT_EQ(load<float>((*items)[2]), -0.25F);
    EXPECT_EQ(load<std::int32_t>((*items)[3]), 4711);
    EXPECT_EQ(load<std::uint64_t>((*items)[6]), 0x1122'3344'5566'7788U);
    EXPECT_TRUE(std::ranges::all_of((*items)[4], [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(AuxBuffersTest, WhatIsNoRecordIsRefused) {
  std::array<std::byte, kAuxRecordBytes> slot{};
  EXPECT_THAT(split_aux(kSeven, slot).error().what, HasSubstr("aux record starts with"));
  wire::encode_aux(slot, RoomId(1), Binding{}, AuxRecord{});
  slot[5] ^= std::byte{1};
  EXPECT_THAT(split_aux(kSeven, slot).error().what, HasSubstr("CRC"));
}

TEST(AuxBuffersTest, BuffersThatCanNotHoldTheFieldsAreRefused) {
  EXPECT_TRUE(check(kSeven));
  EXPECT_THAT(check({{64, 64, 64, 64}, false}).error().what, HasSubstr("at least 5"));
  EXPECT_THAT(check({{64, 64, 64, 64, 64}, true}).error().what, HasSubstr("at least 6"));
  EXPECT_THAT(check({{64, 64, 2, 64, 64}, false}).error().what, HasSubstr("buffer 2 has 2 bytes"));
  EXPECT_THAT(check({{64, 64, 64, 64, 4}, false}).error().what, HasSubstr("buffer 4 has 4 bytes"));
}

}  // namespace
}  // namespace kvferry::sglang
