// The few socket calls that lanes need, with their failures as text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kvferry/status.h"

namespace kvferry::data_plane::tcp {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void reset();
  // Closes with a reset: what the kernel still holds for the peer is thrown away, not sent.
  void abort();

 private:
  int fd_ = -1;
};

struct Listener {
  Fd fd;
  std::string host;  // numeric, as bound
  std::uint16_t port = 0;
  bool is_wildcard = false;
};

// host may be a name; it is resolved here, which may wait for the resolver.
Result<Listener> listen_on(const std::string& host, std::uint16_t port);
// The numeric form of a host name or address.
Result<std::string> numeric_host(const std::string& host);
// Starts to connect to a numeric address; writable when it is done.
Result<Fd> start_connect(const std::string& host, std::uint16_t port);
// What became of a connect that was started, empty when it succeeded.
std::string connect_error(int fd);
void set_lane_options(int fd, std::uint32_t user_timeout_ms);
std::string errno_text(const char* call);

}  // namespace kvferry::data_plane::tcp
