// A writer in a process of its own, so that a test can kill and stop it for real. It opens one
// session to a target in the process that started it and posts stale and fresh writes for ever.
//
// Started with KIND REGIONS ITEM_BYTES ITEMS WRITE_TIMEOUT_MS. Speaks lines. First it says how it
// is reached; then it is told of its session and answers:
//   > blob HEX
//   < link EPOCH SECRET_HEX BLOB_HEX
//   > ready
//   < generation SLOT GENERATION      the grant that is open in that slot now
//   < flush                           stop posting until everything posted has come to its end
//   > flushed POSTED LANDED REFUSED UNKNOWN QUIET REPEATED
// It ends when its input does.
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>

#include "base/crypto.h"
#include "data_plane/factory.h"
#include "stale_writes.h"
#include "writer_process.h"

namespace kvferry::data_plane {
namespace {

constexpr std::size_t kBatch = 32;
constexpr std::uint64_t kWindow = 256;  // posted and without an outcome

// Counts how the tickets ended; what came twice is counted apart.
class CountingSink final : public CompletionSink {
 public:
  struct Counts {
    std::uint64_t landed = 0;
    std::uint64_t refused = 0;
    std::uint64_t unknown = 0;
    std::uint64_t quiet = 0;
    std::uint64_t repeated = 0;
    std::uint64_t completed() const { return landed + refused + unknown; }
  };

  void writes_completed(std::span<const layout::WriteCompletion> completions) noexcept override {
    std::lock_guard lock(mutex_);
    for (const layout::WriteCompletion& completion : completions) {
      if (is_repeated(completed_, completion.ticket)) continue;
      switch (completion.outcome) {
        case layout::WriteOutcome::kLanded:
          ++counts_.landed;
          break;
        case layout::WriteOutcome::kRefused:
          ++counts_.refused;
          break;
        default:
          ++counts_.unknown;
      }
    }
    changed_.notify_all();
  }
  void writes_quiet(SessionEpoch, std::span<const TicketId> tickets) noexcept override {
    std::lock_guard lock(mutex_);
    for (const TicketId ticket : tickets) counts_.quiet += is_repeated(quiet_, ticket) ? 0 : 1;
    changed_.notify_all();
  }
  void writes_landed(std::span<const Landing>) noexcept override {}
  void write_torn(const Landing&, std::string_view) noexcept override {}
  void fence_done(GrantId) noexcept override {}
  void lane_failed(SessionEpoch, Failure) noexcept override {}
  void session_unreachable(SessionEpoch, Failure) noexcept override {}
  void session_torn_down(SessionEpoch) noexcept override {}
  void regions_released() noexcept override {}

  // Waits without end: whoever started this process has patience for it.
  template <typename Condition>
  Counts wait(Condition&& condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return condition(counts_); });
    return counts_;
  }

 private:
  bool is_repeated(std::vector<bool>& seen, TicketId ticket) {
    if (seen.size() <= ticket.value()) seen.resize(ticket.value() * 2 + 1);
    if (seen[ticket.value()]) {
      ++counts_.repeated;
      return true;
    }
    seen[ticket.value()] = true;
    return false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Counts counts_;
  std::vector<bool> completed_;
  std::vector<bool> quiet_;
};

std::optional<SessionLink> read_link(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  std::string secret;
  std::string blob;
  std::uint64_t epoch = 0;
  words >> word >> epoch >> secret >> blob;
  const auto secret_bytes = bytes_of_hex(secret);
  const auto blob_bytes = bytes_of_hex(blob);
  if (!words || word != "link" || !blob_bytes) return std::nullopt;
  SessionLink link;
  if (!secret_bytes || secret_bytes->size() != link.secret.size()) return std::nullopt;
  link.epoch = SessionEpoch(epoch);
  link.local_role = Role::kPrefill;
  std::copy(secret_bytes->begin(), secret_bytes->end(), link.secret.begin());
  link.peer_blob = *blob_bytes;
  return link;
}

class Writer {
 public:
  Writer(Kind kind, const Shape& shape, std::uint32_t write_timeout_ms)
      : shape_(shape),
        pool_(shape, kind == Kind::kShm ? Pool::Backing::kShared : Pool::Backing::kPrivate),
        writes_(shape, 5) {
    TransportConfig config;
    config.role = Role::kPrefill;
    config.write_timeout_ms = write_timeout_ms;
    config.lane_heartbeat_ms = 20;
    config.lane_timeout_ms = 20'000;
    config.frame_bytes = 32U << 10;
    auto made = make_transport(kind == Kind::kTcp ? "tcp" : "shm", config, sink_);
    if (!made || !(*made)->register_regions(pool_.regions())) std::exit(3);
    transport_ = std::move(*made);
    pool_.fill_pattern(1);
  }
  ~Writer() { transport_->stop(); }

  std::string blob() const { return to_hex(transport_->local_blob()); }
  bool open(SessionLink link) {
    link.peer_item_bytes.assign(shape_.regions, shape_.item_bytes);
    link.peer_item_counts.assign(shape_.regions, shape_.items);
    epoch_ = link.epoch;
    return transport_->open_session(link).has_value();
  }
  void post_some() {
    const auto writes = writes_.next(kBatch);
    transport_->post(epoch_, writes);
    posted_ += writes.size();
    sink_.wait([&](const auto& counts) { return counts.completed() + kWindow >= posted_; });
  }
  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "generation") {
      std::uint32_t slot = 0;
      std::uint64_t generation = 0;
      words >> slot >> generation;
      if (slot < StaleWrites::kSlots) writes_.set_generation(slot, generation);
    } else if (word == "flush") {
      const auto counts = sink_.wait(
          [&](const auto& now) { return now.completed() == posted_ && now.quiet == now.unknown; });
      std::cout << "flushed " << posted_ << ' ' << counts.landed << ' ' << counts.refused << ' '
                << counts.unknown << ' ' << counts.quiet << ' ' << counts.repeated << std::endl;
    }
  }

 private:
  const Shape shape_;
  Pool pool_;
  CountingSink sink_;
  StaleWrites writes_;
  std::unique_ptr<Transport> transport_;
  SessionEpoch epoch_;
  std::uint64_t posted_ = 0;
};

int run(const char* kind_text, const Shape& shape, std::uint32_t write_timeout_ms) {
  Writer writer(static_cast<Kind>(std::atoi(kind_text)), shape, write_timeout_ms);
  std::cout << "blob " << writer.blob() << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) return 0;
  auto link = read_link(line);
  if (!link || !writer.open(std::move(*link))) return 4;
  std::cout << "ready" << std::endl;
  // Between any two orders it posts something.
  for (;;) {
    pollfd polled{STDIN_FILENO, POLLIN, 0};
    if (std::cin.rdbuf()->in_avail() > 0 || ::poll(&polled, 1, 0) == 1) {
      if (!std::getline(std::cin, line)) return 0;
      writer.obey(line);
    }
    writer.post_some();
  }
}

}  // namespace
}  // namespace kvferry::data_plane

int main(int argc, char** argv) {
  using kvferry::data_plane::Shape;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::ios::sync_with_stdio(false);
  if (argc != 6) return 2;
  const Shape shape{static_cast<std::uint32_t>(std::atoi(argv[2])),
                    static_cast<std::uint64_t>(std::atoll(argv[3])),
                    static_cast<std::uint32_t>(std::atoi(argv[4]))};
  return kvferry::data_plane::run(argv[1], shape, static_cast<std::uint32_t>(std::atoi(argv[5])));
}
