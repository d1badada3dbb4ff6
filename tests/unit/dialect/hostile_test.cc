// Damage to what real SGLang sends: every message cut short everywhere, in another order, to the
// wrong listener, and changed at random. Nothing throws, what is read can be written and read again
// without a change, and what is not read has a reason.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/prng.h"
#include "golden.h"

namespace kvferry::sglang {
namespace {

constexpr std::size_t kRandomMessages = 20'000;

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(all_.empty()); }

  // Reads it and counts how that ended; whether it was read.
  bool offer(Listener listener, const Frames& frames) {
    const auto decoded = decode(listener, frames);
    ++offered_;
    if (!decoded) {
      ++refused_[decoded.error().reason];
      EXPECT_FALSE(decoded.error().what.empty());
      EXPECT_LT(decoded.error().what.size(), 300U);
      return false;
    }
    ++read_;
    Message sendable = *decoded;
    if (auto* status = std::get_if<RoomStatus>(&sendable);
        status != nullptr && listener.flavour == Flavour::kMooncake) {
      status->reason.clear();  // never sent in that flavour
    }
    const auto again = decode(listener, encode(listener.flavour, sendable));
    EXPECT_TRUE(again && *again == sendable) << (again ? "changed" : again.error().what);
    return true;
  }

  std::size_t refused() const {
    std::size_t sum = 0;
    for (const auto& [reason, count] : refused_) {
      sum += count;
    }
    return sum;
  }
  void expect_all_counted() const { EXPECT_EQ(read_ + refused(), offered_); }

  const std::vector<GoldenMessage> all_ = read_golden(KVFERRY_SGLANG_GOLDEN_DIR);
  std::map<MalformedReason, std::size_t> refused_;
  std::size_t offered_ = 0;
  std::size_t read_ = 0;
};

TEST_F(Hostile, EveryMessageCutAfterEveryFrame) {
  for (const GoldenMessage& message : all_) {
    for (std::size_t count = 0; count < message.frames.size(); ++count) {
      offer(message.listener, Frames(message.frames.begin(),
                                     message.frames.begin() + static_cast<std::ptrdiff_t>(count)));
    }
  }
  expect_all_counted();
  EXPECT_EQ(refused_[MalformedReason::kNoFrames], all_.size());
  EXPECT_GT(refused_[MalformedReason::kTooFewFrames], 100U);
}

TEST_F(Hostile, EveryFrameCutAfterEveryByte) {
  for (const GoldenMessage& message : all_) {
    for (std::size_t at = 0; at < message.frames.size(); ++at) {
      for (std::size_t length = 0; length < message.frames[at].size(); ++length) {
        Frames cut = message.frames;
        cut[at].resize(length);
        offer(message.listener, cut);
      }
    }
  }
  expect_all_counted();
  EXPECT_GT(refused_[MalformedReason::kForeign], 0U);
  EXPECT_GT(refused_[MalformedReason::kMissing], 0U);
  EXPECT_GT(refused_[MalformedReason::kBadLength], 0U);
  EXPECT_GT(refused_[MalformedReason::kBadList], 0U);
}

TEST_F(Hostile, EveryTwoFramesExchanged) {
  for (const GoldenMessage& message : all_) {
    for (std::size_t first = 0; first < message.frames.size(); ++first) {
      for (std::size_t second = first + 1; second < message.frames.size(); ++second) {
        Frames exchanged = message.frames;
        std::swap(exchanged[first], exchanged[second]);
        offer(message.listener, exchanged);
      }
    }
  }
  expect_all_counted();
  EXPECT_GT(refused_[MalformedReason::kForeign], 0U);
  EXPECT_GT(refused_[MalformedReason::kNotANumber], 0U);
}

// The tags and guards keep the listeners apart: of other flavours and the other role only ABORT and
// its acknowledgement, staging, and AUX_DATA where both flavours have it, are read.
TEST_F(Hostile, EveryMessageToEveryListener) {
  std::size_t elsewhere = 0;
  for (const GoldenMessage& message : all_) {
    for (const Flavour flavour : {Flavour::kMooncake, Flavour::kNixl, Flavour::kMori}) {
      for (const Role role : {Role::kPrefill, Role::kDecode}) {
        const bool is_read = offer({flavour, role}, message.frames);
        if (flavour == message.listener.flavour && role == message.listener.role) {
          EXPECT_TRUE(is_read) << message.name;
        } else if (is_read) {
          ++elsewhere;
          // A room number alone is metadata's first frame and a status's: the count tells them.
          EXPECT_EQ(role, message.listener.role)
              << message.name << " of " << to_string(message.listener.flavour);
        }
      }
    }
  }
  expect_all_counted();
  EXPECT_GT(elsewhere, 0U);
}

TEST_F(Hostile, ManyDamagesAtRandom) {
  Prng prng(1);
  for (std::size_t i = 0; i < kRandomMessages; ++i) {
    const GoldenMessage& message = all_[prng.below(all_.size())];
    Frames frames = message.frames;
    for (std::uint64_t damage = 1 + prng.below(3); damage > 0; --damage) {
      if (frames.empty()) {
        break;
      }
      Frame& frame = frames[prng.below(frames.size())];
      switch (prng.below(6)) {
        case 0:
          frame.push_back(static_cast<std::uint8_t>(prng.next()));
          break;
        case 1:
          frame.resize(prng.below(64), static_cast<std::uint8_t>('0' + prng.below(10)));
          break;
        case 2:  // a length or a count at its edges
          frame.assign(4 * (1 + prng.below(3)), prng.below(2) == 0 ? 0xFF : 0x00);
          break;
        case 3:
          frames.push_back(frame);
          break;
        case 4:
          frame.clear();
          break;
        default:
          if (!frame.empty()) {
            frame[prng.below(frame.size())] ^= static_cast<std::uint8_t>(1U << prng.below(8));
          }
      }
    }
    offer(message.listener, frames);
  }
  expect_all_counted();
  EXPECT_EQ(offered_, kRandomMessages);
  EXPECT_GT(read_, kRandomMessages / 10) << "nothing but noise";
  EXPECT_GT(refused(), kRandomMessages / 10) << "nothing was damaged";
}

}  // namespace
}  // namespace kvferry::sglang
