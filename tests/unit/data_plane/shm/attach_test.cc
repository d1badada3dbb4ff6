#include "data_plane/shm/attach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/prng.h"
#include "data_plane/shm/ring.h"

namespace kvferry::data_plane::shm {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

constexpr std::uint64_t kMaxWord = ~std::uint64_t{0};

Attach sample(std::size_t regions = 3) {
  Attach attach;
  attach.ring_entries = 1'024;
  attach.pool_count = 2;
  attach.has_digests = regions % 2 == 1;
  attach.probe = {0x7FFF'1234'5678, 0xFEED'FACE'0123'4567};
  for (std::size_t i = 0; i < regions; ++i) {
    attach.regions.push_back(
        {i % 3 == 2 ? AttachRegion::kRemote : static_cast<std::uint32_t>(i % 3), i << 33,
         (i + 1) << 20});
  }
  return attach;
}

std::string refusal_of(const Bytes& bytes) {
  const auto parsed = parse_attach(bytes);
  return parsed ? std::string("parsed") : parsed.error().what;
}

TEST(Attach, ComesBackAsItWas) {
  for (const std::size_t regions : {std::size_t{0}, std::size_t{3}, kMaxAttachRegions}) {
    const Attach attach = sample(regions);
    const Bytes bytes = encode_attach(attach);
    EXPECT_LE(bytes.size(), kMaxAttachBytes);
    const auto parsed = parse_attach(bytes);
    ASSERT_TRUE(parsed) << parsed.error().what;
    EXPECT_EQ(*parsed, attach);
  }
  EXPECT_EQ(encode_attach(sample(kMaxAttachRegions)).size(), kMaxAttachBytes);
}

TEST(Attach, RefusesEveryTruncationAndAnyBytesAfterItsEnd) {
  const Bytes bytes = encode_attach(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(parse_attach(std::span(bytes).first(size))) << size;
  }
  Bytes longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(parse_attach(longer));
}

TEST(Attach, RefusesCountsBeyondItsLimits) {
  Attach attach = sample(0);
  for (const std::uint32_t entries : {0U, 32U, 1'000U, 2 * kMaxRingEntries}) {
    attach.ring_entries = entries;
    EXPECT_THAT(refusal_of(encode_attach(attach)), HasSubstr("entries"));
  }
  Bytes bytes = encode_attach(sample(0));
  bytes[12] = kMaxAttachPools + 1;
  EXPECT_THAT(refusal_of(bytes), HasSubstr("65 pools"));
  // A count that no message could hold must not size anything.
  bytes = encode_attach(sample(0));
  bytes[19] = 0xFF;
  EXPECT_THAT(refusal_of(bytes), HasSubstr("regions, more than 4096"));
}

TEST(Attach, RefusesRegionsThatLieNowhere) {
  Attach attach = sample(1);
  attach.regions[0] = {2, 0, 1};
  EXPECT_THAT(refusal_of(encode_attach(attach)), HasSubstr("pool 2 of 2"));
  attach.regions[0] = {0, kMaxWord, 2};
  EXPECT_THAT(refusal_of(encode_attach(attach)), HasSubstr("no end"));
  attach.regions[0] = {AttachRegion::kRemote, 1, kMaxWord};
  EXPECT_THAT(refusal_of(encode_attach(attach)), HasSubstr("no end"));
  attach.regions[0] = {1, kMaxWord - 2, 2};
  EXPECT_EQ(refusal_of(encode_attach(attach)), "parsed");
}

TEST(Attach, RefusesFlagsOfAnotherVersion) {
  Bytes bytes = encode_attach(sample());
  bytes[6] = 2;
  EXPECT_THAT(refusal_of(bytes), HasSubstr("flags"));
  bytes[6] = 0;
  bytes[7] = 1;
  EXPECT_THAT(refusal_of(bytes), HasSubstr("flags"));
}

TEST(Attach, NamesBothVersions) {
  Bytes bytes = encode_attach(sample());
  bytes[4] = 9;
  const auto parsed = parse_attach(bytes);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, FailureCode::kSessionRefused);
  EXPECT_THAT(parsed.error().what, HasSubstr("version 9, this side 1"));
}

TEST(AttachReply, ComesBackAsItWas) {
  for (const AttachReply& reply :
       {AttachReply(Attached{}), AttachReply(Refused{"no ptrace right"}), AttachReply(Refused{}),
        AttachReply(Refused{std::string(kMaxRefusalBytes, 'x')})}) {
    const Bytes bytes = encode_attach_reply(reply);
    EXPECT_LE(bytes.size(), kMaxAttachReplyBytes);
    const auto parsed = parse_attach_reply(bytes);
    ASSERT_TRUE(parsed) << parsed.error().what;
    EXPECT_EQ(*parsed, reply);
  }
}

TEST(AttachReply, CutsAReasonBetweenCharacters) {
  std::string reason(kMaxRefusalBytes - 1, 'x');
  reason += "\xC3\xA9tat";  // its first character would straddle the limit
  const auto parsed = parse_attach_reply(encode_attach_reply(Refused{reason}));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(std::get<Refused>(*parsed).reason, std::string(kMaxRefusalBytes - 1, 'x'));
}

TEST(AttachReply, ShowsNoControlCharactersOfAPeer) {
  const auto parsed = parse_attach_reply(encode_attach_reply(Refused{"a\nb\x1B[2Jc\x7F"}));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(std::get<Refused>(*parsed).reason, "a b [2Jc ");
}

TEST(AttachReply, RefusesGarbage) {
  Bytes bytes = encode_attach_reply(Attached{});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(parse_attach_reply(std::span(bytes).first(size))) << size;
  }
  bytes.push_back('x');
  EXPECT_FALSE(parse_attach_reply(bytes));
  bytes = encode_attach_reply(Refused{std::string(kMaxRefusalBytes, 'x')});
  bytes.push_back('x');
  EXPECT_FALSE(parse_attach_reply(bytes));
  bytes[6] = 3;
  EXPECT_FALSE(parse_attach_reply(bytes));
  EXPECT_FALSE(parse_attach_reply(encode_attach(sample())));
}

// Whatever a peer sends: a parse either fails or gives what encodes to the very same bytes.
RC_GTEST_PROP(Attach, ParsesOnlyWhatItWouldEncode, (std::uint64_t seed)) {
  Prng prng(seed);
  Bytes bytes = encode_attach(sample(prng.below(4)));
  for (std::uint64_t changes = prng.below(4); changes > 0; --changes) {
    bytes[prng.below(bytes.size())] = static_cast<std::uint8_t>(prng.next());
  }
  if (prng.below(4) == 0) bytes.resize(prng.below(2 * bytes.size()));
  if (const auto parsed = parse_attach(bytes)) {
    RC_ASSERT(encode_attach(*parsed) == bytes);
    for (const AttachRegion& region : parsed->regions) {
      RC_ASSERT(region.place + region.bytes >= region.place);
      RC_ASSERT(region.pool == AttachRegion::kRemote || region.pool < parsed->pool_count);
    }
  }
  Bytes noise(prng.below(64));
  prng.fill(noise);
  RC_ASSERT(!parse_attach(noise));
}

}  // namespace
}  // namespace kvferry::data_plane::shm
