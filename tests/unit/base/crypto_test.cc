#include "base/crypto.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string_view>

namespace kvferry {
namespace {

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// RFC 4231, test cases 2 (short key) and 6 (key longer than a block).
TEST(Crypto, HmacMatchesThePublishedVectors) {
  EXPECT_EQ(to_hex(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::vector<std::uint8_t> long_key(131, 0xAA);
  EXPECT_EQ(to_hex(hmac_sha256(long_key,
                               bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Crypto, HmacTakesEmptyKeyAndData) {
  EXPECT_EQ(to_hex(hmac_sha256({}, {})),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(Crypto, DigestsAreEqualOnlyWhenEveryByteIs) {
  const Digest digest = hmac_sha256(bytes_of("key"), bytes_of("data"));
  EXPECT_TRUE(equal_digests(digest, digest));
  for (std::size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= 1;
    EXPECT_FALSE(equal_digests(digest, other));
  }
}

TEST(Crypto, RandomBytesDiffer) {
  EXPECT_NE(random_u64(), random_u64());
  std::array<std::uint8_t, 64> bytes{};
  fill_random(bytes);
  EXPECT_NE(std::accumulate(bytes.begin(), bytes.end(), 0), 0);
}

TEST(Crypto, HexIsLowerCaseAndComplete) {
  EXPECT_EQ(to_hex(std::array<std::uint8_t, 3>{0x00, 0x9F, 0xFA}), "009ffa");
}

}  // namespace
}  // namespace kvferry
