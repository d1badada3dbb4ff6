#include "data_plane/process_vm/remote_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace kvferry::data_plane {
namespace {

constexpr std::size_t kMaxPieces = 512;  // of one call; the kernel takes 1,024

tl::unexpected<Failure> lost(std::string what) {
  return fail(FailureCode::kPeerLost, std::move(what), FailureWhere::kPeer);
}

iovec at(std::uint64_t address, std::uint64_t bytes) {
  return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes};
}

// What stands in /proc for a program's name may hold spaces and brackets, so fields are counted
// from the last one.
std::optional<std::uint64_t> parse_start(const std::string& stat) {
  constexpr int kStartAfterName = 20;  // field 22 of all, the name is field 2
  const std::size_t end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(end_of_name + 1));
  std::string field;
  for (int i = 0; i < kStartAfterName; ++i) {
    if (!(fields >> field)) return std::nullopt;
  }
  std::uint64_t ticks = 0;
  std::istringstream number(field);
  return number >> ticks ? std::optional(ticks) : std::nullopt;
}

}  // namespace

Result<ProcessName> name_process(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string stat;
  std::getline(file, stat);
  const std::optional<std::uint64_t> start = parse_start(stat);
  if (pid <= 0 || !start) return lost(fmt::format("this host has no process {}", pid));
  return ProcessName{pid, *start};
}

Result<RemoteProcess> RemoteProcess::open(const ProcessName& name) {
  if (name.pid == ::getpid()) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("process {} is this one: a peer is another process", name.pid));
  }
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, name.pid, 0)));
  if (!pidfd.is_open()) {
    return lost(fmt::format("process {}: {}", name.pid, errno_text("pidfd_open")));
  }
  // In this order: what the descriptor holds can't change any more when the start is looked at.
  const Result<ProcessName> found = name_process(name.pid);
  if (!found) return tl::unexpected(found.error());
  if (*found != name) {
    return lost(
        fmt::format("process {} started at tick {}, the peer's at {}: the number names "
                    "another process by now",
                    name.pid, found->start_ticks, name.start_ticks));
  }
  RemoteProcess process(name, std::move(pidfd));
  if (process.has_ended()) return lost(fmt::format("process {} has ended", name.pid));
  return process;
}

bool RemoteProcess::has_ended() const {
  pollfd entry{pidfd_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) != 0;
}

Status RemoteProcess::probe(std::span<const std::uint64_t> addresses) const {
  for (std::size_t i = 0; i < addresses.size(); i += kMaxPieces) {
    const auto part = addresses.subspan(i, std::min(kMaxPieces, addresses.size() - i));
    std::array<std::byte, kMaxPieces> bytes{};
    std::vector<iovec> remote;
    for (const std::uint64_t address : part) remote.push_back(at(address, 1));
    const iovec local{bytes.data(), part.size()};
    const ssize_t read = ::process_vm_readv(name_.pid, &local, 1, remote.data(), remote.size(), 0);
    if (read == static_cast<ssize_t>(part.size())) continue;
    if (read < 0 && errno == EPERM) {
      return fail(FailureCode::kOperatingSystem,
                  fmt::format("process {} may not be written to: both processes must run as one "
                              "user, and kernel.yama.ptrace_scope must allow it",
                              name_.pid));
    }
    const std::size_t bad = static_cast<std::size_t>(std::max<ssize_t>(read, 0));
    return fail(
        FailureCode::kOutsideGrant,
        fmt::format("process {}: {} at {:#x}", name_.pid,
                    read < 0 ? errno_text("process_vm_readv") : "nothing is mapped", part[bad]),
        FailureWhere::kPeer);
  }
  return {};
}

RemoteProcess::Written RemoteProcess::write(std::span<const Piece> pieces) const {
  Written out;
  out.bytes.assign(pieces.size(), 0);
  std::vector<iovec> local;
  std::vector<iovec> remote;
  for (std::size_t next = 0; next < pieces.size() && !out.is_lost;) {
    const auto part = pieces.subspan(next, std::min(kMaxPieces, pieces.size() - next));
    local.clear();
    remote.clear();
    for (const Piece& piece : part) {
      local.push_back({const_cast<std::byte*>(piece.from), piece.bytes});
      remote.push_back(at(piece.to, piece.bytes));
    }
    // The number is the process's own as long as it has not ended, and it has not if it is there
    // still after the call.
    const bool was_there = !has_ended();
    const ssize_t written = was_there ? ::process_vm_writev(name_.pid, local.data(), local.size(),
                                                            remote.data(), remote.size(), 0)
                                      : -1;
    const int error = !was_there ? ESRCH : written < 0 ? errno : 0;
    auto left = static_cast<std::uint64_t>(std::max<ssize_t>(written, 0));
    std::size_t i = 0;
    for (; i < part.size(); ++i) {
      out.bytes[next + i] = std::min(left, part[i].bytes);
      left -= out.bytes[next + i];
      if (out.bytes[next + i] < part[i].bytes) break;
    }
    out.is_lost = error == ESRCH || error == EPERM || has_ended();
    if (i < part.size()) {
      if (out.error == 0) out.error = error == 0 ? EFAULT : error;
      ++i;  // the others may be written all the same
    }
    next += i;
  }
  if (out.is_lost && out.error == 0) out.error = ESRCH;
  return out;
}

}  // namespace kvferry::data_plane
