#include "data_plane/shm/socket_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "data_plane/shm/unix_socket.h"
#include "temp_folder.h"

namespace kvferry::data_plane::shm {
namespace {

using std::filesystem::exists;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// A process that listens in a socket folder of its own, and ends by a signal only.
class Holder {
 public:
  explicit Holder(const std::string& parent) {
    int told[2];
    if (::pipe(told) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) hold(parent, told[1]);
    ::close(told[1]);
    char name[256];
    const ssize_t length = ::read(told[0], name, sizeof name);
    ::close(told[0]);
    socket_.assign(name, length > 0 ? static_cast<std::size_t>(length) : 0);
  }
  ~Holder() { kill_now(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  std::string socket() const { return socket_; }
  std::string folder() const { return std::filesystem::path(socket_).parent_path(); }
  void kill_now() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] static void hold(const std::string& parent, int tell) {
    const auto folder = SocketFolder::make(parent);
    if (!folder) ::_exit(1);
    const auto listener = listen_unix(folder->path());
    if (!listener) ::_exit(1);
    const std::string& path = listener->path();
    if (::write(tell, path.data(), path.size()) < 0) ::_exit(1);
    for (;;) ::pause();
  }

  pid_t pid_ = -1;
  std::string socket_;
};

TEST(SocketFolder, IsPrivateAndGoesWithItsHolder) {
  const TempFolder temp;
  std::string path;
  {
    auto made = SocketFolder::make(temp.path() + "/new");
    ASSERT_TRUE(made) << made.error().what;
    path = made->path();
    EXPECT_THAT(path, MatchesRegex(temp.path() + "/new/kvferry-[0-9a-f]{8}"));
    struct stat entry {};
    ASSERT_EQ(::stat(path.c_str(), &entry), 0);
    EXPECT_EQ(entry.st_mode & 0777, 0700U);
    const SocketFolder moved = std::move(*made);
    EXPECT_EQ(moved.path(), path);
    EXPECT_TRUE(listen_unix(path).has_value());
  }
  EXPECT_FALSE(exists(path));
  EXPECT_TRUE(exists(temp.path() + "/new"));
}

TEST(SocketFolder, OfAKilledProcessIsRemovedByTheNextOneOnly) {
  const TempFolder temp;
  Holder killed(temp.path());
  const Holder alive(temp.path());
  ASSERT_TRUE(exists(killed.socket()));
  ASSERT_TRUE(exists(alive.socket()));
  killed.kill_now();
  EXPECT_TRUE(exists(killed.socket())) << "nobody has looked yet";
  const auto made = SocketFolder::make(temp.path());
  ASSERT_TRUE(made);
  EXPECT_FALSE(exists(killed.folder()));
  EXPECT_TRUE(connect_unix(alive.socket()).has_value()) << "its holder lives";
  EXPECT_TRUE(exists(made->path()));
}

TEST(SocketFolder, OneThatIsHeldInThisProcessStays) {
  const TempFolder temp;
  const auto first = SocketFolder::make(temp.path());
  const auto second = SocketFolder::make(temp.path());
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->path(), second->path());
  EXPECT_TRUE(exists(first->path()));
}

TEST(SocketFolder, WhatIsNotOursStays) {
  const TempFolder temp;
  const TempFolder elsewhere;
  const std::string linked = temp.path() + "/kvferry-00000001";
  ASSERT_EQ(::symlink(elsewhere.path().c_str(), linked.c_str()), 0);
  const auto behind_link = listen_unix(elsewhere.path());
  ASSERT_TRUE(behind_link);
  const std::string with_file = temp.path() + "/kvferry-00000002";
  const std::string other_name = temp.path() + "/kvferry-0000000x";
  const std::string longer = temp.path() + "/kvferry-000000010";
  for (const auto& folder : {with_file, other_name, longer}) {
    ASSERT_TRUE(std::filesystem::create_directory(folder));
  }
  std::ofstream(with_file + "/notes") << "mine";
  std::ofstream(temp.path() + "/kvferry-00000003") << "no folder";
  const std::string empty = temp.path() + "/kvferry-00000004";
  ASSERT_TRUE(std::filesystem::create_directory(empty));

  ASSERT_TRUE(SocketFolder::make(temp.path()));
  EXPECT_FALSE(exists(empty)) << "the control: this one is removed";
  EXPECT_TRUE(std::filesystem::is_symlink(linked));
  EXPECT_TRUE(exists(behind_link->path())) << "a link was followed";
  EXPECT_TRUE(exists(with_file + "/notes"));
  EXPECT_TRUE(exists(other_name));
  EXPECT_TRUE(exists(longer));
  EXPECT_TRUE(exists(temp.path() + "/kvferry-00000003"));
}

TEST(SocketFolder, AnotherUsersStays) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a folder of another user";
  const TempFolder temp;
  const std::string theirs = temp.path() + "/kvferry-00000001";
  ASSERT_TRUE(std::filesystem::create_directory(theirs));
  ASSERT_EQ(::chown(theirs.c_str(), 65'534, 65'534), 0);
  ASSERT_TRUE(SocketFolder::make(temp.path()));
  EXPECT_TRUE(exists(theirs));
  ASSERT_EQ(::chown(theirs.c_str(), 0, 0), 0);
  ASSERT_TRUE(SocketFolder::make(temp.path()));
  EXPECT_FALSE(exists(theirs)) << "the control: once it is this user's it goes";
}

TEST(SocketFolder, ItsParentMustBeThisUsersAlone) {
  const TempFolder temp;
  ASSERT_EQ(::chmod(temp.path().c_str(), 0777), 0);
  auto refused = SocketFolder::make(temp.path());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what, HasSubstr("chmod go-w"));
  ASSERT_EQ(::chmod(temp.path().c_str(), 0700), 0);
  const std::string link = temp.path() + "/link";
  ASSERT_EQ(::symlink(temp.path().c_str(), link.c_str()), 0);
  refused = SocketFolder::make(link);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what, HasSubstr(link));
  refused = SocketFolder::make(temp.path() + "/no/such");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what, HasSubstr("mkdir"));
}

// Makers and cleaners race; each gets a folder, and at the end none is left.
TEST(SocketFolder, ManyProcessesAtOnceGetTheirOwn) {
  const TempFolder temp;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (int round = 0; round < 200; ++round) {
        const auto made = SocketFolder::make(temp.path());
        if (!made || !listen_unix(made->path())) ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(temp.path()));
}

}  // namespace
}  // namespace kvferry::data_plane::shm
