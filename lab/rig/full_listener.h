// An address of this host that swallows every connect: neither answered nor refused, as one whose
// packets no router carries. The accept queue of a listening socket is full, and the kernel then
// drops each further SYN. Addresses that nobody routes (240.0.0.0/4, TEST-NET) won't do: a host may
// refuse them at once, and a proxy in front of it may accept them.
#pragma once

#include <string>
#include <vector>

#include "data_plane/fd.h"
#include "data_plane/tcp/socket.h"
#include "kvferry/status.h"

namespace kvferry::lab {

class FullListener {
 public:
  // Returns once a connect was seen to hang; a failure where the kernel answers all of them.
  static Result<FullListener> make();

  std::string endpoint() const;  // host:port

 private:
  FullListener() = default;

  data_plane::tcp::Listener listener_;
  std::vector<data_plane::Fd> held_;  // fill the queue
};

}  // namespace kvferry::lab
