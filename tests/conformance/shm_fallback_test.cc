// Where shared memory can't be had the pair goes over tcp and says why. The target is a process of
// its own, so that it can live in another namespace or under a filter.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>

#include "data_plane/factory.h"
#include "data_plane/lanes/frame.h"
#include "rig.h"

namespace kvferry::data_plane {
namespace {

constexpr SessionEpoch kEpoch{42};
constexpr int kSkip = 77;

SessionLink link_to(Role local_role, std::vector<std::uint8_t> peer_blob) {
  SessionLink link;
  link.epoch = kEpoch;
  link.local_role = local_role;
  link.secret.fill(9);
  link.peer_blob = std::move(peer_blob);
  link.peer_item_bytes = {kSimple.item_bytes};
  link.peer_item_counts = {kSimple.items};
  return link;
}

// A folder for the sockets, gone with the test.
class PrivateFolder {
 public:
  PrivateFolder() : path_(testing::TempDir() + "kvferry-shm-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~PrivateFolder() { std::filesystem::remove_all(path_); }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TransportConfig config_of(Role role, const std::string& folder) {
  TransportConfig config;
  config.role = role;
  config.shm_folder = folder;
  return config;
}

// Runs in the target's process before it starts; false when the machine does not let it.
using Prepare = std::function<bool()>;

void write_all(int fd, std::span<const std::uint8_t> bytes) {
  if (::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) ::_exit(2);
}

// The target's process: tells its blob, takes one page, says whether the bytes are right.
[[noreturn]] void be_target(const std::string& folder, int to_parent, int from_parent) {
  std::atomic<std::uint64_t> clock{0};
  RecordingSink sink(clock);
  Pool pool(kSimple);
  Pool expected(kSimple);
  expected.fill_pattern(1);
  auto made = make_transport("auto", config_of(Role::kDecode, folder), sink);
  if (!made || !(*made)->register_regions(pool.regions())) ::_exit(2);
  Transport& target = **made;
  if (!target.open_session(link_to(Role::kDecode, {}))) ::_exit(2);
  std::vector<SlotGrant> slots;
  slots.push_back({kEpoch, GrantSlot(0), Generation(1),
                   layout::GrantExtent({{RegionId(0), 0, kSimple.item_bytes, 1, 0}}, {PageIndex(3)},
                                       {}, -1, {}, {})});
  target.open_grant(GrantId(1), std::move(slots));
  const std::vector<std::uint8_t> blob = target.local_blob();
  const auto size = static_cast<std::uint8_t>(blob.size());
  write_all(to_parent, {&size, 1});
  write_all(to_parent, blob);
  char done = 0;
  if (::read(from_parent, &done, 1) != 1) ::_exit(2);
  target.fence(GrantId(1));
  const bool fenced = sink.wait_fence(1);
  const bool same =
      std::equal(pool.item(0, 3).begin(), pool.item(0, 3).end(), expected.item(0, 3).begin());
  ::_exit(fenced && same ? 0 : 1);
}

class TargetProcess {
 public:
  TargetProcess(const std::string& folder, const Prepare& prepare) {
    int up[2];
    int down[2];
    if (::pipe(up) != 0 || ::pipe(down) != 0) std::abort();
    child_ = ::fork();
    if (child_ == 0) {
      if (!prepare()) ::_exit(kSkip);
      // A new pid namespace begins with the next child; the process in between only passes on how
      // that one ended.
      const pid_t inner = ::fork();
      if (inner == 0) be_target(folder, up[1], down[0]);
      ::close(up[1]);
      int status = 0;
      ::waitpid(inner, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
    }
    ::close(up[1]);
    ::close(down[0]);
    from_child_ = Fd(up[0]);
    to_child_ = Fd(down[1]);
  }
  // Nothing when the child could not be prepared.
  std::optional<std::vector<std::uint8_t>> blob() {
    std::uint8_t size = 0;
    if (::read(from_child_.get(), &size, 1) != 1) return std::nullopt;
    std::vector<std::uint8_t> bytes(size);
    if (::read(from_child_.get(), bytes.data(), size) != size) return std::nullopt;
    return bytes;
  }
  int finish() {
    [[maybe_unused]] const auto told = ::write(to_child_.get(), "q", 1);
    to_child_.reset();
    int status = 0;
    ::waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t child_ = -1;
  Fd from_child_;
  Fd to_child_;
};

struct Outcome {
  bool skipped = false;
  PathReport path;
};

// One page from here to the other process; expects that it gets there whatever the path.
Outcome move_a_page(const Prepare& prepare, Pool::Backing backing,
                    const std::function<void(TargetBlob&)>& change = {}) {
  const PrivateFolder folder;
  TargetProcess process(folder.path(), prepare);
  auto bytes = process.blob();
  if (!bytes) {
    EXPECT_EQ(process.finish(), kSkip);
    return {true, {}};
  }
  TargetBlob blob = parse_blob(*bytes).value();
  if (change) change(blob);

  std::atomic<std::uint64_t> clock{0};
  RecordingSink sink(clock);
  Pool pool(kSimple, backing);
  pool.fill_pattern(1);
  auto source = make_transport("auto", config_of(Role::kPrefill, folder.path()), sink).value();
  EXPECT_TRUE(source->register_regions(pool.regions()));
  EXPECT_TRUE(source->open_session(link_to(Role::kPrefill, encode_blob(blob))));
  layout::Write write;
  write.ticket = TicketId(1);
  write.generation = Generation(1);
  write.source_offset = 3 * kSimple.item_bytes;
  write.target_item = 3;
  write.length = kSimple.item_bytes;
  source->post(kEpoch, std::span(&write, 1));
  EXPECT_TRUE(sink.wait_outcome(1));
  EXPECT_EQ(sink.outcome(1), layout::WriteOutcome::kLanded);
  const std::vector<PathReport> paths = source->paths();
  EXPECT_EQ(paths.size(), 1U);
  EXPECT_TRUE(sink.snapshot().lane_failures.empty()) << "a fallback is no failure";
  EXPECT_EQ(process.finish(), 0) << "the page differs at the target";
  source->stop();
  return {false, paths.empty() ? PathReport() : paths.front()};
}

bool nothing() { return true; }

bool new_pid_namespace() { return ::unshare(CLONE_NEWPID) == 0; }

// The folder of the sockets is another one for the target, as in a container of its own.
bool private_tmp() {
  if (::unshare(CLONE_NEWNS) != 0) return false;
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", testing::TempDir().c_str(), "tmpfs", 0, nullptr) == 0;
}

bool forbid_process_vm_readv() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

void expect_tcp(const Outcome& outcome, const std::string& reason) {
  if (outcome.skipped) GTEST_SKIP() << "this machine does not allow the set-up";
  EXPECT_EQ(outcome.path.path, "tcp");
  EXPECT_NE(outcome.path.why.find("shm: "), std::string::npos) << outcome.path.why;
  EXPECT_NE(outcome.path.why.find(reason), std::string::npos) << outcome.path.why;
}

void expect_shm(const Outcome& outcome) {
  if (outcome.skipped) GTEST_SKIP() << "this machine does not allow the set-up";
  EXPECT_EQ(outcome.path.path, "shm");
  EXPECT_EQ(outcome.path.why, "");
}

TEST(ShmFallback, IsNotNeededBetweenTwoOrdinaryProcesses) {
  expect_shm(move_a_page(nothing, Pool::Backing::kShared));
  expect_shm(move_a_page(nothing, Pool::Backing::kPrivate));
}

TEST(ShmFallback, APoolIsReadAcrossPidNamespaces) {
  expect_shm(move_a_page(new_pid_namespace, Pool::Backing::kShared));
}

TEST(ShmFallback, OtherMemoryIsNotReadAcrossPidNamespaces) {
  expect_tcp(move_a_page(new_pid_namespace, Pool::Backing::kPrivate), "another pid namespace");
}

TEST(ShmFallback, TheSocketsFolderIsNotShared) {
  expect_tcp(move_a_page(private_tmp, Pool::Backing::kShared), "shm_folder must be shared");
}

TEST(ShmFallback, ReadingAcrossProcessesIsForbidden) {
  expect_tcp(move_a_page(forbid_process_vm_readv, Pool::Backing::kPrivate), "process_vm_readv");
  expect_shm(move_a_page(forbid_process_vm_readv, Pool::Backing::kShared));
}

TEST(ShmFallback, ThePeerIsOnAnotherHost) {
  expect_tcp(
      move_a_page(nothing, Pool::Backing::kShared, [](TargetBlob& blob) { blob.boot[0] ^= 1; }),
      "another host");
}

// A pool that its owner could shrink would kill the reader with SIGBUS.
TEST(ShmFallback, AnUnsealedPoolIsRefused) {
  const Fd memory(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_TRUE(memory.is_open());
  ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(kSimple.item_bytes)), 0);
  std::vector<std::byte> bytes(kSimple.item_bytes);
  Region region;
  region.base = bytes.data();
  region.item_bytes = kSimple.item_bytes;
  region.item_count = 1;
  region.memory_fd = memory.get();

  std::atomic<std::uint64_t> clock{0};
  RecordingSink source_sink(clock);
  RecordingSink target_sink(clock);
  const PrivateFolder folder;
  auto target =
      make_transport("auto", config_of(Role::kDecode, folder.path()), target_sink).value();
  auto source =
      make_transport("auto", config_of(Role::kPrefill, folder.path()), source_sink).value();
  Pool pool(kSimple);
  ASSERT_TRUE(target->register_regions(pool.regions()));
  ASSERT_TRUE(source->register_regions(std::span(&region, 1)));
  ASSERT_TRUE(target->open_session(link_to(Role::kDecode, {})));
  ASSERT_TRUE(source->open_session(link_to(Role::kPrefill, target->local_blob())));
  layout::Write write;
  write.ticket = TicketId(1);
  write.generation = Generation(1);
  write.length = 8;
  source->post(kEpoch, std::span(&write, 1));
  ASSERT_TRUE(source_sink.wait_outcome(1));
  const PathReport path = source->paths().at(0);
  EXPECT_EQ(path.path, "tcp");
  EXPECT_NE(path.why.find("F_SEAL_SHRINK"), std::string::npos) << path.why;
  source->stop();
  target->stop();
}

}  // namespace
}  // namespace kvferry::data_plane
