// A file descriptor with an owner, and errno in words.
#pragma once

#include <string>
#include <utility>

namespace kvferry::data_plane {

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
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void reset();
  // Closes a TCP socket with a reset: what the kernel still holds for the peer is thrown away, not
  // sent. Any other descriptor is just closed.
  void abort();

 private:
  int fd_ = -1;
};

// For an eventfd that wakes a loop: makes it readable, and no longer so.
void raise_event(const Fd& event);
void clear_event(const Fd& event);

// The failed call with errno's words.
std::string errno_text(const char* call);

}  // namespace kvferry::data_plane
