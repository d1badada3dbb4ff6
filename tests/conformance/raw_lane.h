// A writer made of a plain socket, which does what no honest source would: stops in mid-frame,
// names what it was not granted, sends tickets twice, sends garbage.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data_plane/lanes/frame.h"
#include "data_plane/receive_gate.h"
#include "data_plane/tcp/socket.h"

namespace kvferry::data_plane {

class RawLane {
 public:
  struct Answer {
    FrameHeader header;
    std::vector<WriteResult> results;
  };

  // Connects and reads the challenge; nothing when that fails within patience.
  static std::optional<RawLane> connect(const TargetBlob& target);
  // Whether the target welcomed this lane, with the right proof.
  bool authenticate(std::span<const std::uint8_t, 32> secret, SessionEpoch epoch,
                    std::uint32_t serial);

  bool send(std::span<const std::uint8_t> bytes);
  // A whole data frame whose payload is filled with `fill`.
  static std::vector<std::uint8_t> frame(std::span<const layout::Write> writes,
                                         std::uint64_t sequence, std::uint8_t fill);
  // The next answer that is not a heartbeat; nothing when the lane was closed or patience ran out.
  std::optional<Answer> answer();
  bool wait_heartbeat();
  // Whether the target closes the connection, whatever it sends before.
  bool wait_closed();
  // Bytes that came before the end or before patience (short) ran out.
  std::size_t bytes_until_closed();

 private:
  bool receive(std::span<std::uint8_t> bytes);
  std::optional<Answer> any_answer();

  Fd fd_;
  Nonce target_nonce_{};
};

}  // namespace kvferry::data_plane
