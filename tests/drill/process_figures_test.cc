// Figures of a process, where what must be noticed is made: a thread, a descriptor, memory.
#include "lab/rig/process_figures.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <thread>

namespace kvferry::lab {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kGrowthKib = 8'192;

ProcessFigures own() {
  const auto figures = figures_of(::getpid());
  EXPECT_TRUE(figures) << figures.error().what;
  return figures.value_or(ProcessFigures{});
}

TEST(ProcessFigures, ADescriptorIsSeen) {
  const ProcessFigures before = own();
  EXPECT_THAT(compare("self", before, own(), kGrowthKib), IsEmpty());
  const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const auto findings = compare("self", before, own(), kGrowthKib);
  ::close(descriptor);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings.front().invariant, "I4");
  EXPECT_THAT(findings.front().what, HasSubstr("descriptors"));
  EXPECT_THAT(compare("self", before, own(), kGrowthKib), IsEmpty());
}

TEST(ProcessFigures, AThreadIsSeen) {
  const ProcessFigures before = own();
  std::promise<void> running;
  std::promise<void> end;
  std::thread thread([&] {
    running.set_value();
    end.get_future().wait();
  });
  running.get_future().wait();
  const auto findings = compare("self", before, own(), kGrowthKib);
  end.set_value();
  thread.join();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings.front().what, HasSubstr("threads"));
}

TEST(ProcessFigures, MemoryIsSeenBeyondItsBound) {
  constexpr std::size_t kBytes = 32U << 20;
  const ProcessFigures before = own();
  void* memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  const ProcessFigures after = own();
  ::munmap(memory, kBytes);
  const auto findings = compare("self", before, after, kGrowthKib);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings.front().what, HasSubstr("memory"));
  EXPECT_THAT(compare("self", before, after, 2 * std::int64_t{kBytes} / 1'024), IsEmpty());
}

TEST(ProcessFigures, FewerIsNoFinding) {
  EXPECT_THAT(compare("d0", {10, 30, 5'000}, {9, 20, 4'000}, 0), IsEmpty());
}

TEST(ProcessFigures, AProcessThatIsGoneIsAFailure) {
  const auto figures = figures_of(0);
  ASSERT_FALSE(figures);
  EXPECT_THAT(figures.error().what, HasSubstr("process 0"));
}

}  // namespace
}  // namespace kvferry::lab
