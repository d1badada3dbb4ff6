// A TCP client without any HTTP of its own, to send what no sane client sends. All waits end after
// ten seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::net {

class RawClient {
 public:
  explicit RawClient(const std::string& address);  // 127.0.0.1:port
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool send(std::string_view data);
  void half_close();
  // Reads until the text has been seen, or to the end of the connection when it is empty. What was
  // read before counts too. Empty when the text did not come.
  std::string read_until(std::string_view text);
  bool at_end();  // waits for the end of the connection

 private:
  bool read_some();

  int fd_ = -1;
  std::string received_;
};

// A listening socket of its own that answers nothing unless told to.
class RawListener {
 public:
  RawListener();
  ~RawListener();
  RawListener(const RawListener&) = delete;
  RawListener& operator=(const RawListener&) = delete;

  std::string address() const;
  // Accepts one connection, reads a request head and sends the text. Then closes, or keeps the
  // connection until the listener goes.
  void serve_once(std::string_view answer, bool close_after);
  // Waits for the next request on the connection that was kept and closes it unanswered, so long
  // after it came.
  void drop_kept_at_request(std::chrono::milliseconds after = {});
  // Whether anybody has connected who was not served.
  bool has_pending_connection() const;

 private:
  int fd_ = -1;
  int kept_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace kvferry::net
