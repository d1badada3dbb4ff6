#include "lab/rig/full_listener.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "net/endpoint.h"

namespace kvferry::lab {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
// On loopback the kernel answers within the call, if it does.
constexpr int kAnswerMs = 200;
constexpr int kMaxHeld = 16;

}  // namespace

Result<FullListener> FullListener::make() {
  FullListener made;
  auto listener = data_plane::tcp::listen_on(kLoopback, 0);
  if (!listener) return tl::unexpected(listener.error());
  made.listener_ = std::move(*listener);
  // Listening once more only changes the length of the queue.
  if (::listen(made.listener_.fd.get(), 0) != 0) {
    return fail(FailureCode::kOperatingSystem, "the accept queue can't be made short");
  }
  for (int i = 0; i < kMaxHeld; ++i) {
    auto connecting = data_plane::tcp::start_connect(kLoopback, made.listener_.port);
    if (!connecting) return tl::unexpected(connecting.error());
    pollfd entry{connecting->get(), POLLOUT, 0};
    const bool hangs = ::poll(&entry, 1, kAnswerMs) == 0;
    made.held_.push_back(std::move(*connecting));
    if (hangs) return made;
  }
  return fail(FailureCode::kOperatingSystem,
              fmt::format("{} connects to a listener that accepts none were all answered; this "
                          "kernel has no full accept queue",
                          kMaxHeld));
}

std::string FullListener::endpoint() const {
  return net::format_endpoint(listener_.host, listener_.port);
}

}  // namespace kvferry::lab
