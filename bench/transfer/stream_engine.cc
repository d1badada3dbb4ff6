#include "bench/transfer/stream_engine.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "base/clock.h"
#include "bench/transfer/flat_order.h"
#include "data_plane/tcp/socket.h"

namespace kvferry::bench {
namespace {

using data_plane::Fd;

constexpr std::uint32_t kMaxFrameBlocks = 128;
constexpr std::uint64_t kMaxFrameBytes = 1U << 20;

std::uint32_t frame_blocks(const Block& block) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(kMaxFrameBytes / block.page_bytes, 1, kMaxFrameBlocks));
}

// The frame is block_count blocks long, or it is the last one of a run and has none.
struct FrameHead {
  std::uint32_t is_last = 0;
  std::array<FlatOrder::Copy, kMaxFrameBlocks> copies{};
};
std::size_t head_bytes(std::uint32_t block_count) {
  return sizeof(std::uint32_t) + block_count * sizeof(FlatOrder::Copy);
}

// Moves all of the parts, however often the call stops in between.
template <typename Call>
Status move_all(std::vector<iovec>& parts, const char* name, Call&& call) {
  std::size_t first = 0;
  while (first < parts.size()) {
    const ssize_t moved = call(&parts[first], parts.size() - first);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return fail(FailureCode::kOperatingSystem, data_plane::errno_text(name));
    if (moved == 0) return fail(FailureCode::kOperatingSystem, "the raw stream has ended");
    auto left = static_cast<std::size_t>(moved);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (first == parts.size()) break;
    parts[first].iov_base = static_cast<std::byte*>(parts[first].iov_base) + left;
    parts[first].iov_len -= left;
  }
  return {};
}

Status wait_for(int fd, short events, const char* what) {
  pollfd waiting{fd, events, 0};
  if (::poll(&waiting, 1, static_cast<int>(kPatience.count())) == 1) return {};
  return fail(FailureCode::kOperatingSystem, what);
}

// Both ends block: nothing is cheaper for a stream alone.
Status make_blocking(int fd) {
  timeval patience{kPatience.count() / 1000, 0};
  const int one = 1;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0 ||
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0) {
    return fail(FailureCode::kOperatingSystem, data_plane::errno_text("setsockopt"));
  }
  return {};
}

class StreamSource final : public SourceEngine {
 public:
  explicit StreamSource(const Pool& pool) : pool_(pool) {}

  Status prepare(const Block& block, Channel& target) override {
    order_ = FlatOrder(block);
    block_count_ = frame_blocks(block);
    auto address = target.expect(Kind::kAddress, kPatience);
    if (!address) return tl::unexpected(address.error());
    auto fd = data_plane::tcp::start_connect(address->text,
                                             static_cast<std::uint16_t>(address->numbers[0]));
    if (!fd) return tl::unexpected(fd.error());
    fd_ = std::move(*fd);
    if (auto ready = wait_for(fd_.get(), POLLOUT, "the raw stream can't connect"); !ready) {
      return ready;
    }
    if (const std::string error = data_plane::tcp::connect_error(fd_.get()); !error.empty()) {
      return fail(FailureCode::kOperatingSystem, "the raw stream can't connect: " + error);
    }
    return make_blocking(fd_.get());
  }

  Result<PostResult> run(const RunOrder&, Channel& target) override {
    const std::uint64_t block_bytes = order_.block_bytes();
    FrameHead head;
    std::vector<iovec> parts;
    while (head.is_last == 0) {
      pollfd ended{target.fd(), POLLIN, 0};
      head.is_last = ::poll(&ended, 1, 0) == 1 ? 1 : 0;
      parts.assign(1, iovec{&head, head_bytes(block_count_)});
      for (std::uint32_t i = 0; i < block_count_ && head.is_last == 0; ++i) {
        head.copies[i] = order_.next();
        parts.push_back({pool_.base + head.copies[i].source * block_bytes, block_bytes});
      }
      auto sent = move_all(parts, "sendmsg", [&](iovec* first, std::size_t count) {
        msghdr packet{};
        packet.msg_iov = first;
        packet.msg_iovlen = count;
        return ::sendmsg(fd_.get(), &packet, MSG_NOSIGNAL);
      });
      if (!sent) return tl::unexpected(sent.error());
    }
    auto end = target.expect(Kind::kEnd, kPatience);
    if (!end) return tl::unexpected(end.error());
    return PostResult{};
  }

 private:
  const Pool pool_;
  FlatOrder order_;
  std::uint32_t block_count_ = 0;
  Fd fd_;
};

class StreamTarget final : public TargetEngine {
 public:
  StreamTarget(std::string host, const Pool& pool) : host_(std::move(host)), pool_(pool) {}

  Status prepare(const Block& block, Channel& source) override {
    block_bytes_ = block.page_bytes;
    block_count_ = frame_blocks(block);
    auto listener = data_plane::tcp::listen_on(host_, 0);
    if (!listener) return tl::unexpected(listener.error());
    if (auto sent = source.send({Kind::kAddress, {listener->port}, listener->host, {}}); !sent) {
      return sent;
    }
    if (auto ready = wait_for(listener->fd.get(), POLLIN, "nobody connects to the raw stream");
        !ready) {
      return ready;
    }
    fd_ = Fd(::accept4(listener->fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd_.is_open()) {
      return fail(FailureCode::kOperatingSystem, data_plane::errno_text("accept4"));
    }
    return make_blocking(fd_.get());
  }

  Result<RunResult> run(const RunOrder& order, Channel& source) override {
    CopySample sample(static_cast<std::uint32_t>(block_bytes_));
    Measurement measurement(order, monotonic_now());
    bool goes_on = true;
    for (std::uint64_t bytes = 0;;) {
      FrameHead head;
      std::vector<iovec>& parts = parts_;
      parts.assign(1, iovec{&head, head_bytes(block_count_)});
      if (auto received = receive(parts); !received) return tl::unexpected(received.error());
      if (head.is_last != 0) break;
      parts.clear();
      for (std::uint32_t i = 0; i < block_count_; ++i) {
        parts.push_back({pool_.base + head.copies[i].target * block_bytes_, block_bytes_});
        sample.add(head.copies[i]);
      }
      if (auto received = receive(parts); !received) return tl::unexpected(received.error());
      bytes += block_count_ * block_bytes_;
      if (goes_on && !measurement.goes_on(monotonic_now(), bytes)) {
        goes_on = false;
        if (auto sent = source.send({Kind::kEnd, {}, {}, {}}); !sent) {
          return tl::unexpected(sent.error());
        }
      }
    }
    auto checked = sample.check(pool_);
    if (!checked) return tl::unexpected(checked.error());
    RunResult result = measurement.result();
    result.checked_pages = *checked;
    return result;
  }

 private:
  Status receive(std::vector<iovec>& parts) {
    return move_all(parts, "readv", [&](iovec* first, std::size_t count) {
      return ::readv(fd_.get(), first, static_cast<int>(count));
    });
  }

  const std::string host_;
  const Pool pool_;
  std::uint64_t block_bytes_ = 0;
  std::uint32_t block_count_ = 0;
  std::vector<iovec> parts_;
  Fd fd_;
};

}  // namespace

std::unique_ptr<SourceEngine> make_stream_source(const WorkerSetup&, const Pool& pool) {
  return std::make_unique<StreamSource>(pool);
}
std::unique_ptr<TargetEngine> make_stream_target(const WorkerSetup& setup, const Pool& pool) {
  return std::make_unique<StreamTarget>(setup.host.data(), pool);
}

}  // namespace kvferry::bench
