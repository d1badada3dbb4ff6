// A TCP relay between two ends, with which a test or a drill makes a network misbehave: slow, far,
// cut, mute, half open, or wrong in single bits. It knows nothing of what it carries.
//
// A way is one direction of every connection; a connection's number is its place in the order in
// which they were accepted, from 0. What is set for all connections holds for those to come, too.
//
// Threads: one own thread moves the bytes, and waits for events and due times only. All methods may
// be called from any thread; they return at once and hold for each byte that the relay has not yet
// passed on.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "data_plane/fd.h"
#include "data_plane/tcp/socket.h"

namespace kvferry::support {

enum class Way : std::uint8_t { kToTarget, kToSource };

// How bytes fare that go one way.
struct Conduct {
  std::chrono::microseconds delay{0};  // between a byte's coming and its going on
  std::uint64_t bytes_per_s = 0;       // of each connection; 0: no limit
  // Bytes, and the end of the stream, are taken and thrown away: the sender sees a peer whose
  // kernel acknowledges everything and whose process never answers.
  bool swallow = false;
  std::uint64_t flip_one_in = 0;  // one in so many bytes has one bit flipped; 0: none
  std::uint64_t flip_seed = 0;    // the same bytes of the same connection for the same seed
};

class Relay {
 public:
  using Clock = std::chrono::steady_clock;

  // Listens on a free port of 127.0.0.1; connects to the target anew for each connection.
  Relay(std::string target_host, std::uint16_t target_port);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::uint16_t port() const { return listener_.port; }

  void set(Way way, const Conduct& conduct);
  void set(std::size_t connection, Way way, const Conduct& conduct);
  // Both ways of all connections, and of those to come: none is refused, none is closed.
  void swallow(bool swallowed);
  // While frozen nothing is read, in neither way, and connections stay open: senders are held up.
  void freeze(bool frozen);

  // Closes every connection, on both sides.
  void cut();
  // Once so many further bytes have gone this way, over all connections or the one, that is cut;
  // with 0, when the next byte comes. What went before the cut does arrive. Once.
  void cut_after(std::uint64_t bytes) { cut_after(Way::kToTarget, bytes); }
  void cut_after(Way way, std::uint64_t bytes, std::optional<std::size_t> connection = {});
  // The end of the stream goes this way after what is under way; the other way stays as it is.
  void half_close(Way way, std::optional<std::size_t> connection = {});
  // Flips the lowest bit of one byte: the next that comes this way is byte 0. Once.
  void flip_byte(Way way, std::uint64_t index, std::optional<std::size_t> connection = {});

  bool has_cut();  // since the last cut_after()
  // Whether it came to that within patience.
  bool wait_cut(std::chrono::milliseconds patience);
  bool wait_taken(Way way, std::uint64_t bytes, std::chrono::milliseconds patience);
  std::uint64_t taken(Way way);   // bytes read from the sender, of all connections
  std::uint64_t passed(Way way);  // bytes written to the receiver
  std::size_t connections();      // open now

 private:
  struct Piece {
    Clock::time_point came;
    std::vector<std::uint8_t> bytes;
    std::size_t start = 0;
  };
  struct Pipe {
    Conduct conduct;
    Prng flips{0};
    std::deque<Piece> pieces;
    std::size_t queued = 0;
    Clock::time_point next_send;
    bool has_ended = false;   // its sender has, or half_close() said so
    bool end_passed = false;  // and its receiver knows
    data_plane::Fd* from = nullptr;
    data_plane::Fd* to = nullptr;
  };
  struct Link {
    std::size_t number = 0;
    data_plane::Fd source;
    data_plane::Fd target;
    std::array<Pipe, 2> pipes;  // by Way
    bool is_broken = false;
  };
  struct Countdown {
    Way way;
    std::uint64_t bytes_left;
    std::optional<std::size_t> connection;  // none: all together
    bool concerns(const Link& link, Way other) const {
      return way == other && (!connection || *connection == link.number);
    }
  };

  static constexpr std::size_t index(Way way) { return static_cast<std::size_t>(way); }
  template <typename Change>
  void change(Change&& apply);
  void conduct(Link& link, Way way, const Conduct& conduct);
  void run();
  bool turn();
  std::optional<Clock::time_point> next_due(Clock::time_point now) const;
  void accept_one();
  void pump(Link& link);
  void take(Link& link, Way way, Clock::time_point now);
  void give(Link& link, Way way, Clock::time_point now);
  void flip(Link& link, Way way, std::vector<std::uint8_t>& bytes);
  std::uint64_t allowance(const Link& link, Way way) const;
  void count_passed(Link& link, Way way, std::uint64_t bytes);
  void fire_cuts();
  void break_end(Link& link, Way way);

  const std::string target_host_;
  const std::uint16_t target_port_;
  data_plane::tcp::Listener listener_;
  data_plane::Fd wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Link>> links_;
  std::array<Conduct, 2> conduct_;
  std::array<std::uint64_t, 2> taken_{};
  std::array<std::uint64_t, 2> passed_{};
  std::vector<Countdown> cuts_;
  std::vector<Countdown> flips_;
  std::size_t accepted_ = 0;
  bool cut_now_ = false;
  bool frozen_ = false;
  bool stopping_ = false;
  bool has_cut_ = false;
  std::thread thread_;
};

}  // namespace kvferry::support
