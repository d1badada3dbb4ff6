// Damaged and hostile frames: whatever comes in, decode() ends, stays within its limits and gives
// values that their types allow. Run under the sanitizers, this is also the proof that it reads no
// stray byte.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "samples.h"
#include "wire/codec.h"
#include "wire/kvferry_generated.h"

namespace kvferry::wire {
namespace {

constexpr CodecLimits kLimits{1U << 16, 64, 500, 100, 8, 64, 128};

struct Counts {
  std::size_t pages = 0;
  std::size_t regions = 0;
  std::size_t transports = 0;
  bool is_sane = true;
};

void count(const Failure& failure, Counts& counts) {
  counts.is_sane = counts.is_sane && failure.where <= FailureWhere::kPeer &&
                   failure.what.size() <= kLimits.max_text_bytes &&
                   failure.peer.size() <= kLimits.max_text_bytes;
}

void count(const Introduction& self, Counts& counts) {
  counts.regions += self.layout.regions.size();
  counts.transports += self.transports.size();
  counts.is_sane = counts.is_sane && self.role <= Role::kDecode &&
                   self.layout.dtype <= DType::kF8E5M2 &&
                   self.instance.size() <= kLimits.max_text_bytes;
  for (const RegionShape& region : self.layout.regions) {
    counts.is_sane =
        counts.is_sane && region.kind <= RegionKind::kState && region.memory <= MemoryKind::kDevice;
  }
  for (const TransportOffer& offer : self.transports) {
    counts.is_sane = counts.is_sane && offer.blob.size() <= kLimits.max_blob_bytes;
  }
}

void count(const Message& message, Counts& counts) {
  if (const auto* hello = std::get_if<Hello>(&message)) {
    count(hello->self, counts);
  } else if (const auto* reply = std::get_if<HelloReply>(&message)) {
    count(reply->self, counts);
  } else if (const auto* grant = std::get_if<Grant>(&message)) {
    counts.pages += grant->pages.size() + grant->state_slots.size();
    counts.is_sane = counts.is_sane && grant->aux_slot >= -1;
  } else if (const auto* failed = std::get_if<Failed>(&message)) {
    count(failed->cause, counts);
  } else if (const auto* abort = std::get_if<Abort>(&message)) {
    count(abort->cause, counts);
  }
}

bool stays_within_limits(std::span<const std::uint8_t> bytes) {
  const auto frame = decode(bytes, kLimits);
  if (!frame) {
    return true;
  }
  Counts counts;
  for (const Message& message : frame->messages) {
    count(message, counts);
  }
  return counts.is_sane && !frame->messages.empty() &&
         frame->messages.size() <= kLimits.max_messages && counts.pages <= kLimits.max_pages &&
         counts.regions <= kLimits.max_regions && counts.transports <= kLimits.max_transports;
}

RC_GTEST_PROP(CodecFuzz, FlippedBytesStayWithinLimits, (std::uint64_t seed)) {
  Prng prng(seed);
  const auto good = encode(random_frame(prng, 6));
  for (int round = 0; round < 1'000; ++round) {
    auto bytes = good;
    for (std::uint64_t flips = 1 + prng.below(8); flips > 0; --flips) {
      std::uint8_t& byte = bytes[prng.below(bytes.size())];
      // Small numbers make offsets and lengths that are nearly right.
      byte = static_cast<std::uint8_t>(prng.below(2) == 0 ? prng.below(16) : prng.next());
    }
    RC_ASSERT(stays_within_limits(bytes));
  }
}

RC_GTEST_PROP(CodecFuzz, TruncatedAndExtendedFramesAreRefused, (std::uint64_t seed)) {
  Prng prng(seed);
  auto bytes = encode(random_frame(prng, 4));
  for (int round = 0; round < 20; ++round) {
    const auto size = static_cast<std::size_t>(prng.below(bytes.size()));
    RC_ASSERT(!decode(std::span(bytes).first(size)));
  }
  bytes.resize(bytes.size() + 1 + prng.below(40));
  RC_ASSERT(!decode(bytes));
}

// The same with a size prefix that fits, so that the verifier has to see it.
RC_GTEST_PROP(CodecFuzz, CutFramesWithAFittingPrefixStayWithinLimits, (std::uint64_t seed)) {
  Prng prng(seed);
  const auto good = encode(random_frame(prng, 4));
  for (int round = 0; round < 50; ++round) {
    auto bytes = good;
    bytes.resize(4 + prng.below(good.size() + 20));
    const auto size = static_cast<std::uint32_t>(bytes.size() - 4);
    for (std::size_t i = 0; i < 4; ++i) {
      bytes[i] = static_cast<std::uint8_t>(size >> (8 * i));
    }
    RC_ASSERT(stays_within_limits(bytes));
  }
}

RC_GTEST_PROP(CodecFuzz, NoiseIsRefused, (const std::vector<std::uint8_t>& bytes)) {
  RC_ASSERT(!decode(bytes));
}

// Frames that the encoder never writes, made with the generated code.
class HostileFrame : public ::testing::Test {
 protected:
  template <typename T>
  void add(fb::Message tag, flatbuffers::Offset<T> body) {
    tags_.push_back(tag);
    bodies_.push_back(body.Union());
  }
  std::vector<std::uint8_t> finish() {
    const auto tags = builder_.CreateVector(tags_);
    const auto bodies = builder_.CreateVector(bodies_);
    builder_.FinishSizePrefixed(fb::CreateFrame(builder_, 1, 2, 3, tags, bodies),
                                fb::FrameIdentifier());
    return {builder_.GetBufferPointer(), builder_.GetBufferPointer() + builder_.GetSize()};
  }
  MalformedReason reason() {
    const auto frame = decode(finish());
    EXPECT_FALSE(frame);
    return frame ? MalformedReason{255} : frame.error().reason;
  }
  void add_grant(flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> pages,
                 flatbuffers::Offset<flatbuffers::Vector<const fb::PageRun*>> runs) {
    const fb::Id128 binding(1, 2);
    add(fb::Message::Grant,
        fb::CreateGrant(builder_, 1, &binding, 1, 1, 1, 1, 1, 1, 0, pages, runs));
  }

  flatbuffers::FlatBufferBuilder builder_;
  std::vector<fb::Message> tags_;
  std::vector<flatbuffers::Offset<void>> bodies_;
};

TEST_F(HostileFrame, OneListSharedByManyGrantsCountsEachTime) {
  const std::vector<fb::PageRun> run{{0, 600'000}};
  const auto runs = builder_.CreateVectorOfStructs(run);
  add_grant(0, runs);
  add_grant(0, runs);
  EXPECT_EQ(reason(), MalformedReason::kLimit);
}

TEST_F(HostileFrame, RunsOfFourBillionPagesAllocateNothing) {
  const std::vector<fb::PageRun> run(1'000, {0, 0xFFFF'FFFF});
  add_grant(0, builder_.CreateVectorOfStructs(run));
  EXPECT_EQ(reason(), MalformedReason::kLimit);
}

TEST_F(HostileFrame, RunsPastTheLastPageAreRefused) {
  const std::vector<fb::PageRun> run{{0xFFFF'FFFF, 2}};
  add_grant(0, builder_.CreateVectorOfStructs(run));
  EXPECT_EQ(reason(), MalformedReason::kBadLength);
}

TEST_F(HostileFrame, EmptyRunsAreRefused) {
  const std::vector<fb::PageRun> run{{5, 0}};
  add_grant(0, builder_.CreateVectorOfStructs(run));
  EXPECT_EQ(reason(), MalformedReason::kBadLength);
}

TEST_F(HostileFrame, PagesAndRunsTogetherAreRefused) {
  const std::vector<fb::PageRun> run{{5, 1}};
  const auto runs = builder_.CreateVectorOfStructs(run);
  const auto pages = builder_.CreateVector(std::vector<std::uint32_t>{5});
  add_grant(pages, runs);
  EXPECT_EQ(reason(), MalformedReason::kBadLength);
}

TEST_F(HostileFrame, HelloWithoutIntroductionIsRefused) {
  const fb::Bytes16 nonce;
  add(fb::Message::Hello, fb::CreateHello(builder_, 0, &nonce));
  EXPECT_EQ(reason(), MalformedReason::kMissingField);
}

// Everything that a hello must have and may lack in the schema, one at a time.
TEST_F(HostileFrame, HelloWithAPartMissingIsRefused) {
  const fb::Bytes16 nonce;
  const fb::Bytes32 half;
  const fb::Id128 incarnation(1, 2);
  constexpr std::string_view kParts[] = {
      "introduction.numerics", "introduction.limits", "introduction.incarnation",
      "introduction.layout",   "layout.rank",         "hello.nonce",
      "hello.secret_half"};
  for (const std::string_view missing : kParts) {
    builder_.Clear();
    tags_.clear();
    bodies_.clear();
    const auto has = [&](std::string_view part) { return part != missing; };
    const auto rank = fb::CreateRankCoordinates(builder_);
    const auto layout = has("layout.rank") ? fb::CreateLayoutShape(builder_, 0, 1, 1, 1, 1, 0, rank)
                                           : fb::CreateLayoutShape(builder_);
    const auto numerics = fb::CreateNumerics(builder_);
    const auto limits = fb::CreatePeerLimits(builder_);
    fb::IntroductionBuilder introduction(builder_);
    if (has("introduction.numerics")) {
      introduction.add_numerics(numerics);
    }
    if (has("introduction.limits")) {
      introduction.add_limits(limits);
    }
    if (has("introduction.incarnation")) {
      introduction.add_incarnation(&incarnation);
    }
    if (has("introduction.layout")) {
      introduction.add_layout(layout);
    }
    add(fb::Message::Hello,
        fb::CreateHello(builder_, introduction.Finish(), has("hello.nonce") ? &nonce : nullptr,
                        has("hello.secret_half") ? &half : nullptr));
    const auto frame = decode(finish());
    ASSERT_FALSE(frame) << missing;
    EXPECT_EQ(frame.error().reason, MalformedReason::kMissingField);
    EXPECT_EQ(frame.error().what, missing);
  }
}

TEST_F(HostileFrame, AFrameWithoutAListIsEmpty) {
  add(fb::Message::Ack, fb::CreateAck(builder_));
  const auto tags = builder_.CreateVector(tags_);
  const auto bodies = builder_.CreateVector(bodies_);
  // The verifier wants both lists of a union or none, so only none comes through to the reader.
  const std::vector<fb::Message> no_tags;
  const auto empty_tags = builder_.CreateVector(no_tags.data(), 0);
  const std::vector<flatbuffers::Offset<void>> no_bodies;
  const auto empty_bodies = builder_.CreateVector(no_bodies.data(), 0);
  struct Case {
    flatbuffers::Offset<flatbuffers::Vector<fb::Message>> tags;
    flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<void>>> bodies;
    MalformedReason reason;
  };
  for (const Case& each :
       {Case{0, 0, MalformedReason::kEmpty},
        Case{empty_tags, empty_bodies, MalformedReason::kEmpty},
        Case{tags, 0, MalformedReason::kVerifier}, Case{0, bodies, MalformedReason::kVerifier}}) {
    builder_.FinishSizePrefixed(fb::CreateFrame(builder_, 1, 2, 3, each.tags, each.bodies),
                                fb::FrameIdentifier());
    const std::vector<std::uint8_t> bytes(builder_.GetBufferPointer(),
                                          builder_.GetBufferPointer() + builder_.GetSize());
    const auto frame = decode(bytes);
    ASSERT_FALSE(frame);
    EXPECT_EQ(frame.error().reason, each.reason);
  }
}

TEST_F(HostileFrame, FailureWithoutCauseIsRefused) {
  const fb::Id128 binding(1, 2);
  add(fb::Message::Failed, fb::CreateFailed(builder_, 1, &binding, 1));
  EXPECT_EQ(reason(), MalformedReason::kMissingField);
}

TEST_F(HostileFrame, ConfirmWithoutNonceIsRefused) {
  add(fb::Message::HelloConfirm, fb::CreateHelloConfirm(builder_, 1));
  EXPECT_EQ(reason(), MalformedReason::kMissingField);
}

TEST_F(HostileFrame, TooManyMessagesAreRefused) {
  const auto ack = fb::CreateAck(builder_);
  for (std::uint32_t i = 0; i <= CodecLimits{}.max_messages; ++i) {
    add(fb::Message::Ack, ack);
  }
  EXPECT_EQ(reason(), MalformedReason::kLimit);
}

}  // namespace
}  // namespace kvferry::wire
