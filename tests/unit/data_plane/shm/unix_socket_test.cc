#include "data_plane/shm/unix_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "data_plane/shm/attach.h"
#include "memory_tools.h"
#include "temp_folder.h"

namespace kvferry::data_plane::shm {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Bytes = std::vector<std::uint8_t>;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

struct Pair {
  Fd left;
  Fd right;
};
Pair connected_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

TEST(ListenUnix, MakesAPrivateSocketAndTakesItAway) {
  const TempFolder temp;
  const std::string folder = temp.path() + "/new";
  std::string path;
  {
    auto listener = listen_unix(folder);
    ASSERT_TRUE(listener) << listener.error().what;
    path = listener->path();
    EXPECT_THAT(path, MatchesRegex(folder + "/kvferry-[0-9a-f]{16}\\.sock"));
    struct stat entry {};
    ASSERT_EQ(::stat(folder.c_str(), &entry), 0);
    EXPECT_EQ(entry.st_mode & 0777, 0700U);
    ASSERT_EQ(::stat(path.c_str(), &entry), 0);
    EXPECT_EQ(entry.st_mode & 0777, 0600U);
    const UnixListener moved = std::move(*listener);
    EXPECT_EQ(moved.path(), path);
    EXPECT_TRUE(connect_unix(path).has_value());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  const auto late = connect_unix(path);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, FailureCode::kPeerUnreachable);
}

TEST(ListenUnix, ManyMayShareAFolder) {
  const TempFolder temp;
  const auto first = listen_unix(temp.path());
  const auto second = listen_unix(temp.path());
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->path(), second->path());
}

TEST(ListenUnix, RefusesAFolderThatOthersMayWriteTo) {
  const TempFolder temp;
  for (const mode_t mode : {0720U, 0702U, 0777U}) {
    ASSERT_EQ(::chmod(temp.path().c_str(), mode), 0);
    const auto listener = listen_unix(temp.path());
    ASSERT_FALSE(listener);
    EXPECT_THAT(listener.error().what, HasSubstr("written to by others"));
  }
  ASSERT_EQ(::chmod(temp.path().c_str(), 0755), 0);
  EXPECT_TRUE(listen_unix(temp.path()).has_value());
}

TEST(ListenUnix, RefusesAFolderOfAnotherUser) {
  const TempFolder temp;
  std::string folder = "/";  // root's, for a test that is not run by root
  if (::geteuid() == 0) {
    folder = temp.path();
    if (::chown(folder.c_str(), 12'345, 12'345) != 0) GTEST_SKIP() << "may not change owners";
  }
  const auto listener = listen_unix(folder);
  ASSERT_FALSE(listener);
  EXPECT_THAT(listener.error().what, HasSubstr("belongs to user"));
}

TEST(ListenUnix, FollowsNoLinkAndMakesNoParents) {
  const TempFolder temp;
  std::filesystem::create_directory(temp.path() + "/real");
  std::filesystem::create_directory_symlink(temp.path() + "/real", temp.path() + "/link");
  EXPECT_FALSE(listen_unix(temp.path() + "/link").has_value());
  EXPECT_FALSE(listen_unix(temp.path() + "/a/b").has_value());
}

TEST(UnixPath, SaysTheLimitOfItsLength) {
  const TempFolder temp;
  const std::string folder = temp.path() + "/" + std::string(80, 'x');
  const auto listener = listen_unix(folder);
  ASSERT_FALSE(listener);
  EXPECT_THAT(listener.error().what, HasSubstr("1 to 107; choose a shorter folder"));
  EXPECT_FALSE(connect_unix(folder + "/" + std::string(80, 'y')).has_value());
  EXPECT_FALSE(connect_unix("").has_value());
}

TEST(UnixListener, AcceptsWhatIsThereAndKnowsWhoItIs) {
  const TempFolder temp;
  auto listener = listen_unix(temp.path());
  ASSERT_TRUE(listener);
  auto nobody = listener->accept();
  ASSERT_TRUE(nobody);
  EXPECT_FALSE(nobody->has_value());
  const auto client = connect_unix(listener->path());
  ASSERT_TRUE(client) << client.error().what;
  auto accepted = listener->accept();
  ASSERT_TRUE(accepted && *accepted);
  for (const int fd : {client->get(), (*accepted)->get()}) {
    const auto peer = peer_credentials(fd);
    ASSERT_TRUE(peer);
    EXPECT_EQ(peer->pid, ::getpid());
    EXPECT_EQ(peer->uid, ::geteuid());
    EXPECT_EQ(peer->gid, ::getegid());
  }
  EXPECT_FALSE(peer_credentials(-1).has_value());
}

TEST(Messages, CarryBytesAndDescriptors) {
  const Pair pair = connected_pair();
  Bytes buffer(64);
  const auto nothing = receive_message(pair.right.get(), buffer, 4);
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(nothing->has_value());

  const Fd memory = make_memfd(4'096, F_SEAL_SHRINK);
  const Fd bell(::eventfd(0, EFD_CLOEXEC));
  const int fds[] = {memory.get(), bell.get()};
  ASSERT_TRUE(send_message(pair.left.get(), Bytes{1, 2, 3}, fds).value());
  ASSERT_TRUE(send_message(pair.left.get(), Bytes{4}).value());
  auto first = receive_message(pair.right.get(), buffer, 2);
  ASSERT_TRUE(first && *first) << first.error().what;
  EXPECT_EQ((*first)->size, 3U);
  EXPECT_FALSE((*first)->truncated);
  ASSERT_EQ((*first)->fds.size(), 2U);
  EXPECT_TRUE(PeerMemory::map(std::move((*first)->fds[0]), PeerMemory::Use::kRing, 4'096));
  EXPECT_EQ(::eventfd_write((*first)->fds[1].get(), 5), 0);
  eventfd_t rung = 0;
  EXPECT_EQ(::eventfd_read(bell.get(), &rung), 0);
  EXPECT_EQ(rung, 5U);
  EXPECT_NE(::fcntl((*first)->fds[1].get(), F_GETFD) & FD_CLOEXEC, 0);
  auto second = receive_message(pair.right.get(), buffer, 0);
  ASSERT_TRUE(second && *second);
  EXPECT_EQ((*second)->size, 1U);
  EXPECT_TRUE((*second)->fds.empty());
}

TEST(Messages, TellTheEndAndATruncation) {
  Pair pair = connected_pair();
  Bytes buffer(4);
  ASSERT_TRUE(send_message(pair.left.get(), Bytes(5, 1)).value());
  auto cut = receive_message(pair.right.get(), buffer, 0);
  ASSERT_TRUE(cut && *cut);
  EXPECT_TRUE((*cut)->truncated);
  EXPECT_EQ((*cut)->size, 4U);
  pair.left.reset();
  auto end = receive_message(pair.right.get(), buffer, 0);
  ASSERT_TRUE(end && *end);
  EXPECT_EQ((*end)->size, 0U);
  const auto sent = send_message(pair.right.get(), Bytes{1});
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, FailureCode::kPeerLost);
}

TEST(Messages, AFullSocketIsNoFailure) {
  const Pair pair = connected_pair();
  const Bytes message(16'384, 1);
  int sent = 0;
  while (send_message(pair.left.get(), message).value()) ASSERT_LT(++sent, 10'000);
  EXPECT_GT(sent, 0);
}

TEST(Messages, RefuseMoreDescriptorsThanWereAwaitedAndCloseThem) {
  const Pair pair = connected_pair();
  const Fd bell(::eventfd(0, EFD_CLOEXEC));
  Bytes buffer(64);
  // Odd numbers too, where the rounded-up control buffer would have room for one more.
  for (std::size_t awaited = 0; awaited < 6; ++awaited) {
    const std::vector<int> fds(awaited + 1, bell.get());
    ASSERT_TRUE(send_message(pair.left.get(), Bytes{1}, fds).value());
    const std::size_t before = open_descriptors();
    const auto received = receive_message(pair.right.get(), buffer, awaited);
    ASSERT_FALSE(received) << awaited;
    EXPECT_EQ(received.error().code, FailureCode::kMalformed);
    EXPECT_EQ(open_descriptors(), before);
    // The connection itself is as it was.
    ASSERT_TRUE(send_message(pair.left.get(), Bytes{2}).value());
    EXPECT_TRUE(receive_message(pair.right.get(), buffer, awaited).value().has_value());
  }
}

TEST(Messages, OwnLimitOfDescriptorsIsNotThePeersFault) {
  const Pair pair = connected_pair();
  const Fd bell(::eventfd(0, EFD_CLOEXEC));
  const std::vector<int> fds(8, bell.get());
  ASSERT_TRUE(send_message(pair.left.get(), Bytes{1}, fds).value());
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::size_t before = open_descriptors();
  const int lowest_free = Fd(::dup(bell.get())).get();
  const rlimit tight{static_cast<rlim_t>(lowest_free) + 3, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  Bytes buffer(64);
  const auto received = receive_message(pair.right.get(), buffer, 8);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, FailureCode::kOperatingSystem);
  EXPECT_THAT(received.error().what, HasSubstr("RLIMIT_NOFILE"));
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Messages, RefuseToSendWhatCannotBeSent) {
  const Pair pair = connected_pair();
  EXPECT_FALSE(send_message(pair.left.get(), {}).has_value());
  const std::vector<int> many(kMaxMessageFds + 1, pair.left.get());
  EXPECT_FALSE(send_message(pair.left.get(), Bytes{1}, many).has_value());
}

// The largest handshake passes a socket with the system's default buffers.
TEST(Messages, CarryTheLongestAttach) {
  const TempFolder temp;
  auto listener = listen_unix(temp.path());
  ASSERT_TRUE(listener);
  const auto client = connect_unix(listener->path());
  ASSERT_TRUE(client);
  const auto server = listener->accept();
  ASSERT_TRUE(server && *server);
  Attach attach;
  attach.ring_entries = 64;
  attach.pool_count = kMaxAttachPools;
  attach.regions.assign(kMaxAttachRegions, AttachRegion{0, 1, 2});
  const Fd bell(::eventfd(0, EFD_CLOEXEC));
  const std::vector<int> fds(kAttachFixedFds + kMaxAttachPools, bell.get());
  const auto sent = send_message(client->get(), encode_attach(attach), fds);
  ASSERT_TRUE(sent && *sent);
  Bytes buffer(kMaxAttachBytes);
  auto received = receive_message((*server)->get(), buffer, fds.size());
  ASSERT_TRUE(received && *received) << received.error().what;
  EXPECT_EQ((*received)->size, kMaxAttachBytes);
  EXPECT_EQ((*received)->fds.size(), fds.size());
  EXPECT_EQ(parse_attach(buffer).value(), attach);
}

TEST(Pidfd, TellsTheEndOfAProcess) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Fd hold(ends[1]);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends[1]);
    char byte = 0;
    ::_exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  const Fd reader(ends[0]);
  const auto pidfd = open_pidfd(child);
  ASSERT_TRUE(pidfd) << pidfd.error().what;
  pollfd wanted{pidfd->get(), POLLIN, 0};
  EXPECT_EQ(::poll(&wanted, 1, 0), 0);
  hold.reset();
  EXPECT_EQ(::poll(&wanted, 1, 60'000), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto gone = open_pidfd(child);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, FailureCode::kPeerLost);
}

TEST(Pidfd, SaysThatAnInvisibleProcessIsInAnotherNamespace) {
  const auto pidfd = open_pidfd(0);
  ASSERT_FALSE(pidfd);
  EXPECT_THAT(pidfd.error().what, HasSubstr("another pid namespace"));
}

}  // namespace
}  // namespace kvferry::data_plane::shm
