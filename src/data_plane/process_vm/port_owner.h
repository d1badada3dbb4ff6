// Which process of this host listens at a TCP port: for peers whose protocol names an address and
// no process. Who owns the port is a fact of the kernel's, so that a message which names it can't
// have another process written to.
//
// Not thread-safe. It reads /proc and never waits for a peer; a process that was found before costs
// a few calls, another one a look at the descriptors of all processes of this user.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "data_plane/process_vm/remote_process.h"
#include "kvferry/status.h"

namespace kvferry::data_plane {

class PortOwners {
 public:
  // ip: numeric, and the one that the socket is bound to; a socket bound to a wildcard does not say
  // that an address is one of this host. Fails with kPeerUnreachable when nobody here listens
  // there, it is of another user, or more than one process has it; the text says which.
  Result<ProcessName> find(const std::string& ip, std::uint16_t port);

 private:
  struct Found {
    ProcessName process;
    std::string descriptor;  // "/proc/12/fd/7"
  };
  std::map<std::uint64_t, Found> found_;  // by the socket's inode
};

}  // namespace kvferry::data_plane
