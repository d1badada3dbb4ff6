// Messages between the bench's three processes (controller, source worker, target worker), over
// socket pairs. All run the same binary, so a message's numbers need no encoding.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "bench/transfer/measurement.h"
#include "data_plane/fd.h"
#include "kvferry/status.h"

namespace kvferry::bench {

enum class Kind : std::uint32_t {
  // Controller to worker.
  kSetup = 1,  // text: WorkerSetup
  kPrepare,    // text: the block's name; numbers[0]: pages per grant; every engine gets ready
  kRun,        // text: the engine; numbers: RunOrder
  kQuit,
  // Worker to controller.
  kReady,   // ends kSetup and kPrepare; text: the target's blob of its last engine
  kResult,  // ends kRun; numbers: RunResult or PostResult
  kFailed,  // ends any of them; text says why
  // Between the workers.
  kPool,     // source: its pool's descriptor
  kAddress,  // text: how to reach the other end
  kOpen,     // the other end may open its session
  kGrant,    // target: write this grant
  kEnd,      // target: no more grants in this run; source: all of it has its outcome
};

struct Message {
  Kind kind = Kind::kFailed;
  Numbers numbers{};
  std::string text;
  data_plane::Fd fd;  // travels with the message
};

class Channel {
 public:
  using Fd = data_plane::Fd;

  explicit Channel(Fd fd) : fd_(std::move(fd)) {}
  static Result<std::pair<Channel, Channel>> make_pair();

  int fd() const { return fd_.get(); }
  Status send(const Message& message);
  // Nothing when the time is over; a failure when the other end is gone.
  Result<std::optional<Message>> receive(std::chrono::milliseconds patience);
  // Waits for a message of this kind; any other one fails, a kFailed with its text.
  Result<Message> expect(Kind kind, std::chrono::milliseconds patience);

 private:
  Fd fd_;
};

}  // namespace kvferry::bench
