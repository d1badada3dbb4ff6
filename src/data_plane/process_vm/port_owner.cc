#include "data_plane/process_vm/port_owner.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace kvferry::data_plane {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListening = "0A";
constexpr std::size_t kMaxRemembered = 4'096;

tl::unexpected<Failure> unknown(std::string what) {
  return fail(FailureCode::kPeerUnreachable, std::move(what), FailureWhere::kPeer);
}

// As the kernel's tables have it: words of four bytes as they lie in memory, in hexadecimal digits.
std::optional<std::string> table_address(const std::string& ip, std::uint16_t port) {
  std::array<std::uint32_t, 4> words{};
  const bool is_v6 = ip.find(':') != std::string::npos;
  if (::inet_pton(is_v6 ? AF_INET6 : AF_INET, ip.c_str(), words.data()) != 1) return std::nullopt;
  std::string text;
  for (std::size_t i = 0; i < (is_v6 ? words.size() : 1); ++i) {
    text += fmt::format("{:08X}", words[i]);
  }
  return fmt::format("{}:{:04X}", text, port);
}

struct Socket {
  uid_t user = 0;
  std::uint64_t inode = 0;
};

// Listening sockets are the first in the table, so that those of connections need not be read.
std::vector<Socket> listeners(const char* table, const std::string& address) {
  std::vector<Socket> out;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // names of the columns
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, timeout;
    Socket socket;
    if (!(fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >>
          socket.user >> timeout >> socket.inode) ||
        state != kListening) {
      break;
    }
    if (local == address) out.push_back(socket);
  }
  return out;
}

std::string link_of(std::uint64_t inode) { return fmt::format("socket:[{}]", inode); }

bool leads_to(const std::string& descriptor, std::string_view wanted) {
  std::array<char, 64> link{};
  const ssize_t length = ::readlink(descriptor.c_str(), link.data(), link.size());
  return length > 0 && std::string_view(link.data(), static_cast<std::size_t>(length)) == wanted;
}

// One descriptor of each process that has the socket.
std::vector<std::pair<pid_t, std::string>> holders(std::uint64_t inode) {
  std::vector<std::pair<pid_t, std::string>> out;
  const std::string wanted = link_of(inode);
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; process != end && !error;
       process.increment(error)) {
    const std::string name = process->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // Of a process that ended meanwhile, or of another user, nothing is listed.
    std::error_code hidden;
    for (fs::directory_iterator fd(process->path() / "fd", hidden), last; fd != last && !hidden;
         fd.increment(hidden)) {
      if (leads_to(fd->path().native(), wanted)) {
        out.emplace_back(static_cast<pid_t>(std::stol(name)), fd->path());
        break;
      }
    }
  }
  return out;
}

}  // namespace

Result<ProcessName> PortOwners::find(const std::string& ip, std::uint16_t port) {
  const std::string where = fmt::format("{} port {}", ip, port);
  const std::optional<std::string> address = table_address(ip, port);
  if (!address) return unknown(fmt::format("'{}' is no numeric address", ip));
  const bool is_v6 = ip.find(':') != std::string::npos;
  const std::vector<Socket> sockets =
      listeners(is_v6 ? "/proc/net/tcp6" : "/proc/net/tcp", *address);
  if (sockets.empty()) return unknown(fmt::format("nobody on this host listens at {}", where));
  if (sockets.size() > 1) return unknown(fmt::format("several sockets listen at {}", where));
  const Socket& socket = sockets.front();
  if (socket.user != ::geteuid()) {
    return unknown(fmt::format("user {} listens at {}, this process is of user {}", socket.user,
                               where, ::geteuid()));
  }
  if (const auto known = found_.find(socket.inode); known != found_.end()) {
    const Result<ProcessName> now = name_process(known->second.process.pid);
    if (now && *now == known->second.process &&
        leads_to(known->second.descriptor, link_of(socket.inode))) {
      return *now;
    }
    found_.erase(known);
  }
  const auto owners = holders(socket.inode);
  if (owners.empty()) {
    return unknown(fmt::format("the process that listens at {} is not to be seen", where));
  }
  if (owners.size() > 1) {
    return unknown(fmt::format("processes {} and {} both listen at {}", owners[0].first,
                               owners[1].first, where));
  }
  const Result<ProcessName> process = name_process(owners.front().first);
  if (!process) return process;
  if (found_.size() >= kMaxRemembered) found_.clear();
  found_.emplace(socket.inode, Found{*process, owners.front().second});
  return process;
}

}  // namespace kvferry::data_plane
