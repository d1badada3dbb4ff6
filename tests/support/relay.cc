#include "relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvferry::support {
namespace {

namespace tcp = data_plane::tcp;
using data_plane::Fd;

constexpr std::size_t kReadBytes = 16U << 10;
// Small, so that a receiver that does not read holds its sender up soon.
constexpr std::size_t kQueueBytes = 16U << 10;
// A delayed way holds what is under way.
constexpr std::size_t kDelayedQueueBytes = 4U << 20;
// A limited way sends in steps of this part of a second.
constexpr std::uint64_t kStepsPerSecond = 100;

constexpr std::array kWays{Way::kToTarget, Way::kToSource};
constexpr Way other(Way way) { return way == Way::kToTarget ? Way::kToSource : Way::kToTarget; }

std::size_t queue_bytes(const Conduct& conduct) {
  return conduct.delay.count() > 0 ? kDelayedQueueBytes : kQueueBytes;
}

bool is_transient(int error) { return error == EAGAIN || error == EINTR || error == ENOTCONN; }

// A close with unread bytes resets the connection, which may overtake what was sent before.
void discard_input(const Fd& fd) {
  std::uint8_t bytes[kReadBytes];
  while (fd.is_open() && ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
}

}  // namespace

Relay::Relay(std::string target_host, std::uint16_t target_port)
    : target_host_(std::move(target_host)),
      target_port_(target_port),
      listener_(std::move(tcp::listen_on("127.0.0.1", 0).value())),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

Relay::~Relay() {
  change([this] { stopping_ = true; });
  thread_.join();
}

template <typename Change>
void Relay::change(Change&& apply) {
  {
    std::lock_guard lock(mutex_);
    apply();
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void Relay::conduct(Link& link, Way way, const Conduct& conduct) {
  Pipe& pipe = link.pipes[index(way)];
  pipe.conduct = conduct;
  pipe.flips = Prng(conduct.flip_seed * 2 + index(way) + link.number * 1'000'003);
  pipe.next_send = Clock::time_point();
}

void Relay::set(Way way, const Conduct& wanted) {
  change([&] {
    conduct_[index(way)] = wanted;
    for (const auto& link : links_) conduct(*link, way, wanted);
  });
}

void Relay::set(std::size_t connection, Way way, const Conduct& wanted) {
  change([&] {
    for (const auto& link : links_) {
      if (link->number == connection) conduct(*link, way, wanted);
    }
  });
}

void Relay::swallow(bool swallowed) {
  change([&] {
    for (const Way way : kWays) {
      conduct_[index(way)].swallow = swallowed;
      for (const auto& link : links_) link->pipes[index(way)].conduct.swallow = swallowed;
    }
  });
}

void Relay::freeze(bool frozen) {
  change([&] { frozen_ = frozen; });
}

void Relay::cut() {
  change([this] { cut_now_ = true; });
}

void Relay::cut_after(Way way, std::uint64_t bytes, std::optional<std::size_t> connection) {
  change([&] {
    has_cut_ = false;
    cuts_.push_back(Countdown{way, bytes, connection});
  });
}

void Relay::half_close(Way way, std::optional<std::size_t> connection) {
  change([&] {
    for (const auto& link : links_) {
      if (!connection || *connection == link->number) link->pipes[index(way)].has_ended = true;
    }
  });
}

void Relay::flip_byte(Way way, std::uint64_t byte, std::optional<std::size_t> connection) {
  change([&] { flips_.push_back(Countdown{way, byte, connection}); });
}

bool Relay::has_cut() {
  std::lock_guard lock(mutex_);
  return has_cut_;
}

bool Relay::wait_cut(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [this] { return has_cut_; });
}

bool Relay::wait_taken(Way way, std::uint64_t bytes, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return taken_[index(way)] >= bytes; });
}

std::uint64_t Relay::taken(Way way) {
  std::lock_guard lock(mutex_);
  return taken_[index(way)];
}

std::uint64_t Relay::passed(Way way) {
  std::lock_guard lock(mutex_);
  return passed_[index(way)];
}

std::size_t Relay::connections() {
  std::lock_guard lock(mutex_);
  return links_.size();
}

void Relay::accept_one() {
  auto link = std::make_unique<Link>();
  link->source = Fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!link->source.is_open()) return;
  auto target = tcp::start_connect(target_host_, target_port_);
  if (target) {
    link->target = std::move(*target);
  } else if (!conduct_[index(Way::kToSource)].swallow) {
    return;
  }
  tcp::set_lane_options(link->source.get(), 0);
  if (link->target.is_open()) tcp::set_lane_options(link->target.get(), 0);
  link->number = accepted_++;
  Pipe& to_target = link->pipes[index(Way::kToTarget)];
  Pipe& to_source = link->pipes[index(Way::kToSource)];
  to_target.from = to_source.to = &link->source;
  to_target.to = to_source.from = &link->target;
  for (const Way way : kWays) conduct(*link, way, conduct_[index(way)]);
  links_.push_back(std::move(link));
}

// The end from which this way comes is broken. Its other end learns it, unless a black hole is in
// between.
void Relay::break_end(Link& link, Way way) {
  Pipe& pipe = link.pipes[index(way)];
  if (!pipe.conduct.swallow) {
    link.is_broken = true;
    return;
  }
  pipe.has_ended = true;
  pipe.from->reset();
}

void Relay::flip(Link& link, Way way, std::vector<std::uint8_t>& bytes) {
  Pipe& pipe = link.pipes[index(way)];
  if (pipe.conduct.flip_one_in != 0) {
    for (std::uint8_t& byte : bytes) {
      if (pipe.flips.below(pipe.conduct.flip_one_in) != 0) continue;
      byte ^= static_cast<std::uint8_t>(1U << pipe.flips.below(8));
    }
  }
  std::erase_if(flips_, [&](Countdown& countdown) {
    if (!countdown.concerns(link, way)) return false;
    if (countdown.bytes_left < bytes.size()) {
      bytes[countdown.bytes_left] ^= 1;
      return true;
    }
    countdown.bytes_left -= bytes.size();
    return false;
  });
}

void Relay::take(Link& link, Way way, Clock::time_point now) {
  Pipe& pipe = link.pipes[index(way)];
  if (link.is_broken || pipe.has_ended || !pipe.from->is_open()) return;
  if (pipe.queued >= queue_bytes(pipe.conduct)) return;
  std::vector<std::uint8_t> bytes(kReadBytes);
  const ssize_t got = ::recv(pipe.from->get(), bytes.data(), bytes.size(), 0);
  if (got < 0) {
    if (!is_transient(errno)) break_end(link, way);
    return;
  }
  if (got == 0) {
    pipe.has_ended = true;
    return;
  }
  bytes.resize(static_cast<std::size_t>(got));
  taken_[index(way)] += bytes.size();
  if (pipe.conduct.swallow) return;
  flip(link, way, bytes);
  pipe.queued += bytes.size();
  pipe.pieces.push_back(Piece{now, std::move(bytes), 0});
}

// How many bytes may go before something is cut.
std::uint64_t Relay::allowance(const Link& link, Way way) const {
  std::uint64_t bytes = ~std::uint64_t{0};
  for (const Countdown& countdown : cuts_) {
    if (countdown.concerns(link, way)) bytes = std::min(bytes, countdown.bytes_left);
  }
  return bytes;
}

void Relay::count_passed(Link& link, Way way, std::uint64_t bytes) {
  passed_[index(way)] += bytes;
  for (Countdown& countdown : cuts_) {
    if (countdown.concerns(link, way)) countdown.bytes_left -= bytes;
  }
}

void Relay::fire_cuts() {
  std::erase_if(cuts_, [this](const Countdown& countdown) {
    if (countdown.bytes_left != 0) return false;
    has_cut_ = true;
    for (const auto& link : links_) {
      if (!countdown.connection || *countdown.connection == link->number) link->is_broken = true;
    }
    return true;
  });
}

void Relay::give(Link& link, Way way, Clock::time_point now) {
  Pipe& pipe = link.pipes[index(way)];
  if (pipe.conduct.swallow) {
    pipe.pieces.clear();
    pipe.queued = 0;
    return;
  }
  while (!link.is_broken && !pipe.pieces.empty()) {
    Piece& piece = pipe.pieces.front();
    if (piece.came + pipe.conduct.delay > now || pipe.next_send > now) return;
    std::uint64_t length = std::min(piece.bytes.size() - piece.start, allowance(link, way));
    if (length == 0) return fire_cuts();
    const std::uint64_t rate = pipe.conduct.bytes_per_s;
    if (rate != 0) length = std::min(length, std::max<std::uint64_t>(1, rate / kStepsPerSecond));
    const ssize_t sent =
        ::send(pipe.to->get(), piece.bytes.data() + piece.start, length, MSG_NOSIGNAL);
    if (sent < 0) {
      if (!is_transient(errno)) break_end(link, other(way));
      if (!pipe.to->is_open()) pipe.pieces.clear();
      return;
    }
    count_passed(link, way, static_cast<std::uint64_t>(sent));
    if (rate != 0) {
      const auto pause = std::chrono::nanoseconds(1'000'000'000ULL * sent / rate);
      pipe.next_send = std::max(pipe.next_send, now) + pause;
    }
    piece.start += static_cast<std::size_t>(sent);
    pipe.queued -= static_cast<std::size_t>(sent);
    if (piece.start == piece.bytes.size()) pipe.pieces.pop_front();
    if (allowance(link, way) == 0) fire_cuts();
  }
  if (!link.is_broken && pipe.has_ended && !pipe.end_passed) {
    if (pipe.to->is_open()) ::shutdown(pipe.to->get(), SHUT_WR);
    pipe.end_passed = true;
  }
}

void Relay::pump(Link& link) {
  const auto now = Clock::now();
  for (const Way way : kWays) {
    take(link, way, now);
    give(link, way, now);
  }
  const bool both_ended = link.pipes[0].end_passed && link.pipes[1].end_passed;
  if (both_ended) link.is_broken = true;
}

// When something waits for its time only.
std::optional<Relay::Clock::time_point> Relay::next_due(Clock::time_point now) const {
  std::optional<Clock::time_point> earliest;
  for (const auto& link : links_) {
    for (const Pipe& pipe : link->pipes) {
      if (pipe.pieces.empty()) continue;
      const auto due = std::max<Clock::time_point>(pipe.pieces.front().came + pipe.conduct.delay,
                                                   pipe.next_send);
      if (due > now && (!earliest || due < *earliest)) earliest = due;
    }
  }
  return earliest;
}

// Waits for an event and handles it; false when the relay stops.
bool Relay::turn() {
  std::vector<pollfd> polled;
  timespec timeout{};
  bool has_timeout = false;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return false;
    const auto now = Clock::now();
    polled.push_back({wake_.get(), POLLIN, 0});
    if (!frozen_) polled.push_back({listener_.fd.get(), POLLIN, 0});
    for (const auto& link : links_) {
      if (frozen_) break;
      const auto add = [&](const Fd& fd, const Pipe& in, const Pipe& out) {
        const bool reads = !in.has_ended && in.queued < queue_bytes(in.conduct);
        const bool writes = !out.pieces.empty() && out.next_send <= now &&
                            out.pieces.front().came + out.conduct.delay <= now;
        if (!fd.is_open() || (!reads && !writes)) return;
        polled.push_back(
            {fd.get(), static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0});
      };
      add(link->source, link->pipes[0], link->pipes[1]);
      add(link->target, link->pipes[1], link->pipes[0]);
    }
    const auto due = frozen_ ? std::nullopt : next_due(now);
    if (due) {
      has_timeout = true;
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(*due - now).count();
      timeout = {left / 1'000'000'000, left % 1'000'000'000};
    }
  }
  ::ppoll(polled.data(), polled.size(), has_timeout ? &timeout : nullptr, nullptr);
  std::lock_guard lock(mutex_);
  std::uint64_t ignored = 0;
  [[maybe_unused]] const auto got = ::read(wake_.get(), &ignored, sizeof ignored);
  if (!frozen_) {
    if (polled.size() > 1 && polled[1].fd == listener_.fd.get() && polled[1].revents != 0) {
      accept_one();
    }
    for (const auto& link : links_) {
      if (!link->is_broken) pump(*link);
    }
  }
  std::erase_if(links_, [this](const auto& link) {
    if (!cut_now_ && !link->is_broken) return false;
    discard_input(link->source);
    discard_input(link->target);
    return true;
  });
  cut_now_ = false;
  changed_.notify_all();
  return true;
}

void Relay::run() {
  while (turn()) continue;
}

}  // namespace kvferry::support
