#include "data_plane/shm/peer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "kvferry/shared_pool.h"
#include "memory_tools.h"

namespace kvferry::data_plane::shm {
namespace {

using ::testing::HasSubstr;
using Use = PeerMemory::Use;

constexpr std::uint64_t kBytes = 16'384;
constexpr int kPoolSeals = F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE;

void expect_refused(Fd fd, Use use, std::uint64_t min_bytes, const char* why) {
  ASSERT_TRUE(fd.is_open());
  const auto mapped = PeerMemory::map(std::move(fd), use, min_bytes);
  ASSERT_FALSE(mapped.has_value());
  EXPECT_EQ(mapped.error().where, FailureWhere::kPeer);
  EXPECT_THAT(mapped.error().what, HasSubstr(why));
}

TEST(PeerMemory, ShowsWhatASharedPoolHolds) {
  auto pool = SharedPool::create(kBytes);
  ASSERT_TRUE(pool);
  std::memset(pool->base(), 7, kBytes);
  for (const Use use : {Use::kPool, Use::kRing}) {
    auto memory = PeerMemory::map(duplicate(pool->fd()), use, kBytes);
    ASSERT_TRUE(memory) << memory.error().what;
    EXPECT_EQ(memory->bytes(), kBytes);
    EXPECT_EQ(std::memcmp(memory->base(), pool->base(), kBytes), 0);
    pool->base()[100] = std::byte{9};
    EXPECT_EQ(memory->base()[100], std::byte{9});
    pool->base()[100] = std::byte{7};
  }
}

TEST(PeerMemory, StaysWhenItsOwnerIsGone) {
  auto pool = SharedPool::create(kBytes);
  ASSERT_TRUE(pool);
  pool->base()[kBytes - 1] = std::byte{3};
  auto mapped = PeerMemory::map(duplicate(pool->fd()), Use::kPool, kBytes);
  ASSERT_TRUE(mapped);
  pool = SharedPool::create(kBytes);
  const PeerMemory memory = std::move(*mapped);
  EXPECT_EQ(memory.base()[kBytes - 1], std::byte{3});
}

TEST(PeerMemory, CannotBeMadeWritable) {
  auto pool = SharedPool::create(kBytes);
  ASSERT_TRUE(pool);
  auto memory = PeerMemory::map(duplicate(pool->fd()), Use::kPool, kBytes);
  ASSERT_TRUE(memory);
  void* base = const_cast<std::byte*>(memory->base());
  EXPECT_EQ(::mprotect(base, kBytes, PROT_READ), 0);
  EXPECT_NE(::mprotect(base, kBytes, PROT_READ | PROT_WRITE), 0);
}

TEST(PeerMemory, RefusesWhatIsNoMemfd) {
  const auto ordinary_file = [] {
    std::FILE* file = std::tmpfile();
    Fd fd = duplicate(::fileno(file));
    std::fclose(file);
    EXPECT_EQ(::ftruncate(fd.get(), kBytes), 0);
    return fd;
  };
  expect_refused(ordinary_file(), Use::kPool, kBytes, "SharedPool");
  expect_refused(ordinary_file(), Use::kRing, kBytes, "not a memfd");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd writer(ends[1]);
  expect_refused(Fd(ends[0]), Use::kPool, 1, "not a memfd");
}

TEST(PeerMemory, RefusesAClosedDescriptor) {
  EXPECT_FALSE(PeerMemory::map(Fd(), Use::kPool, 1).has_value());
}

TEST(PeerMemory, NamesTheSealThatIsMissing) {
  expect_refused(make_memfd(kBytes, 0), Use::kRing, kBytes, "F_SEAL_SHRINK");
  expect_refused(make_memfd(kBytes, 0), Use::kPool, kBytes, "SIGBUS");
  expect_refused(make_memfd(kBytes, F_SEAL_FUTURE_WRITE), Use::kPool, kBytes, "F_SEAL_SHRINK");
  expect_refused(make_memfd(kBytes, F_SEAL_SHRINK | F_SEAL_GROW), Use::kPool, kBytes,
                 "F_SEAL_FUTURE_WRITE");
}

TEST(PeerMemory, AcceptsEachSufficientSetOfSeals) {
  const std::pair<Use, int> sets[] = {
      {Use::kRing, F_SEAL_SHRINK},
      {Use::kRing, F_SEAL_SHRINK | F_SEAL_GROW},
      {Use::kPool, kPoolSeals},
      {Use::kPool, kPoolSeals | F_SEAL_GROW | F_SEAL_SEAL},
      {Use::kPool, F_SEAL_SHRINK | F_SEAL_WRITE},
  };
  for (const auto& [use, seals] : sets) {
    const auto memory = PeerMemory::map(make_memfd(kBytes, seals), use, kBytes);
    EXPECT_TRUE(memory.has_value()) << seals;
  }
}

TEST(PeerMemory, RefusesWhatIsTooSmall) {
  expect_refused(make_memfd(kBytes, kPoolSeals), Use::kPool, kBytes + 1, "16384 bytes");
  expect_refused(make_memfd(0, kPoolSeals), Use::kPool, 0, "0 bytes");
}

// The sizes need no memory, nor does the host need to have huge pages: that is the point.
TEST(PeerMemory, RefusesHugePagesThatTheHostMayLack) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 50;
  Fd ring = make_memfd(2U << 20, F_SEAL_SHRINK, MFD_HUGETLB);
  Fd pool = make_memfd(kHuge, kPoolSeals, MFD_HUGETLB);
  if (!ring.is_open() || !pool.is_open()) GTEST_SKIP() << "no huge pages in this kernel";
  expect_refused(std::move(ring), Use::kRing, 1, "normal pages");
  EXPECT_FALSE(PeerMemory::map(std::move(pool), Use::kPool, 1).has_value());
}

}  // namespace
}  // namespace kvferry::data_plane::shm
