// What the codec takes, what it refuses and what it says then. Frames of real peers are in
// golden_test.cc, damage at random in hostile_test.cc.
#include "dialect/sglang/codec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvferry::sglang {
namespace {

using ::testing::HasSubstr;

constexpr Listener kMooncakePrefill{Flavour::kMooncake, Role::kPrefill};
constexpr Listener kMooncakeDecode{Flavour::kMooncake, Role::kDecode};
constexpr Listener kNixlPrefill{Flavour::kNixl, Role::kPrefill};
constexpr Listener kNixlDecode{Flavour::kNixl, Role::kDecode};
constexpr Listener kMoriPrefill{Flavour::kMori, Role::kPrefill};
constexpr Listener kMoriDecode{Flavour::kMori, Role::kDecode};

Frame bytes(std::string_view text) { return {text.begin(), text.end()}; }

Frames frames(std::initializer_list<std::string_view> texts) {
  Frames out;
  for (const std::string_view text : texts) {
    out.push_back(bytes(text));
  }
  return out;
}

Frame words(std::initializer_list<std::uint32_t> values) {
  Frame out;
  for (const std::uint32_t value : values) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      out.push_back(static_cast<std::uint8_t>(value >> shift));
    }
  }
  return out;
}

Frames metadata() {
  Frames out = frames({"42", "10.0.0.2", "41235", "10.0.0.2:15003", "", "3", "", "1", "0", ""});
  out[4] = words({5, 6, 7});
  return out;
}

Frames registration() {
  Frames out = frames({"None", "10.0.0.2", "41235", "10.0.0.2:15003",
                       "",     "",         "",      "1",
                       "2",    "256",      "",      "",
                       "",     "",         "",      "",
                       "1",    "0",        "",      ""});
  out[4] = words({0x1000, 0, 0x2000, 0});
  return out;
}

Malformed refused(Listener listener, const Frames& message, const CodecLimits& limits = {}) {
  const auto decoded = decode(listener, message, limits);
  EXPECT_FALSE(decoded) << "was read as " << (decoded ? kind_name(*decoded) : "");
  return decoded ? Malformed{} : decoded.error();
}

// --- the packed lists ---

TEST(SglangLists, AreAsInTheSpecification) {
  EXPECT_EQ(pack_lists(PerComponent<std::uint64_t>{{0x1000, 0x2000}, {}}),
            words({2, 16, 0, 0x1000, 0, 0x2000, 0}));
  EXPECT_EQ(pack_lists(PerComponent<std::uint32_t>{{7}}), words({1, 4, 7}));
  EXPECT_EQ(pack_lists(PerComponent<std::uint32_t>{}), Frame());
  EXPECT_EQ(pack_lists(PerComponent<std::uint32_t>{{}}), words({1, 0}));
}

TEST(SglangLists, ThatDoNotAddUpAreRefused) {
  const struct {
    Frame frame;
    MalformedReason reason;
  } cases[] = {
      {{1, 0, 0}, MalformedReason::kBadList},                      // no count
      {words({2, 4}), MalformedReason::kBadList},                  // a length is missing
      {words({1, 8, 7}), MalformedReason::kBadList},               // longer than the frame
      {words({1, 0xFFFF'FFFC, 7}), MalformedReason::kBadList},     // far longer
      {words({2, 4, 0xFFFF'FFFC, 7}), MalformedReason::kBadList},  // a sum that wraps
      {words({1, 3, 7}), MalformedReason::kBadList},               // not whole elements
      {words({1, 4, 7, 8}), MalformedReason::kBadList},            // something is left
      {words({65}), MalformedReason::kTooMany},                    // a component too many
      {words({0xFFFF'FFFF, 4, 7}), MalformedReason::kTooMany},     // far too many
      {words({1, 4, 0xFFFF'FFFF}), MalformedReason::kOutOfRange},  // -1 as an index
  };
  for (const auto& each : cases) {
    Frames message = metadata();
    message[6] = each.frame;
    const Malformed problem = refused(kMooncakePrefill, message);
    EXPECT_EQ(problem.reason, each.reason) << problem.what;
    EXPECT_EQ(problem.frame, 6) << problem.what;
  }
}

TEST(SglangLists, AnOuterListOfNoneIsNone) {
  Frames message = metadata();
  message[6] = words({0});
  const auto decoded = decode(kMooncakePrefill, message);
  ASSERT_TRUE(decoded);
  EXPECT_TRUE(std::get<MooncakeMetadata>(*decoded).target.state_indices.empty());
}

// --- rules of reading ---

TEST(SglangCodec, IgnoresFramesBeyondThoseItKnows) {
  for (Frames message : {registration(), metadata(), frames({"ABORT", "1", "h", "2", "9"})}) {
    const auto plain = decode(kMooncakePrefill, message);
    message.push_back(bytes("of a later version"));
    message.push_back(Frame(100, 0xFF));
    const auto longer = decode(kMooncakePrefill, message);
    ASSERT_TRUE(plain && longer);
    EXPECT_EQ(*plain, *longer);
  }
}

TEST(SglangCodec, ReadsOlderVersionsWithFewerFrames) {
  Frames message = registration();
  const auto full = decode(kMooncakePrefill, message);
  message.resize(10);
  const auto oldest = decode(kMooncakePrefill, message);
  ASSERT_TRUE(full && oldest) << oldest.error().what;
  EXPECT_EQ(*full, *oldest);
  message.resize(9);
  EXPECT_EQ(refused(kMooncakePrefill, message).reason, MalformedReason::kTooFewFrames);

  Frames target = metadata();
  target.resize(8);
  EXPECT_TRUE(decode(kMooncakePrefill, target));
  target.resize(7);
  EXPECT_EQ(refused(kMooncakePrefill, target).reason, MalformedReason::kTooFewFrames);
}

TEST(SglangCodec, TellsADummyFromAFullPrefixHit) {
  Frames message = metadata();
  message[4].clear();
  message[8] = bytes("128");
  EXPECT_FALSE(std::get<MooncakeMetadata>(*decode(kMooncakePrefill, message)).is_dummy());
  message[5].clear();
  EXPECT_TRUE(std::get<MooncakeMetadata>(*decode(kMooncakePrefill, message)).is_dummy());

  Frames nixl = frames({"NixlMsgGuard", "42", "h", "1", "agent", "", "3", "1", "", "0", ""});
  EXPECT_TRUE(std::get<NixlMetadata>(*decode(kNixlPrefill, nixl)).is_dummy);
  nixl[9] = bytes("128");
  EXPECT_FALSE(std::get<NixlMetadata>(*decode(kNixlPrefill, nixl)).is_dummy);
  nixl[10] = bytes("1");
  EXPECT_TRUE(std::get<NixlMetadata>(*decode(kNixlPrefill, nixl)).is_dummy);
}

TEST(SglangCodec, ReadsAStatusOfEachFlavour) {
  const RoomStatus success{RoomId(42), KvPoll::kSuccess, 5, ""};
  const RoomStatus failed{RoomId(42), KvPoll::kFailed, 5, "why"};
  EXPECT_EQ(*decode(kMooncakeDecode, frames({"42", "4", "5"})), Message(success));
  EXPECT_EQ(*decode(kMooncakeDecode, frames({"42", "0", "5", "why"})), Message(failed));
  EXPECT_EQ(*decode(kNixlDecode, frames({"KV_STATUS", "42", "4", "5", ""})), Message(success));
  EXPECT_EQ(*decode(kMoriDecode, frames({"MoriMsgGuard", "42", "0", "5", "why"})), Message(failed));
  EXPECT_EQ(encode(Flavour::kMooncake, failed), frames({"42", "0", "5"}));
  EXPECT_EQ(encode(Flavour::kNixl, failed), frames({"KV_STATUS", "42", "0", "5", "why"}));
}

TEST(SglangCodec, AReasonIsMadeFitForALine) {
  const auto reason = [](std::string_view text, const CodecLimits& limits = {}) {
    Frames message = frames({"42", "0", "5"});
    message.push_back(bytes(text));
    return std::get<RoomStatus>(*decode(kMooncakeDecode, message, limits)).reason;
  };
  EXPECT_EQ(reason("a\nb\x1B[31m"), "a?b?[31m");
  EXPECT_EQ(reason("Pr\xC3\xBC"
                   "fung"),
            "Pr\xC3\xBC"
            "fung");
  EXPECT_EQ(reason("\xFF\xC3"), "??");
  EXPECT_EQ(reason("\xED\xA0\x80"), "???");  // a surrogate is no character
  CodecLimits limits;
  limits.max_reason_bytes = 4;
  EXPECT_EQ(reason("abc\xC3\xBC", limits), "abc");  // never half a character
}

TEST(SglangCodec, ReadsAbortsWithAndWithoutGenerationAndAddress) {
  EXPECT_EQ(*decode(kMooncakePrefill, frames({"ABORT", "42"})),
            Message(AbortRoom{RoomId(42), {}, {}}));
  EXPECT_EQ(*decode(kNixlPrefill, frames({"ABORT", "42", "h", "7"})),
            Message(AbortRoom{RoomId(42), RankEndpoint{"h", 7}, {}}));
  EXPECT_EQ(*decode(kMoriPrefill, frames({"ABORT", "42", "h", "7", "9"})),
            Message(AbortRoom{RoomId(42), RankEndpoint{"h", 7}, 9}));
  EXPECT_EQ(*decode(kMooncakeDecode, frames({"ABORT_ACK", "42"})),
            Message(AbortAck{RoomId(42), {}, {}}));
  EXPECT_EQ(*decode(kNixlDecode, frames({"ABORT_ACK", "42", "5"})),
            Message(AbortAck{RoomId(42), 5, {}}));
  EXPECT_EQ(*decode(kMoriDecode, frames({"ABORT_ACK", "42", "5", "9"})),
            Message(AbortAck{RoomId(42), 5, 9}));
}

// --- who listens for what ---

TEST(SglangCodec, NoListenerTakesWhatIsForAnother) {
  const struct {
    Listener listener;
    Frames message;
  } cases[] = {
      {kMooncakePrefill, frames({"AUX_DATA", "1", "0", "0", "xxxx", "y"})},
      {kMooncakePrefill, frames({"ABORT_ACK", "1", "0", "0"})},
      {kMooncakePrefill, frames({"NixlMsgGuard", "1"})},
      {kMooncakePrefill, frames({""})},
      {kMooncakePrefill, frames({"-"})},
      {kMooncakePrefill, frames({"none"})},
      {kMooncakeDecode, frames({"None"})},
      {kMooncakeDecode, frames({"ABORT", "1", "h", "2"})},
      {kMooncakeDecode, frames({"KV_STATUS", "1", "4", "0", ""})},
      {kNixlPrefill, metadata()},
      {kNixlPrefill, frames({"BOOTSTRAP", "1", "h", "2"})},
      {kNixlDecode, frames({"1", "4", "0"})},
      {kNixlDecode, frames({"AUX_DATA", "1", "0", "0", "xxxx", "y"})},
      {kMoriPrefill, frames({"WATERMARK", "1", "2", "s"})},
      {kMoriDecode, frames({"CHUNK_READY", "1", "0", "0", "1", "s"})},
      {kMoriDecode, frames({"1", "4", "0"})},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(refused(each.listener, each.message).reason, MalformedReason::kForeign);
  }
  EXPECT_EQ(refused(kMoriPrefill, frames({"MoriMsgGuard", "None"})).reason,
            MalformedReason::kNotSpoken);
}

TEST(SglangCodec, WhatItWasAndWhatItExpectedIsSaid) {
  Frames message = registration();
  message[8] = bytes("two\n");
  const Malformed number = refused(kMooncakePrefill, message);
  EXPECT_EQ(number.what,
            "mooncake-registration, frame 8 (tp_size): expected a whole number, got 'two?'");
  message[8] = bytes("0");
  EXPECT_THAT(refused(kMooncakePrefill, message).what,
              HasSubstr("expected a number from 1 to 65536, got '0'"));
  // Behind a guard frames are still counted from the start of the message.
  const Malformed guarded =
      refused(kNixlPrefill, frames({"NixlMsgGuard", "42", "h", "0", "a", "", "3", "1"}));
  EXPECT_EQ(guarded.frame, 3);
  EXPECT_THAT(guarded.what, HasSubstr("nixl-metadata, frame 3 (decode port)"));
  EXPECT_THAT(refused(kMooncakeDecode, frames({"GET / HTTP/1.1"})).what,
              HasSubstr("'GET / HTTP/1.1' is no tag, guard or room that a mooncake decode"));
  EXPECT_THAT(refused(kMooncakeDecode, {bytes(std::string(40, 'x'))}).what,
              HasSubstr("(40 bytes)"));
  const Failure failure = to_failure(number, "10.0.0.2:41235");
  EXPECT_EQ(failure.code, FailureCode::kMalformed);
  EXPECT_EQ(failure.where, FailureWhere::kPeer);
  EXPECT_EQ(failure.peer, "10.0.0.2:41235");
}

// --- one wrong field of each sort ---

struct Damage {
  std::size_t frame;
  Frame with;
  MalformedReason reason;
};

void expect_refused(Listener listener, const Frames& good, const std::vector<Damage>& damages) {
  ASSERT_TRUE(decode(listener, good)) << decode(listener, good).error().what;
  for (const Damage& damage : damages) {
    Frames message = good;
    message[damage.frame] = damage.with;
    const Malformed problem = refused(listener, message);
    EXPECT_EQ(problem.reason, damage.reason) << problem.what;
    EXPECT_EQ(problem.frame, static_cast<std::int32_t>(damage.frame)) << problem.what;
  }
}

TEST(SglangCodec, RefusesBadRegistrations) {
  using enum MalformedReason;
  expect_refused(kMooncakePrefill, registration(),
                 {{1, {}, kMissing},
                  {1, bytes("a b"), kBadText},
                  {1, Frame(1'025, 'x'), kBadText},
                  {2, bytes("65536"), kOutOfRange},
                  {2, bytes("4123.5"), kNotANumber},
                  {2, bytes("+1"), kNotANumber},
                  {2, bytes(" 1"), kNotANumber},
                  {2, bytes("18446744073709551616"), kOutOfRange},
                  {3, {}, kMissing},
                  {3, {0xC3, 0xBC}, kBadText},
                  {4, Frame(15, 0), kBadLength},
                  {4, Frame(8 * 4'097, 0), kTooMany},
                  {5, Frame(4, 0), kBadLength},
                  {6, words({1, 4, 0}), kBadList},
                  {7, bytes("-1"), kOutOfRange},
                  {9, bytes("-256"), kOutOfRange},
                  {15, bytes("much"), kNotANumber},
                  {16, bytes("0"), kOutOfRange},
                  {19, words({256, 0}), kContradiction}});
}

TEST(SglangCodec, RefusesBadNixlRegistrations) {
  using enum MalformedReason;
  Frames good = frames({"NixlMsgGuard",
                        "None",
                        "h",
                        "1",
                        "agent",
                        "blob",
                        "",
                        "",
                        "",
                        "0",
                        "1",
                        "0",
                        "256",
                        "",
                        "",
                        "",
                        "",
                        "32",
                        "DRAM,VRAM",
                        "",
                        "",
                        "",
                        "1",
                        "0",
                        ""});
  good[6] = words({0x1000, 0, 0x2000, 0});
  expect_refused(kNixlPrefill, good,
                 {{5, Frame((1U << 20) + 1, 0), kTooLarge},
                  {18, bytes("DRAM"), kContradiction},
                  {18, bytes("DRAM,VRAM,"), kBadText},
                  {18, bytes("DRAM,,VRAM"), kBadText},
                  {18, bytes("HBM,HBM"), kBadText},
                  {19, words({1, 0, 2, 0, 3, 0}), kContradiction}});
}

TEST(SglangCodec, RefusesBadMetadata) {
  using enum MalformedReason;
  expect_refused(kMooncakePrefill, metadata(),
                 {{0, bytes("-1"), kOutOfRange},
                  {0, bytes("9223372036854775808"), kOutOfRange},
                  {4, Frame(6, 0), kBadLength},
                  {4, words({5, 0x8000'0000}), kOutOfRange},
                  {5, {}, kContradiction},
                  {5, bytes("-1"), kOutOfRange},
                  {7, {}, kMissing},
                  {7, bytes("0"), kOutOfRange},
                  {8, bytes("-16"), kOutOfRange},
                  {9, words({0xFFFF'FFFF}), kOutOfRange}});
}

TEST(SglangCodec, RefusesBadAuxData) {
  using enum MalformedReason;
  Frames good = frames({"AUX_DATA", "42", "0", "3", "", "four"});
  good[4] = {0, 0, 0, 4};
  expect_refused(kMooncakeDecode, good,
                 {{1, bytes("x"), kNotANumber},
                  {2, bytes("-1"), kOutOfRange},
                  {3, bytes("-1"), kOutOfRange},
                  {4, {0, 0, 4}, kBadLength},
                  {4, {}, kBadLength},
                  {5, bytes("three"), kBadLength},
                  {5, Frame((1U << 20) + 1, 0), kTooLarge}});
  good[4] = {4, 0, 0, 0};  // the other end first
  EXPECT_EQ(refused(kMooncakeDecode, good).what,
            "aux-data, frame 5 (data): expected the 67108864 bytes announced, got 4");
}

TEST(SglangCodec, RefusesBadNumbersInTheRest) {
  using enum MalformedReason;
  expect_refused(kMooncakeDecode, frames({"42", "4", "5"}),
                 {{1, bytes("5"), kOutOfRange},
                  {1, bytes("-1"), kOutOfRange},
                  {1, {}, kMissing},
                  {2, bytes("x"), kNotANumber}});
  expect_refused(
      kMooncakePrefill, frames({"ABORT", "42", "h", "7", "9"}),
      {{1, bytes("x"), kNotANumber}, {3, bytes("0"), kOutOfRange}, {4, bytes("-9"), kOutOfRange}});
  expect_refused(kMooncakeDecode, frames({"CHUNK_READY", "42", "0", "1", "2", "s", "0"}),
                 {{2, bytes("-1"), kOutOfRange}, {5, {}, kMissing}, {6, bytes("x"), kNotANumber}});
  expect_refused(kMooncakeDecode, frames({"STAGING_REQ", "42", "0", "2", "s", "0"}),
                 {{3, bytes("x"), kNotANumber}, {5, bytes("-1"), kOutOfRange}});
  expect_refused(kMooncakePrefill, frames({"STAGING_RSP", "42", "0", "-2", "0", "-1", "s"}),
                 {{3, bytes("-3"), kOutOfRange}, {5, bytes("-2"), kOutOfRange}, {6, {}, kMissing}});
  expect_refused(kMooncakePrefill, frames({"WATERMARK", "1", "2", "s"}),
                 {{1, bytes("-1"), kOutOfRange}, {2, {}, kMissing}});
  expect_refused(kMooncakePrefill, frames({"BOOTSTRAP", "42", "h", "7"}),
                 {{2, {}, kMissing}, {3, bytes("x"), kNotANumber}});
}

// --- sizes ---

TEST(SglangCodec, LooksAtSizesFirst) {
  EXPECT_EQ(refused(kMooncakePrefill, {}).reason, MalformedReason::kNoFrames);
  EXPECT_EQ(refused(kMooncakePrefill, Frames(65)).reason, MalformedReason::kTooManyFrames);
  CodecLimits limits;
  limits.max_frame_bytes = 100;
  limits.max_message_bytes = 150;
  Frames message = metadata();
  message[4] = Frame(104, 0);
  EXPECT_EQ(refused(kMooncakePrefill, message, limits).frame, 4);
  message[4] = Frame(96, 0);
  EXPECT_EQ(decode(kMooncakePrefill, message, limits).has_value(), true);
  message.emplace_back(40, 0);
  const Malformed whole = refused(kMooncakePrefill, message, limits);
  EXPECT_EQ(whole.reason, MalformedReason::kTooLarge);
  EXPECT_EQ(whole.frame, 10);
}

TEST(SglangCodec, HoldsListsToTheirLimits) {
  CodecLimits limits;
  limits.max_pages = 3;
  EXPECT_TRUE(decode(kMooncakePrefill, metadata(), limits));
  limits.max_pages = 2;
  EXPECT_EQ(refused(kMooncakePrefill, metadata(), limits).reason, MalformedReason::kTooMany);
  limits = {};
  limits.max_state_indices = 2;
  Frames message = metadata();
  message[6] = pack_lists(PerComponent<std::uint32_t>{{1}, {2}});
  EXPECT_TRUE(decode(kMooncakePrefill, message, limits));
  message[6] = pack_lists(PerComponent<std::uint32_t>{{1}, {2, 3}});  // counted over all lists
  EXPECT_EQ(refused(kMooncakePrefill, message, limits).reason, MalformedReason::kTooMany);
}

TEST(SglangCodec, EveryReasonAndKindHasAName) {
  for (std::size_t i = 0; i < kMalformedReasons; ++i) {
    EXPECT_NE(to_string(static_cast<MalformedReason>(i)), "unknown");
    EXPECT_FALSE(to_string(static_cast<MalformedReason>(i)).empty());
  }
  EXPECT_EQ(to_string(static_cast<MalformedReason>(kMalformedReasons)), "unknown");
  for (std::size_t i = 0; i < std::variant_size_v<Message>; ++i) {
    EXPECT_NE(kind_name(i), "unknown");
  }
  EXPECT_EQ(kind_name(std::variant_size_v<Message>), "unknown");
}

}  // namespace
}  // namespace kvferry::sglang
