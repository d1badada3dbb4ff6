#include "wire/codec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "samples.h"

namespace kvferry::wire {
namespace {

using ::testing::StartsWith;

constexpr std::size_t kKinds = std::variant_size_v<Message>;

Frame frame_of(Message message) { return {SessionEpoch(1), 2, 3, {std::move(message)}}; }

MalformedReason reason_of(const std::vector<std::uint8_t>& bytes, const CodecLimits& limits = {}) {
  const auto frame = decode(bytes, limits);
  EXPECT_FALSE(frame);
  return frame ? MalformedReason{255} : frame.error().reason;
}

Grant grant_with(std::size_t pages, std::uint32_t step) {
  Grant grant;
  grant.binding = {1, 2};
  for (std::uint32_t i = 0; i < pages; ++i) {
    grant.pages.emplace_back(i * step);
  }
  return grant;
}

RC_GTEST_PROP(Codec, EveryKindRoundTrips, (std::uint64_t seed)) {
  Prng prng(seed);
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const Frame frame = frame_of(random_message(kind, prng));
    const auto decoded = decode(encode(frame));
    RC_ASSERT(decoded.has_value());
    RC_ASSERT(*decoded == frame);
  }
}

RC_GTEST_PROP(Codec, FramesRoundTripAtAnyAlignment, (std::uint64_t seed)) {
  Prng prng(seed);
  const Frame frame = random_frame(prng, 30);
  const auto bytes = encode(frame);
  const std::size_t shift = prng.below(8);
  std::vector<std::uint8_t> shifted(shift);
  shifted.insert(shifted.end(), bytes.begin(), bytes.end());
  const auto decoded = decode(std::span(shifted).subspan(shift));
  RC_ASSERT(decoded.has_value());
  RC_ASSERT(*decoded == frame);
}

RC_GTEST_PROP(Codec, SizeBoundHolds, (std::uint64_t seed)) {
  Prng prng(seed);
  const Frame frame = random_frame(prng, 30);
  std::size_t bound = kFrameOverheadBytes;
  for (const Message& message : frame.messages) {
    bound += encoded_size_bound(message);
  }
  RC_ASSERT(encode(frame).size() <= bound);
}

TEST(Codec, SizeBoundHoldsForLongTextsAndIsNotFarOff) {
  const Failed failed{RoomId(1),
                      {1, 2},
                      AttemptId(3),
                      {FailureCode::kAborted, FailureWhere::kPeer, std::string(5'000, 'x'),
                       std::string(5'000, 'y'), 1}};
  const Grant grant = grant_with(10'000, 2);
  for (const Message& message : {Message(failed), Message(grant)}) {
    const std::size_t actual = encode(frame_of(message)).size();
    const std::size_t bound = kFrameOverheadBytes + encoded_size_bound(message);
    EXPECT_LE(actual, bound);
    EXPECT_GT(actual + 300, bound);
  }
}

TEST(Codec, TagsCountFromOneAndNamesDiffer) {
  Prng prng(1);
  std::set<std::string_view> names;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const Message message = random_message(kind, prng);
    EXPECT_EQ(kind_tag(message), kind + 1);
    EXPECT_TRUE(names.insert(kind_name(message)).second);
  }
}

TEST(Codec, PageListsTakeTheShorterForm) {
  const auto size_of = [](const Grant& grant) { return encode(frame_of(grant)).size(); };
  const std::size_t empty = size_of(grant_with(0, 1));
  EXPECT_LT(size_of(grant_with(100'000, 1)), empty + 40);
  EXPECT_LT(size_of(grant_with(1'000, 2)), empty + 4 * 1'000 + 40);
  // Two runs are as long as four pages, so the plain list stays.
  Grant four;
  four.binding = {1, 2};
  four.pages = {PageIndex(1), PageIndex(2), PageIndex(8), PageIndex(9)};
  EXPECT_EQ(size_of(four), size_of(grant_with(4, 7)));
}

TEST(Codec, RunsDoNotWrapAround) {
  Grant grant;
  grant.pages.assign(20, PageIndex(0));
  for (std::uint32_t i = 0; i < 20; ++i) {
    grant.pages[i] = PageIndex(0xFFFF'FFF6 + i);  // ten pages up to the highest, then from zero
  }
  EXPECT_EQ(decode(encode(frame_of(grant))), frame_of(grant));
}

TEST(Codec, LongTextIsCutBetweenCharacters) {
  Failed failed;
  failed.cause.what = std::string(1'023, 'a') + "\xC3\xA9";
  const auto decoded = decode(encode(frame_of(failed)));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(std::get<Failed>(decoded->messages[0]).cause.what, std::string(1'023, 'a'));
  failed.cause.what = std::string(2'000, '\x80');
  EXPECT_TRUE(decode(encode(frame_of(failed))));
}

TEST(Codec, ReceivedUnsupportedIsToldApartFromUnknownKind) {
  const auto answer = decode(encode(frame_of(Unsupported{99, false})));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->messages[0], Message(Unsupported{99, true}));
}

// The tag list of a frame with one Ack is one byte, so that it can be found by its value and
// neighbours.
std::vector<std::uint8_t> ack_with_tag(std::uint8_t tag) {
  const auto with = encode(frame_of(Ack{}));
  const auto other = encode(frame_of(Heartbeat{}));
  EXPECT_EQ(with.size(), other.size());
  auto bytes = with;
  for (std::size_t i = 0; i < with.size(); ++i) {
    if (with[i] != other[i]) {
      bytes[i] = tag;
    }
  }
  return bytes;
}

TEST(Codec, UnknownKindsComeThroughWithTheirTag) {
  for (const int tag : {static_cast<int>(kKinds) + 1, 100, 255}) {
    const auto frame = decode(ack_with_tag(static_cast<std::uint8_t>(tag)));
    ASSERT_TRUE(frame) << tag;
    EXPECT_EQ(frame->messages[0], Message(Unsupported{static_cast<std::uint8_t>(tag), false}));
  }
}

TEST(Codec, ReasonsOfRefusal) {
  const auto good = encode(frame_of(grant_with(3, 2)));
  EXPECT_EQ(reason_of({}), MalformedReason::kEmpty);
  EXPECT_EQ(reason_of({1, 0}), MalformedReason::kBadLength);
  EXPECT_EQ(reason_of({0, 0, 0, 0}), MalformedReason::kVerifier);
  EXPECT_EQ(reason_of(encode(Frame{})), MalformedReason::kEmpty);
  EXPECT_EQ(reason_of(ack_with_tag(0)), MalformedReason::kNoneTag);
  // An Ack's empty table read as a Grant has no binding.
  EXPECT_EQ(reason_of(ack_with_tag(kind_tag(Grant{}))), MalformedReason::kMissingField);
  auto longer = good;
  longer.push_back(0);
  EXPECT_EQ(reason_of(longer), MalformedReason::kTrailingBytes);
  auto shorter = good;
  shorter.pop_back();
  EXPECT_EQ(reason_of(shorter), MalformedReason::kBadLength);
  auto other_identifier = good;
  other_identifier[8] ^= 1;
  EXPECT_EQ(reason_of(other_identifier), MalformedReason::kVerifier);
  CodecLimits small;
  small.max_frame_bytes = good.size() - 1;
  EXPECT_EQ(reason_of(good, small), MalformedReason::kTooLarge);
}

TEST(Codec, ValuesOutsideTheirTypeAreRefused) {
  Failed failed;
  failed.cause.where = static_cast<FailureWhere>(3);
  EXPECT_EQ(reason_of(encode(frame_of(failed))), MalformedReason::kBadEnum);
  Hello hello;
  hello.self.role = static_cast<Role>(2);
  EXPECT_EQ(reason_of(encode(frame_of(hello))), MalformedReason::kBadEnum);
  hello = {};
  hello.self.layout.dtype = static_cast<DType>(6);
  EXPECT_EQ(reason_of(encode(frame_of(hello))), MalformedReason::kBadEnum);
  hello = {};
  hello.self.layout.regions.push_back({static_cast<RegionKind>(5), 0, 1, 1, MemoryKind::kHost});
  EXPECT_EQ(reason_of(encode(frame_of(hello))), MalformedReason::kBadEnum);
  hello.self.layout.regions[0] = {RegionKind::kKey, 0, 1, 1, static_cast<MemoryKind>(2)};
  EXPECT_EQ(reason_of(encode(frame_of(hello))), MalformedReason::kBadEnum);
  Grant grant = grant_with(0, 1);
  grant.aux_slot = -2;
  EXPECT_EQ(reason_of(encode(frame_of(grant))), MalformedReason::kBadLength);
  Frame last = frame_of(Ack{});
  last.sequence = ~std::uint64_t{0};
  EXPECT_EQ(reason_of(encode(last)), MalformedReason::kLimit);
}

TEST(Codec, CodesOfANewerPeerReadAsUnspecified) {
  Failed failed;
  failed.cause.code = static_cast<FailureCode>(12'345);
  failed.cause.what = "kept";
  const auto frame = decode(encode(frame_of(failed)));
  ASSERT_TRUE(frame);
  EXPECT_EQ(std::get<Failed>(frame->messages[0]).cause.code, FailureCode::kUnspecified);
  EXPECT_EQ(std::get<Failed>(frame->messages[0]).cause.what, "kept");
}

TEST(Codec, LimitsHoldForTheWholeFrame) {
  CodecLimits limits;
  limits.max_pages = 100;
  // As runs, so that few bytes ask for many pages.
  EXPECT_TRUE(decode(encode(frame_of(grant_with(100, 1))), limits));
  EXPECT_EQ(reason_of(encode(frame_of(grant_with(101, 1))), limits), MalformedReason::kLimit);
  EXPECT_EQ(reason_of(encode(frame_of(grant_with(101, 2))), limits), MalformedReason::kLimit);
  Frame two = frame_of(grant_with(60, 1));
  two.messages.push_back(grant_with(60, 1));
  EXPECT_EQ(reason_of(encode(two), limits), MalformedReason::kLimit);
  limits.max_messages = 1;
  EXPECT_EQ(reason_of(encode(two), limits), MalformedReason::kLimit);
  Hello hello;
  hello.self.layout.regions.resize(5);
  hello.self.transports.resize(5);
  limits.max_regions = 4;
  EXPECT_EQ(reason_of(encode(frame_of(hello)), limits), MalformedReason::kLimit);
  limits.max_regions = 5;
  EXPECT_TRUE(decode(encode(frame_of(hello)), limits));
  limits.max_transports = 4;
  EXPECT_EQ(reason_of(encode(frame_of(hello)), limits), MalformedReason::kLimit);
  limits.max_transports = 5;
  hello.self.transports[0].blob.resize(limits.max_blob_bytes + 1);
  EXPECT_EQ(reason_of(encode(frame_of(hello)), limits), MalformedReason::kLimit);
  limits = {};
  limits.max_text_bytes = 3;
  Failed failed;
  failed.cause.peer = "four";
  EXPECT_EQ(reason_of(encode(frame_of(failed)), limits), MalformedReason::kLimit);
}

TEST(Codec, AGrantAtTheDefaultLimitsFitsOneMessage) {
  const Grant grant = grant_with((4U << 20) / 4 - 1'000, 3);
  EXPECT_LE(encoded_size_bound(grant) + kFrameOverheadBytes, CodecLimits{}.max_frame_bytes);
  EXPECT_EQ(decode(encode(frame_of(grant))), frame_of(grant));
}

TEST(Codec, ReasonsHaveNames) {
  std::set<std::string_view> names;
  for (int reason = 0; reason <= static_cast<int>(MalformedReason::kBadLength); ++reason) {
    EXPECT_TRUE(names.insert(to_string(static_cast<MalformedReason>(reason))).second);
  }
}

}  // namespace
}  // namespace kvferry::wire
