// A TCP relay between the two ends of a transport, with which a test cuts and freezes lanes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data_plane/tcp/socket.h"

namespace kvferry::data_plane {

class Relay {
 public:
  Relay(std::string target_host, std::uint16_t target_port);
  ~Relay();

  std::uint16_t port() const { return listener_.port; }
  // Shuts every connection down, in both directions.
  void cut();
  // Lets this many further bytes of all connections pass to the target, then cuts once.
  void cut_after(std::uint64_t bytes);
  bool has_cut();
  // While frozen nothing passes, in neither direction, and connections stay open.
  void freeze(bool frozen);

 private:
  struct Link {
    Fd source;
    Fd target;
    std::vector<std::uint8_t> to_target;
    std::vector<std::uint8_t> to_source;
    bool is_broken = false;
  };

  void run();
  void accept_one();
  void pump(Link& link);
  bool move(int from, int to, std::vector<std::uint8_t>& buffer, bool counts);
  void wake();

  const std::string target_host_;
  const std::uint16_t target_port_;
  tcp::Listener listener_;
  Fd wake_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Link>> links_;
  bool cut_now_ = false;
  bool frozen_ = false;
  bool stopping_ = false;
  bool counting_ = false;
  bool has_cut_ = false;
  std::uint64_t bytes_left_ = 0;
  std::thread thread_;
};

}  // namespace kvferry::data_plane
