#include "peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace kvferry::peers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWindowBytes = std::size_t{16} << 20;
constexpr std::size_t kWindowPages = 1024;
constexpr std::size_t kCheckedPages = 64;
constexpr std::size_t kKvMixPageBytes = std::size_t{32} << 10;
constexpr std::size_t kMessageBytes = std::size_t{64} << 10;
constexpr double kCalibrationSeconds = 0.15;
constexpr int kCalibrationRounds = 2;
constexpr double kStallSeconds = 10;
constexpr int kProgressPerLook = 256;

[[noreturn]] void fail_errno(std::string_view what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The word at an offset of the source pool; every page of it is thus unlike every other.
std::uint64_t word_at(std::uint64_t offset) { return (offset + 1) * 0x9E3779B97F4A7C15ULL; }

// xorshift64*: the choice of pages must cost nothing beside moving them.
class Random {
 public:
  std::uint64_t below(std::uint64_t bound) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545F4914F6CDD1DULL >> 32) % bound;
  }

 private:
  std::uint64_t state_ = 0x6B766665727279ULL;
};

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    fail_errno(fmt::format("pin to core {}", core));
  }
}

std::byte* map_pool(bool huge) {
  void* pool = mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pool == MAP_FAILED) {
    fail_errno("map a pool");
  }
  if (huge && madvise(pool, kPoolBytes, MADV_HUGEPAGE) != 0) {
    fail_errno("ask for huge pages");
  }
  return static_cast<std::byte*>(pool);
}

void fill_source(std::byte* pool) {
  auto* words = reinterpret_cast<std::uint64_t*>(pool);
  for (std::size_t i = 0; i < kPoolBytes / sizeof(std::uint64_t); ++i) {
    words[i] = word_at(i * sizeof(std::uint64_t));
  }
}

void release(std::byte* pool) {
  if (madvise(pool, kPoolBytes, MADV_DONTNEED) != 0) {
    fail_errno("release the pool's memory");
  }
}

bool page_is_right(const std::byte* pool, const PageMove& move, std::size_t page_bytes) {
  for (std::size_t i = 0; i < page_bytes; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, pool + move.target_offset + i, sizeof word);
    if (word != word_at(move.source_offset + i)) {
      return false;
    }
  }
  return true;
}

// Answers a request of the source to look at pages that it knows as applied.
std::string check_pages(std::string_view message, const std::byte* pool, std::size_t page_bytes) {
  std::size_t wrong = 0;
  for (std::size_t at = 0; at + sizeof(PageMove) <= message.size(); at += sizeof(PageMove)) {
    PageMove move;
    std::memcpy(&move, message.data() + at, sizeof move);
    wrong += page_is_right(pool, move, page_bytes) ? 0 : 1;
  }
  return wrong == 0 ? "right" : fmt::format("{} pages reported as complete are wrong", wrong);
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += '\\';
    }
    escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return escaped;
}

// The bench's end of the conversation, away from stdout, where libraries print warnings.
class Answers {
 public:
  Answers() : fd_(dup(STDOUT_FILENO)) { dup2(STDERR_FILENO, STDOUT_FILENO); }
  void say(std::string line) const {
    line += '\n';
    for (std::size_t at = 0; at < line.size();) {
      const ssize_t put = write(fd_, line.data() + at, line.size() - at);
      if (put <= 0) {
        return;  // The bench is gone, which the end of stdin tells as well.
      }
      at += static_cast<std::size_t>(put);
    }
  }

 private:
  int fd_;
};

// Commands: `run PAGE_BYTES` (answered `ready`), `check ...` while running, `stop` (answered).
void serve_target(const Peer& peer, const Options& options, Control& control) {
  pin_to(options.target_core);
  std::byte* pool = map_pool(options.huge);
  const std::unique_ptr<Target> target = peer.connect_target(control, pool);
  for (;;) {
    const std::string command = control.receive();
    std::size_t page_bytes = 0;
    if (std::sscanf(command.c_str(), "run %zu", &page_bytes) != 1) {
      throw std::runtime_error(fmt::format("target: unexpected command '{}'", command));
    }
    std::memset(pool, 0xEE, kPoolBytes);
    target->start(page_bytes);
    control.send("ready");
    for (bool running = true; running;) {
      for (int i = 0; i < kProgressPerLook; ++i) {
        target->progress();
      }
      while (running && control.has_message()) {
        const std::string message = control.receive();
        if (message == "stop") {
          running = false;
          continue;
        }
        control.send(check_pages(std::string_view(message).substr(6), pool, page_bytes));
      }
    }
    release(pool);
    control.send("stopped");
  }
}

class Measurement {
 public:
  Measurement(Source& source, Control& control, std::byte* pool)
      : source_(source), control_(control), pool_(pool) {}

  // Returns the answer to the bench.
  std::string run(const std::string& block, double seconds, std::size_t batch) {
    const std::size_t page_bytes = parse_block(block);
    control_.send(fmt::format("run {}", page_bytes));
    fill_source(pool_);
    expect("ready");
    page_bytes_ = page_bytes;
    const Way way = best_way(batch);
    const double gbps = measure(way, seconds);
    check(way);
    control_.send("stop");
    expect("stopped");
    release(pool_);
    return fmt::format(R"({{"gbps": {:.4f}, "way": "{}"}})", gbps, escape(way.name));
  }

 private:
  static std::size_t parse_block(const std::string& block) {
    if (block == "kv-mix") {
      return kKvMixPageBytes;
    }
    std::size_t bytes = 0;
    const auto [end, error] = std::from_chars(block.data(), block.data() + block.size(), bytes);
    if (error != std::errc() || end != block.data() + block.size() || bytes < 8 || bytes % 8 != 0 ||
        bytes > kPoolBytes / kCheckedPages) {
      throw std::runtime_error(fmt::format("block '{}': not a multiple of 8 up to 16 MiB", block));
    }
    return bytes;
  }

  void expect(std::string_view wanted) {
    const std::string answer = control_.receive();
    if (answer != wanted) {
      throw std::runtime_error(answer);
    }
  }

  // The first run of a block and batch tries all ways; later ones repeat its choice.
  Way best_way(std::size_t batch) {
    const auto key = std::pair(page_bytes_, batch);
    if (const auto known = best_.find(key); known != best_.end()) {
      return known->second;
    }
    const std::vector<Way> ways = source_.ways(page_bytes_, batch);
    double best_gbps = -1;
    Way best;
    for (int round = 0; round < kCalibrationRounds; ++round) {
      for (const Way& way : ways) {
        check(way);  // Also makes what the library makes at first use.
        const double gbps = measure(way, kCalibrationSeconds);
        if (gbps > best_gbps) {
          best_gbps = gbps;
          best = way;
        }
        if (std::getenv("PEER_VERBOSE") != nullptr) {
          std::cerr << fmt::format("{} {}: {:.3f}\n", page_bytes_, way.name, gbps);
        }
      }
    }
    best_.emplace(key, best);
    return best;
  }

  void pick(std::vector<PageMove>& pages) {
    const std::size_t count = kPoolBytes / page_bytes_;
    for (PageMove& page : pages) {
      page = {.source_offset = random_.below(count) * page_bytes_,
              .target_offset = random_.below(count) * page_bytes_};
    }
  }

  double measure(const Way& way, double seconds) {
    const std::size_t window =
        std::max(2 * way.pages_per_request, std::min(kWindowPages, kWindowBytes / page_bytes_));
    std::vector<PageMove> pages(way.pages_per_request);
    source_.start(way, page_bytes_);
    std::size_t posted = 0;
    std::size_t applied = 0;
    pick(pages);
    const auto start = Clock::now();
    while (seconds_since(start) < seconds) {
      while (posted - applied + pages.size() <= window && source_.submit(pages)) {
        posted += pages.size();
        pick(pages);
      }
      applied += source_.progress();
    }
    drain(posted, applied);
    return static_cast<double>(posted * page_bytes_) / seconds_since(start) / 1e9;
  }

  void drain(std::size_t posted, std::size_t applied) {
    source_.flush();
    for (const auto start = Clock::now(); applied < posted;) {
      applied += source_.progress();
      if (seconds_since(start) > kStallSeconds) {
        throw std::runtime_error(fmt::format("stalled: {} of {} pages complete", applied, posted));
      }
    }
  }

  // Moves pages in the same way to targets that differ, and lets the target look at them: what a
  // peer calls complete must be there.
  void check(const Way& way) {
    const std::size_t count = kPoolBytes / page_bytes_;
    const std::size_t wanted =
        (kCheckedPages + way.pages_per_request - 1) / way.pages_per_request * way.pages_per_request;
    std::vector<PageMove> pages(
        std::min(wanted, count / way.pages_per_request * way.pages_per_request));
    pick(pages);
    const std::size_t first = random_.below(count);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      pages[i].target_offset = (first + i * (count / pages.size())) % count * page_bytes_;
    }
    std::size_t applied = 0;
    source_.start(way, page_bytes_);
    for (std::size_t at = 0; at < pages.size();) {
      if (source_.submit(std::span(pages).subspan(at, way.pages_per_request))) {
        at += way.pages_per_request;
      }
      applied += source_.progress();
    }
    drain(pages.size(), applied);
    std::string message = "check ";
    message.append(reinterpret_cast<const char*>(pages.data()), pages.size() * sizeof(PageMove));
    control_.send(message);
    expect("right");
  }

  Source& source_;
  Control& control_;
  std::byte* pool_;
  std::size_t page_bytes_ = 0;
  Random random_;
  std::map<std::pair<std::size_t, std::size_t>, Way> best_;
};

void serve_source(const Peer& peer, const Options& options, Control& control,
                  const Answers& answers) {
  pin_to(options.source_core);
  std::byte* pool = map_pool(options.huge);
  const std::unique_ptr<Source> source = peer.connect_source(control, pool);
  answers.say(fmt::format(R"(ready {{"version": "{}", "settings": "{}"}})",
                          escape(source->version()), escape(peer.settings)));
  Measurement measurement(*source, control, pool);
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    std::istringstream words(line);
    std::string verb;
    std::string block;
    double seconds = 0;
    std::size_t batch = 0;
    if (!(words >> verb >> block >> seconds >> batch) || verb != "run" || !(seconds > 0)) {
      answers.say(fmt::format(R"({{"error": "not a command: {}"}})", escape(line)));
      continue;
    }
    answers.say(measurement.run(block, seconds, batch));
  }
}

}  // namespace

void Control::send(std::string_view message) const {
  if (message.size() > kMessageBytes || ::send(fd_, message.data(), message.size(), MSG_NOSIGNAL) !=
                                            static_cast<ssize_t>(message.size())) {
    fail_errno("send to the other process");
  }
}

std::string Control::receive() const {
  std::string message(kMessageBytes, '\0');
  ssize_t got = 0;
  do {
    got = ::recv(fd_, message.data(), message.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    fail_errno("receive from the other process");
  }
  if (got == 0) {
    throw std::runtime_error("the other process ended");
  }
  message.resize(static_cast<std::size_t>(got));
  return message;
}

bool Control::has_message() const {
  pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

void set_default(std::string& settings, const char* name, const char* value) {
  setenv(name, value, 0);
  settings += fmt::format("{}{}={}", settings.empty() ? "" : " ", name, std::getenv(name));
}

namespace {

// Throws for what it does not know.
Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--tuned") {
      options.tuned = true;
    } else if (argument == "--huge") {
      options.huge = true;
    } else if (argument == "--cores" && i + 1 < argc &&
               std::sscanf(argv[i + 1], "%d,%d", &options.source_core, &options.target_core) == 2) {
      ++i;
    } else {
      throw std::runtime_error(
          fmt::format("option '{}': there are --tuned, --huge, --cores A,B", argument));
    }
  }
  return options;
}

int run_peer(const Options& options, const Peer& peer) {
  const Answers answers;
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    answers.say(fmt::format(R"({{"error": "socketpair: {}"}})", std::strerror(errno)));
    return 1;
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // However the source ends, the target goes with it.
    if (getppid() != parent) {
      _exit(1);
    }
    close(ends[0]);
    Control control(ends[1]);
    try {
      serve_target(peer, options, control);
    } catch (const std::exception& error) {
      ::send(ends[1], error.what(), std::strlen(error.what()), MSG_NOSIGNAL);
    }
    _exit(1);  // Without the libraries' exit handlers, which may wait for the other side.
  }
  close(ends[1]);
  Control control(ends[0]);
  int code = 0;
  try {
    if (child < 0) {
      fail_errno("fork");
    }
    serve_source(peer, options, control, answers);
  } catch (const std::exception& error) {
    answers.say(fmt::format(R"({{"error": "{}"}})", escape(error.what())));
    code = 1;
  }
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  _exit(code);
}

}  // namespace

int peer_main(int argc, char** argv, Peer (*make)(const Options& options)) {
  try {
    const Options options = parse_options(argc, argv);
    return run_peer(options, make(options));
  } catch (const std::exception& error) {
    fmt::print("{{\"error\": \"{}\"}}\n", escape(error.what()));
    return 2;
  }
}

}  // namespace kvferry::peers
