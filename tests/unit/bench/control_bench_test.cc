// The ends of `bench control` pass frames both ways, in order, and its goal can be missed.
#include "bench/control/control_bench.h"

#include <gtest/gtest.h>

#include <future>

#include "base/clock.h"
#include "bench/control/control_end.h"

namespace kvferry::bench {
namespace {

class ControlEndTest : public testing::TestWithParam<std::string_view> {};

// What came within the patience, up to count frames.
std::vector<ControlFrame> take(ControlEnd& end, std::size_t count) {
  std::vector<ControlFrame> frames;
  const Instant until = monotonic_now() + std::chrono::seconds(20);
  while (frames.size() < count && monotonic_now() < until) {
    const Status received = end.receive(std::chrono::milliseconds(10), -1, frames);
    if (!received) {
      ADD_FAILURE() << received.error().what;
      break;
    }
  }
  return frames;
}

TEST_P(ControlEndTest, FramesComeBackInOrder) {
  auto a = make_control_end(GetParam(), false);
  auto b = make_control_end(GetParam(), true);
  ASSERT_TRUE(a && b);
  const std::string of_a = (*a)->address();
  const std::string of_b = (*b)->address();
  constexpr std::size_t kFrames = 100;
  auto echo = std::async(std::launch::async, [&]() -> Status {
    if (Status connected = (*b)->connect(of_a); !connected) return connected;
    for (ControlFrame& frame : take(**b, kFrames)) {
      if (Status sent = (*b)->send(std::move(frame)); !sent) return sent;
    }
    // Its own turns put the last frames on their way.
    std::vector<ControlFrame> none;
    return (*b)->receive(std::chrono::milliseconds(100), -1, none);
  });
  const Status connected = (*a)->connect(of_b);
  ASSERT_TRUE(connected) << connected.error().what;
  // The echo may still wait for its own connection, which this end's turns complete.
  for (std::uint8_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE((*a)->send(ControlFrame(64, i)));
  }
  const std::vector<ControlFrame> back = take(**a, kFrames);
  ASSERT_EQ(back.size(), kFrames);
  for (std::uint8_t i = 0; i < kFrames; ++i) EXPECT_EQ(back[i], ControlFrame(64, i));
  const Status echoed = echo.get();
  EXPECT_TRUE(echoed) << echoed.error().what;
}
INSTANTIATE_TEST_SUITE_P(Ends, ControlEndTest,
                         testing::Values(kLinkName, kPlainName, kPlainCurveName),
                         [](const auto& each) {
                           std::string name(each.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

ControlSeries series(std::string_view engine, std::vector<double> rates,
                     std::uint32_t bytes = kJoinedBytes, std::uint32_t window = 256) {
  ControlSeries out{std::string(engine), bytes, window, {}};
  for (const double rate : rates) out.turns.push_back({rate, 1, 1, 1});
  return out;
}

TEST(ControlResults, TheLinkIsHeldAgainstPlainSocketsWithCurve) {
  const auto rows = make_control_rows(
      {series(kPlainName, {8, 16}), series(kPlainCurveName, {4, 8}), series(kLinkName, {2, 4})});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_DOUBLE_EQ(rows[2].ratio_to_plain, 0.25);
  EXPECT_DOUBLE_EQ(rows[2].ratio_to_curve, 0.5);
  const auto met = judge_control(rows);
  ASSERT_EQ(met.size(), 1U);
  EXPECT_TRUE(met[0].is_met);
  const auto missed = judge_control(
      make_control_rows({series(kPlainCurveName, {4, 8}), series(kLinkName, {1.9, 3.9})}));
  ASSERT_EQ(missed.size(), 1U);
  EXPECT_FALSE(missed[0].is_met);
  // Frames that are mostly joined to larger ones are judged one at a time only.
  EXPECT_TRUE(judge_control(make_control_rows({series(kLinkName, {9}, 64, 256)})).empty());
  EXPECT_EQ(judge_control(make_control_rows({series(kLinkName, {9}, 64, 1)})).size(), 1U);
  // Without its reference it has missed its goal.
  EXPECT_FALSE(judge_control(make_control_rows({series(kLinkName, {9})}))[0].is_met);
}

}  // namespace
}  // namespace kvferry::bench
