#include "raw_lane.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "recording_sink.h"

namespace kvferry::data_plane {
namespace {

constexpr int kPatienceMs = static_cast<int>(std::chrono::milliseconds(kPatience).count());

bool wait_ready(int fd, short events) {
  pollfd polled{fd, events, 0};
  return ::poll(&polled, 1, kPatienceMs) == 1;
}

}  // namespace

std::optional<RawLane> RawLane::connect(const TargetBlob& target) {
  auto fd = tcp::start_connect(target.host, target.port);
  if (!fd || !wait_ready(fd->get(), POLLOUT)) return std::nullopt;
  if (!tcp::connect_error(fd->get()).empty()) return std::nullopt;
  RawLane lane;
  lane.fd_ = std::move(*fd);
  std::array<std::uint8_t, kChallengeBytes> challenge{};
  if (!lane.receive(challenge)) return std::nullopt;
  const auto nonce = parse_challenge(challenge);
  if (!nonce) return std::nullopt;
  lane.target_nonce_ = *nonce;
  return lane;
}

bool RawLane::authenticate(std::span<const std::uint8_t, 32> secret, SessionEpoch epoch,
                           std::uint32_t serial) {
  LaneResponse response;
  response.epoch = epoch;
  response.serial = serial;
  fill_random(response.nonce);
  response.proof =
      lane_proof(secret, Prover::kSource, target_nonce_, response.nonce, epoch, serial);
  std::array<std::uint8_t, kWelcomeBytes> welcome{};
  if (!send(encode_response(response)) || !receive(welcome)) return false;
  const auto proof = parse_welcome(welcome);
  return proof && *proof == lane_proof(secret, Prover::kTarget, target_nonce_, response.nonce,
                                       epoch, serial);
}

bool RawLane::send(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return false;
    } else if (!wait_ready(fd_.get(), POLLOUT)) {
      return false;
    }
  }
  return true;
}

bool RawLane::receive(std::span<std::uint8_t> bytes) {
  while (!bytes.empty()) {
    if (!wait_ready(fd_.get(), POLLIN)) return false;
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got == 0) return false;
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (errno != EAGAIN && errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::vector<std::uint8_t> RawLane::frame(std::span<const layout::Write> writes,
                                         std::uint64_t sequence, std::uint8_t fill) {
  FrameHeader header;
  header.type = FrameType::kData;
  header.count = static_cast<std::uint16_t>(writes.size());
  header.slot = writes.front().slot.value();
  header.generation = writes.front().generation.value();
  header.sequence = sequence;
  for (const layout::Write& write : writes) header.payload_bytes += write.length;
  std::vector<std::uint8_t> bytes;
  append_header(bytes, header);
  for (const layout::Write& write : writes) append_descriptor(bytes, write);
  append_stream_padding(bytes, bytes.size());
  bytes.insert(bytes.end(), header.payload_bytes, fill);
  append_stream_padding(bytes, header.payload_bytes);
  append_trailer(bytes, Trailer::kValid);
  return bytes;
}

std::optional<RawLane::Answer> RawLane::any_answer() {
  std::array<std::uint8_t, kHeaderBytes> bytes{};
  if (!receive(bytes)) return std::nullopt;
  const auto header = parse_header(bytes);
  if (!header) return std::nullopt;
  Answer answer;
  answer.header = *header;
  std::vector<std::uint8_t> results(header->count);
  if (!receive(results)) return std::nullopt;
  for (const std::uint8_t result : results) {
    answer.results.push_back(static_cast<WriteResult>(result));
  }
  return answer;
}

std::optional<RawLane::Answer> RawLane::answer() {
  for (;;) {
    auto answer = any_answer();
    if (!answer || answer->header.type != FrameType::kHeartbeat) return answer;
  }
}

bool RawLane::wait_heartbeat() {
  for (;;) {
    const auto answer = any_answer();
    if (!answer) return false;
    if (answer->header.type == FrameType::kHeartbeat) return true;
  }
}

std::size_t RawLane::bytes_until_closed() {
  std::size_t total = 0;
  std::uint8_t bytes[256];
  for (;;) {
    if (!wait_ready(fd_.get(), POLLIN)) return total;
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
    if (got > 0) {
      total += static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return total;
    }
  }
}

bool RawLane::wait_closed() {
  std::uint8_t bytes[256];
  for (;;) {
    if (!wait_ready(fd_.get(), POLLIN)) return false;
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
  }
}

}  // namespace kvferry::data_plane
