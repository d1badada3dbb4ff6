// Digests of pages: a byte that changes on its way tears its write, and without them it lands.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "data_plane/incoming_frame.h"
#include "data_plane/page_digest.h"
#include "rig.h"

namespace kvferry::data_plane {
namespace {

std::uint64_t mismatches(const ReceiveGate& gate) {
  for (const TransportCounter& counter : gate.counters()) {
    if (counter.name == "page_digest_mismatches") return counter.value;
  }
  return ~std::uint64_t{0};
}

using layout::Write;
using layout::WriteOutcome;

constexpr std::uint64_t kSession = 7;

std::vector<Case> cases_of(const Shape& shape) {
  std::vector<Case> cases;
  for (const Kind kind : {Kind::kTcp, Kind::kShm, Kind::kShmRemote, Kind::kMemory}) {
    cases.push_back({kind, shape});
  }
  return cases;
}
constexpr auto kName = [](const auto& shown) { return case_name(shown.param); };

std::uint64_t mismatches_of(const Transport& target) {
  for (const TransportCounter& counter : target.counters()) {
    if (counter.name == "page_digest_mismatches") return counter.value;
  }
  ADD_FAILURE() << "the counter is missing";
  return 0;
}

class Integrity : public testing::TestWithParam<Case> {
 protected:
  void make_rig(bool page_digests) {
    Rig::Tuning tuning;
    tuning.with_relay = true;
    tuning.lanes = 1;
    tuning.page_digests = page_digests;
    rig_.emplace(GetParam(), tuning);
    // The landing of page 0 waits for go_on_: its receiving thread does nothing else meanwhile.
    rig_->target_sink().on_landed = [this](std::span<const Landing> landings) {
      if (landings.front().item != 0) return;
      is_landing_.set_value();
      go_on_.get_future().wait();
    };
    rig_->open(kSession);
    rig_->grant(1, kSession, 0, 1, {0, 1, 2});
    original_.assign(rig_->source_pool().item(0, 1).begin(), rig_->source_pool().item(0, 1).end());
  }

  // Sends page 1 and changes one bit of it between its source's digest and its place.
  WriteOutcome send_altered(const Write& write) {
    rig_->post(kSession, {rig_->write(0, 1, 0, 0)});
    is_landing_.get_future().wait();
    switch (GetParam().kind) {
      case Kind::kTcp:
        // Far behind all that goes before the payload.
        rig_->relay().flip_byte(support::Way::kToTarget, 10'000);
        rig_->post(kSession, {write});
        break;
      case Kind::kMemory:
        rig_->fabric().alter_copies(1);
        rig_->post(kSession, {write});
        break;
      default:
        post_and_alter_the_source(write);
    }
    go_on_.set_value();
    rig_->source_sink().wait_outcome(write.ticket.value());
    return rig_->source_sink().outcome(write.ticket.value());
  }

  std::optional<Rig> rig_;
  std::vector<std::byte> original_;

 private:
  void post_and_alter_the_source(const Write& write) {
    rig_->post(kSession, {write});
    // Refused by the source at once. The first may be taken in one turn with the write before it,
    // and be told before that goes into the ring; the second is taken in a later turn.
    for (int i = 0; i < 2; ++i) {
      Write nowhere = rig_->write(0, 1, 0, 2);
      nowhere.source_region = RegionId(99);
      EXPECT_EQ(rig_->send(kSession, nowhere), WriteOutcome::kRefused);
    }
    rig_->source_pool().item(0, 1)[100] ^= std::byte{1};
  }

  std::promise<void> is_landing_;
  std::promise<void> go_on_;
};

TEST_P(Integrity, AnAlteredByteTearsItsWriteAndIsToldWithBothDigests) {
  make_rig(true);
  const Write write = rig_->write(0, 1, 0, 1);
  EXPECT_EQ(send_altered(write), WriteOutcome::kUnknown);
  EXPECT_TRUE(rig_->source_sink().wait_quiet(write.ticket.value()));
  EXPECT_EQ(rig_->send(kSession, rig_->write(0, 1, 0, 2)), WriteOutcome::kLanded)
      << "the lane goes on, and what is whole lands";
  const auto state = rig_->target_sink().snapshot();
  ASSERT_EQ(state.torn.size(), 1U);
  EXPECT_EQ(state.torn.front().ticket, write.ticket);
  EXPECT_EQ(state.torn.front().item, 1U);
  const auto landed = rig_->target_pool().item(0, 1);
  ASSERT_NE(page_digest(landed), page_digest(original_));
  EXPECT_EQ(state.torn_how.front(),
            fmt::format("landed altered: its digest is {:016x}, its source's was {:016x}",
                        page_digest(landed), page_digest(original_)));
  EXPECT_EQ(state.landings.size(), 2U);
  EXPECT_EQ(mismatches_of(rig_->target()), 1U);
}

TEST_P(Integrity, WithoutDigestsItLands) {
  make_rig(false);
  EXPECT_EQ(send_altered(rig_->write(0, 1, 0, 1)), WriteOutcome::kLanded);
  const auto landed = rig_->target_pool().item(0, 1);
  EXPECT_FALSE(std::equal(landed.begin(), landed.end(), original_.begin()));
  EXPECT_TRUE(rig_->target_sink().snapshot().torn.empty());
  EXPECT_EQ(mismatches_of(rig_->target()), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, Integrity, testing::ValuesIn(cases_of(kSimple)), kName);

// Items larger than what is read under one mark.
class LargeItems : public testing::TestWithParam<Case> {};

TEST_P(LargeItems, LandWithTheirDigests) {
  Rig::Tuning tuning;
  tuning.page_digests = true;
  Rig rig(GetParam(), tuning);
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {0, 1, 2});
  for (const std::uint32_t page : {0U, 1U, 2U}) {
    EXPECT_EQ(rig.send(kSession, rig.write(0, 1, 0, page)), WriteOutcome::kLanded);
    EXPECT_TRUE(rig.item_equals_source(0, page));
  }
  EXPECT_EQ(mismatches_of(rig.target()), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, LargeItems, testing::ValuesIn(cases_of(Shape{1, (3U << 20) + 8, 4})),
                         kName);

// The comparison at the gate itself.
class GateDigests : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 4'096;

  GateDigests() : memory_(kBytes, kCanary) {
    Region region;
    region.base = memory_.data();
    region.item_bytes = kBytes;
    region.item_count = 1;
    gate_.register_regions(std::span(&region, 1));
    slots_ = gate_.open_session(SessionEpoch(kSession));
    std::vector<SlotGrant> slots;
    slots.push_back(SlotGrant{
        SessionEpoch(kSession), GrantSlot(0), Generation(1),
        layout::GrantExtent({{RegionId(0), 0, kBytes, 1, 0}}, {PageIndex(0)}, {}, -1, {}, {})});
    gate_.open_grant(GrantId(1), std::move(slots));
  }
  // Claims the page for a write with this digest and fills it with zeros.
  void fill(IncomingFrame& frame, ReceiveGate::Reader& reader, std::uint64_t digest) {
    const IncomingWrite write{TicketId(1), RegionId(0), 0, 0, kBytes};
    frame.begin(reader, slots_, GrantSlot(0), Generation(1), std::span(&write, 1),
                std::span(&digest, 1));
    while (!frame.payload_complete()) {
      frame.move_part(reader, [](std::span<const iovec> parts) -> std::ptrdiff_t {
        std::memset(parts.front().iov_base, 0, parts.front().iov_len);
        return static_cast<std::ptrdiff_t>(parts.front().iov_len);
      });
    }
  }
  WriteResult result_of(IncomingFrame& frame) {
    std::vector<WriteResult> results;
    EXPECT_TRUE(frame.answers(results));
    return results.at(0);
  }

  std::atomic<std::uint64_t> clock_{0};
  RecordingSink sink_{clock_};
  std::vector<std::byte> memory_;
  ReceiveGate gate_{16, sink_};
  std::shared_ptr<SessionSlots> slots_;
};

TEST_F(GateDigests, TheRightOneLands) {
  ReceiveGate::Reader reader(gate_);
  IncomingFrame frame;
  fill(frame, reader, page_digest(std::vector<std::byte>(kBytes)));
  frame.finish(true);
  EXPECT_EQ(result_of(frame), WriteResult::kLanded);
}

TEST_F(GateDigests, AWrongOneOfAFencedGrantIsNobodysFailure) {
  ReceiveGate::Reader reader(gate_);
  IncomingFrame frame;
  fill(frame, reader, 1);
  gate_.fence(GrantId(1));
  ASSERT_TRUE(sink_.wait_fence(1));
  frame.finish(true);
  EXPECT_EQ(result_of(frame), WriteResult::kTorn);
  EXPECT_TRUE(sink_.snapshot().torn.empty());
  EXPECT_EQ(mismatches(gate_), 0U);
}

TEST_F(GateDigests, AWriteThatWasGivenUpIsNotCompared) {
  ReceiveGate::Reader reader(gate_);
  IncomingFrame frame;
  fill(frame, reader, 1);
  frame.finish(false);
  EXPECT_EQ(result_of(frame), WriteResult::kTorn);
  EXPECT_EQ(sink_.snapshot().torn_how, std::vector<std::string>{"stopped in the middle"});
  EXPECT_EQ(mismatches(gate_), 0U);
}

TEST(PageDigest, IsTheSameInParts) {
  std::vector<std::byte> bytes(10'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31);
  PageDigest digest;
  for (std::size_t at = 0; at < bytes.size(); at += 777) {
    digest.add(std::span(bytes).subspan(at, std::min<std::size_t>(777, bytes.size() - at)));
  }
  EXPECT_EQ(digest.value(), page_digest(bytes));
  EXPECT_EQ(page_digest({}), 0x2D06'8005'38D3'94C2U) << "XXH3's own test vector";
}

TEST(FrameHeader, FlagsAreCheckedLikeTheRest) {
  FrameHeader header;
  header.type = FrameType::kData;
  header.has_digests = true;
  std::vector<std::uint8_t> bytes;
  append_header(bytes, header);
  const auto parsed = [&] { return parse_header(std::span(bytes).first<kHeaderBytes>()); };
  ASSERT_TRUE(parsed());
  EXPECT_TRUE(parsed()->has_digests);
  bytes[5] = 0;
  EXPECT_FALSE(parsed()->has_digests);
  bytes[5] = 2;
  EXPECT_FALSE(parsed()) << "a flag of another version";
  bytes[4] = static_cast<std::uint8_t>(FrameType::kHeartbeat);
  bytes[5] = 1;
  EXPECT_FALSE(parsed()) << "digests of no data";
}

}  // namespace
}  // namespace kvferry::data_plane
