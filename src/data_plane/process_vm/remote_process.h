// Another process of this host into whose memory this one writes. It is named by its number and the
// time of its start, and held by a pidfd, so that a process that got the number later is never
// taken for it.
//
// What this can't see: a process that replaced its program (execve) keeps its number and its start.
//
// Threads: write() is called by one thread; the other methods by any.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data_plane/fd.h"
#include "kvferry/status.h"

namespace kvferry::data_plane {

struct ProcessName {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // since boot, as in /proc/PID/stat
  friend bool operator==(const ProcessName&, const ProcessName&) = default;
};

// Fails with kPeerLost when there is no such process.
Result<ProcessName> name_process(pid_t pid);

class RemoteProcess {
 public:
  // Fails with kPeerLost when the process has ended or its number names another one by now, and
  // with kInvalidArgument for this process itself, into which no peer may have us write.
  static Result<RemoteProcess> open(const ProcessName& name);

  // Whether it has ended; true for ever once it is.
  bool has_ended() const;
  // Whether one byte at each address can be read, and so whether the host lets us reach it at all.
  Status probe(std::span<const std::uint64_t> addresses) const;

  // One copy: from local memory to an address of the process.
  struct Piece {
    const std::byte* from = nullptr;
    std::uint64_t to = 0;
    std::uint64_t bytes = 0;
  };
  struct Written {
    // Of each piece, so many bytes are there; all of them only where it equals the piece's bytes.
    std::vector<std::uint64_t> bytes;
    // None of the bytes after the failure are there, and the process can't be written to any more.
    bool is_lost = false;
    int error = 0;  // errno of the first piece that was not written whole; 0: none
  };
  // Returns when the last byte has been copied. It waits for the kernel only, never for what the
  // process does.
  Written write(std::span<const Piece> pieces) const;

  const ProcessName& name() const { return name_; }

 private:
  RemoteProcess(const ProcessName& name, Fd pidfd) : name_(name), pidfd_(std::move(pidfd)) {}

  ProcessName name_;
  Fd pidfd_;
};

}  // namespace kvferry::data_plane
