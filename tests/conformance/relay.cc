#include "relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace kvferry::data_plane {
namespace {

constexpr std::size_t kBufferBytes = 16U << 10;

bool write_some(int fd, std::vector<std::uint8_t>& buffer) {
  while (!buffer.empty()) {
    const ssize_t sent = ::send(fd, buffer.data(), buffer.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    buffer.erase(buffer.begin(), buffer.begin() + sent);
  }
  return true;
}

}  // namespace

Relay::Relay(std::string target_host, std::uint16_t target_port)
    : target_host_(std::move(target_host)),
      target_port_(target_port),
      listener_(std::move(tcp::listen_on("127.0.0.1", 0).value())),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

Relay::~Relay() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void Relay::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void Relay::cut() {
  {
    std::lock_guard lock(mutex_);
    cut_now_ = true;
  }
  wake();
}

void Relay::cut_after(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  counting_ = true;
  has_cut_ = false;
  bytes_left_ = bytes;
}

bool Relay::has_cut() {
  std::lock_guard lock(mutex_);
  return has_cut_;
}

void Relay::freeze(bool frozen) {
  {
    std::lock_guard lock(mutex_);
    frozen_ = frozen;
  }
  wake();
}

void Relay::accept_one() {
  auto link = std::make_unique<Link>();
  link->source = Fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  auto target = tcp::start_connect(target_host_, target_port_);
  if (!link->source.is_open() || !target) return;
  link->target = std::move(*target);
  links_.push_back(std::move(link));
}

// False when the connection is over.
bool Relay::move(int from, int to, std::vector<std::uint8_t>& buffer, bool counts) {
  if (buffer.size() < kBufferBytes) {
    std::uint8_t bytes[kBufferBytes];
    const ssize_t got = ::recv(from, bytes, kBufferBytes - buffer.size(), 0);
    if (got == 0) return false;
    if (got < 0 && errno != EAGAIN && errno != EINTR && errno != ENOTCONN) return false;
    auto taken = static_cast<std::uint64_t>(std::max<ssize_t>(got, 0));
    if (counts && counting_) {
      taken = std::min(taken, bytes_left_);
      bytes_left_ -= taken;
    }
    buffer.insert(buffer.end(), bytes, bytes + taken);
  }
  return write_some(to, buffer);
}

void Relay::pump(Link& link) {
  const bool alive = move(link.source.get(), link.target.get(), link.to_target, true) &&
                     move(link.target.get(), link.source.get(), link.to_source, false);
  if (!alive) link.is_broken = true;
}

void Relay::run() {
  for (;;) {
    std::vector<pollfd> polled;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      polled.push_back({wake_.get(), POLLIN, 0});
      polled.push_back({listener_.fd.get(), static_cast<short>(frozen_ ? 0 : POLLIN), 0});
      for (const auto& link : links_) {
        if (frozen_) continue;
        const auto wanted = [](const auto& in, const auto& out) {
          return static_cast<short>((in.size() < kBufferBytes ? POLLIN : 0) |
                                    (out.empty() ? 0 : POLLOUT));
        };
        polled.push_back({link->source.get(), wanted(link->to_target, link->to_source), 0});
        polled.push_back({link->target.get(), wanted(link->to_source, link->to_target), 0});
      }
    }
    ::poll(polled.data(), polled.size(), -1);
    std::lock_guard lock(mutex_);
    std::uint64_t ignored = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &ignored, sizeof ignored);
    if (!frozen_) {
      if ((polled[1].revents & POLLIN) != 0) accept_one();
      for (const auto& link : links_) pump(*link);
    }
    if (counting_ && bytes_left_ == 0) {
      counting_ = false;
      has_cut_ = true;
      cut_now_ = true;
    }
    std::erase_if(links_, [this](const auto& link) { return cut_now_ || link->is_broken; });
    cut_now_ = false;
  }
}

}  // namespace kvferry::data_plane
