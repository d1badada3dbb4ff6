// Why a connection could not be made. libzmq reports "closed" for a refused port, an unreachable
// network and a lack of descriptors alike, but only a refusal proves that the peer's process is
// gone; so the kernel is asked once more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvferry::net {

class ConnectProbe {
 public:
  ConnectProbe() = default;
  ~ConnectProbe();
  ConnectProbe(const ConnectProbe&) = delete;
  ConnectProbe& operator=(const ConnectProbe&) = delete;

  // Whether the port refuses, when that is known at once; else descriptor() becomes writable when
  // it is. Host names are not resolved here: they count as not refused.
  std::optional<bool> start(const std::string& host, std::uint16_t port);
  bool refused() const;  // once descriptor() is writable
  int descriptor() const { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace kvferry::net
