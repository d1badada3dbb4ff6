#include "kvferry/ids.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace kvferry {
namespace {

RC_GTEST_PROP(Id128, HexRoundTrips, (std::uint64_t high, std::uint64_t low)) {
  const Binding binding{high, low};
  const std::string hex = binding.to_hex();
  RC_ASSERT(hex.size() == 32U);
  RC_ASSERT(Binding::from_hex(hex) == binding);
}

TEST(Id128, HexKeepsLeadingZerosAndTakesEitherCase) {
  EXPECT_EQ((Incarnation{1, 0xABC}).to_hex(), "00000000000000010000000000000abc");
  EXPECT_EQ(Binding::from_hex("00000000000000010000000000000ABC"), (Binding{1, 0xABC}));
}

TEST(Id128, RefusesWhatIsNotExactlyHex) {
  for (const char* text :
       {"", "0", "0000000000000001000000000000000", "x0000000000000010000000000000000",
        "0x000000000000010000000000000000", " 0000000000000010000000000000000",
        "000000000000000100000000000000000", "000000000000000-0000000000000001"}) {
    EXPECT_EQ(Binding::from_hex(text), std::nullopt) << text;
  }
}

TEST(StrongId, OrdersAndCounts) {
  EXPECT_LT(RoomId(1), RoomId(2));
  EXPECT_EQ(PageIndex(7).next(), PageIndex(8));
  static_assert(!std::is_convertible_v<AttemptId, RoomId>);
  static_assert(!std::is_convertible_v<std::uint64_t, RoomId>);
}

}  // namespace
}  // namespace kvferry
