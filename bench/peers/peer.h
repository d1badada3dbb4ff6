// What every peer in C++ has in common: the lines it speaks with the bench, its two processes,
// their pools, the measurement and the check that what was counted has arrived.
//
// The bench starts a peer's command once and then talks to it by lines:
//   <- ready {"version": "...", "settings": "..."}
//   -> run BLOCK SECONDS BATCH      <- {"gbps": x, "way": "..."}   or {"error": "..."}
//   -> quit
// BLOCK is the bytes of a page or `kv-mix` (32 KiB); BATCH is pages a request, 0 the best that the
// peer knows. A request names random pages of a 1 GiB source pool and as many random pages of the
// target's; a page counts once the source knows that it is applied at the target.
//
// The command is the source and forks the target before any library starts. Between runs both
// processes block without spinning and hold no pool memory, so that many peers can stay up at once
// beside each other without a part in each other's figures.
//
// Errors are std::runtime_error: these programs end at the first one, after a line that says it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::peers {

inline constexpr std::size_t kPoolBytes = std::size_t{1} << 30;

// Offsets of one page in the two pools.
struct PageMove {
  std::uint64_t source_offset = 0;
  std::uint64_t target_offset = 0;
};

// A connection between the two processes for set-up and commands; messages keep their bounds.
class Control {
 public:
  explicit Control(int fd) : fd_(fd) {}
  void send(std::string_view message) const;
  // Blocks. Throws when the other process is gone.
  std::string receive() const;
  // Without blocking: true when receive() would return at once.
  bool has_message() const;

 private:
  int fd_;
};

// One way of the peer's interface to move pages: the measurement tries all that fit a block and
// keeps the fastest.
struct Way {
  std::string name;
  int kind = 0;  // The peer's own number for it.
  std::size_t pages_per_request = 1;
};

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string version() const = 0;
  virtual std::vector<Way> ways(std::size_t page_bytes, std::size_t batch) const = 0;
  virtual void start(const Way& way, std::size_t page_bytes) = 0;
  // False when the peer takes no more now; then progress() before the next try.
  virtual bool submit(std::span<const PageMove> pages) = 0;
  // Hurries what only waits for more to come; called when no more will.
  virtual void flush() {}
  // Returns the pages known as applied since the last call.
  virtual std::size_t progress() = 0;
};

class Target {
 public:
  virtual ~Target() = default;
  virtual void start(std::size_t page_bytes) = 0;
  virtual void progress() = 0;
};

// A peer: its libraries are first touched in connect_*, one for each process.
struct Peer {
  std::string settings;  // Stated in the ready line.
  std::unique_ptr<Source> (*connect_source)(Control& control, std::byte* pool) = nullptr;
  std::unique_ptr<Target> (*connect_target)(Control& control, std::byte* pool) = nullptr;
};

// Of the command: --tuned, --huge, --cores A,B.
struct Options {
  bool tuned = false;
  bool huge = false;  // Pools ask for huge pages.
  int source_core = 0;
  int target_core = 1;
};

// Sets an environment variable unless the caller of the program set it, and adds it to the text of
// the settings either way.
void set_default(std::string& settings, const char* name, const char* value);

// The whole of main(): reads the options, makes the peer and runs it until `quit` or the end of
// stdin. Returns the exit code; 2 with an error line for options that can't be.
int peer_main(int argc, char** argv, Peer (*make)(const Options& options));

}  // namespace kvferry::peers
