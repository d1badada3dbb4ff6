// One end of a way to pass frames between two processes: the control link, or plain libzmq sockets
// to compare it with. All ends are used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/status.h"

namespace kvferry::bench {

using ControlFrame = std::vector<std::uint8_t>;

class ControlEnd {
 public:
  virtual ~ControlEnd() = default;
  // How the other end reaches this one.
  virtual std::string address() const = 0;
  // Returns once frames can be sent there.
  virtual Status connect(const std::string& address) = 0;
  virtual Status send(ControlFrame frame) = 0;
  // Waits for frames, until the time is over or wake_fd (-1: none) is readable; appends them.
  virtual Status receive(std::chrono::milliseconds patience, int wake_fd,
                         std::vector<ControlFrame>& frames) = 0;
};

inline constexpr std::string_view kLinkName = "link";     // net/control_link.h with CURVE
inline constexpr std::string_view kPlainName = "libzmq";  // two DEALERs
inline constexpr std::string_view kPlainCurveName = "libzmq-curve";  // the same with CURVE

// is_listener: one end of a plain pair binds and the other connects.
Result<std::unique_ptr<ControlEnd>> make_control_end(std::string_view name, bool is_listener);

}  // namespace kvferry::bench
