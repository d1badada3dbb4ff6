// A kvferry_writer as a child of the test: started, told, killed, stopped and resumed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data_plane/fd.h"
#include "rig.h"

namespace kvferry::data_plane {

std::optional<std::vector<std::uint8_t>> bytes_of_hex(std::string_view text);

class WriterProcess {
 public:
  struct Flushed {
    std::uint64_t posted = 0;
    std::uint64_t landed = 0;
    std::uint64_t refused = 0;
    std::uint64_t unknown = 0;
    std::uint64_t quiet = 0;
    std::uint64_t repeated = 0;
  };

  // Starts the executable and learns how it is reached.
  WriterProcess(const Case& c, std::uint32_t write_timeout_ms = 60'000);
  ~WriterProcess();  // as kill_now()
  WriterProcess(const WriterProcess&) = delete;
  WriterProcess& operator=(const WriterProcess&) = delete;

  const std::vector<std::uint8_t>& blob() const { return blob_; }
  // Opens the session whose other end has been opened; it writes from here on.
  bool connect(const SessionLink& target_end, std::span<const std::uint8_t> target_blob);
  void set_generation(std::uint32_t slot, std::uint64_t generation);
  // Waits until everything that it posted has come to its end; then it goes on.
  std::optional<Flushed> flush();

  void kill_now();  // SIGKILL, and waits for its end
  void stop_now();  // SIGSTOP, and waits until it is stopped
  void resume();

 private:
  bool tell(const std::string& line);
  std::optional<std::string> read_line();

  pid_t pid_ = -1;
  Fd channel_;  // its input and its output
  std::string read_;
  std::vector<std::uint8_t> blob_;
};

}  // namespace kvferry::data_plane
