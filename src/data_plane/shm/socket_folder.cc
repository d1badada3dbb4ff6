#include "data_plane/shm/socket_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/crypto.h"
#include "data_plane/shm/unix_socket.h"

namespace kvferry::data_plane::shm {
namespace {

constexpr std::string_view kPrefix = "kvferry-";
// Short, since the path of a socket has 107 bytes at most.
constexpr std::size_t kFolderDigits = 8;
// Each failure means that somebody was faster by chance.
constexpr int kMostTries = 16;

tl::unexpected<Failure> system_failure(const char* call, const std::string& path) {
  return fail(FailureCode::kOperatingSystem, errno_text(call) + " (unix socket, " + path + ")");
}

Fd open_folder_at(const Fd& parent, const char* name) {
  return Fd(::openat(parent.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool lock(const Fd& folder) { return ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0; }

void for_each_entry(const Fd& folder, const std::function<void(const char*)>& visit) {
  const int listed = ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (listed < 0) return;
  DIR* const entries = ::fdopendir(listed);
  if (entries == nullptr) {
    ::close(listed);
    return;
  }
  while (const dirent* entry = ::readdir(entries)) visit(entry->d_name);
  ::closedir(entries);  // and listed
}

void remove_sockets(const Fd& folder) {
  for_each_entry(folder, [&](const char* name) {
    struct stat entry {};
    const bool is_socket =
        ::fstatat(folder.get(), name, &entry, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(entry.st_mode);
    if (is_socket && is_own_name(name, kSocketDigits, kSocketEnd))
      ::unlinkat(folder.get(), name, 0);
  });
}

// A folder without a holder is locked here before it is looked into. Its maker may be about to lock
// it: that one sees that it was late and makes another.
void remove_abandoned(const Fd& parent) {
  for_each_entry(parent, [&](const char* name) {
    if (!is_own_name(name, kFolderDigits, "")) return;
    const Fd folder = open_folder_at(parent, name);
    struct stat entry {};
    if (!folder.is_open() || ::fstat(folder.get(), &entry) != 0) return;
    if (entry.st_uid != ::geteuid() || !lock(folder)) return;
    remove_sockets(folder);
    ::unlinkat(parent.get(), name, AT_REMOVEDIR);
  });
}

bool is_still_at(const Fd& folder, const Fd& parent, const char* name) {
  struct stat held {};
  struct stat named {};
  return ::fstat(folder.get(), &held) == 0 &&
         ::fstatat(parent.get(), name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

}  // namespace

bool is_own_name(std::string_view name, std::size_t digits, std::string_view end) {
  if (name.size() != kPrefix.size() + digits + end.size()) return false;
  if (!name.starts_with(kPrefix) || !name.ends_with(end)) return false;
  const std::string_view middle = name.substr(kPrefix.size(), digits);
  return middle.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string own_name(std::size_t digits, std::string_view end) {
  std::vector<std::uint8_t> drawn(digits / 2);
  fill_random(drawn);
  return std::string(kPrefix) + to_hex(drawn) + std::string(end);
}

Result<Fd> open_own_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("mkdir", folder);
  }
  Fd opened(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.is_open()) return system_failure("open", folder);
  struct stat entry {};
  if (::fstat(opened.get(), &entry) != 0) return system_failure("fstat", folder);
  if (entry.st_uid != ::geteuid()) {
    return fail(FailureCode::kInvalidArgument,
                "unix socket: folder " + folder + " belongs to user " +
                    std::to_string(entry.st_uid) + ", not to this process's user " +
                    std::to_string(::geteuid()));
  }
  if ((entry.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fail(FailureCode::kInvalidArgument,
                "unix socket: folder " + folder +
                    " may be written to by others, who could replace the socket; chmod go-w it");
  }
  return opened;
}

Result<SocketFolder> SocketFolder::make(const std::string& parent_path) {
  const auto parent = open_own_folder(parent_path);
  if (!parent) return tl::unexpected(parent.error());
  remove_abandoned(*parent);
  for (int tries = 0; tries < kMostTries; ++tries) {
    const std::string name = own_name(kFolderDigits, "");
    const std::string path = fmt::format("{}/{}", parent_path, name);
    if (::mkdirat(parent->get(), name.c_str(), 0700) != 0) {
      if (errno == EEXIST) continue;
      return system_failure("mkdir", path);
    }
    Fd held = open_folder_at(*parent, name.c_str());
    if (!held.is_open()) {
      if (errno == ENOENT) continue;
      return system_failure("open", path);
    }
    // Where folders can't be locked nobody can, and an abandoned one stays.
    if (!lock(held) && errno == EWOULDBLOCK) continue;
    if (is_still_at(held, *parent, name.c_str())) return SocketFolder(std::move(held), path);
  }
  return fail(FailureCode::kOperatingSystem,
              "unix socket: no folder could be made in " + parent_path + " in " +
                  std::to_string(kMostTries) +
                  " tries, each was removed at once; what cleans that folder?");
}

SocketFolder::SocketFolder(SocketFolder&& other) noexcept
    : held_(std::move(other.held_)), path_(std::exchange(other.path_, {})) {}

SocketFolder& SocketFolder::operator=(SocketFolder&& other) noexcept {
  std::swap(held_, other.held_);
  std::swap(path_, other.path_);
  return *this;
}

SocketFolder::~SocketFolder() {
  // Still locked, so that nobody else removes it meanwhile.
  if (!path_.empty()) ::rmdir(path_.c_str());
}

}  // namespace kvferry::data_plane::shm
