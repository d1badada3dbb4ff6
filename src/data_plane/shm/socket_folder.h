// Where a target's socket lies: in a folder of its own within a folder that its user shares with
// nobody. A process that is killed leaves its own folder behind; the next one removes it.
#pragma once

#include <string>
#include <string_view>

#include "data_plane/fd.h"
#include "kvferry/status.h"

namespace kvferry::data_plane::shm {

// Opens (O_PATH) a folder of this user's that nobody else may write to. A missing one is made, with
// mode 0700 (its parent must be there). One of another user, or that others may write to, is
// refused: they could put their own socket in the place of ours. A link is not followed: whoever
// made it can turn it elsewhere.
Result<Fd> open_own_folder(const std::string& folder);

// A new folder, held as long as this object lives: by a lock on the folder itself, which the kernel
// lets go when the process ends, however it ends (and its forked children, which share it).
//
// Threads: one at a time. Any number of processes may make and remove folders in one parent.
class SocketFolder {
 public:
  // Within parent, which open_own_folder() must accept. First removes those whose holder is gone,
  // with the sockets in them; what else lies there stays, and the folder with it.
  static Result<SocketFolder> make(const std::string& parent);

  SocketFolder(SocketFolder&& other) noexcept;
  SocketFolder& operator=(SocketFolder&& other) noexcept;
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  ~SocketFolder();  // removes it, unless something is still in it

  const std::string& path() const { return path_; }

 private:
  SocketFolder(Fd held, std::string path) : held_(std::move(held)), path_(std::move(path)) {}

  Fd held_;
  std::string path_;  // empty: moved from
};

// "kvferry-" and as many hexadecimal digits, and the end: whether a name may be one of ours.
bool is_own_name(std::string_view name, std::size_t digits, std::string_view end);
// A new such name.
std::string own_name(std::size_t digits, std::string_view end);

}  // namespace kvferry::data_plane::shm
