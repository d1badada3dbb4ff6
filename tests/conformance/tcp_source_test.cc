// What a source does on a tcp lane, as seen by a target that is none of ours.
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/crypto.h"
#include "data_plane/factory.h"
#include "data_plane/lanes/frame.h"
#include "data_plane/tcp/socket.h"
#include "rig.h"

namespace kvferry::data_plane {
namespace {

using layout::Write;

// The other end of a source's lane, which reads when the test wants it to.
class RawTarget {
 public:
  struct Frame {
    FrameHeader header;
    std::vector<IncomingWrite> writes;
    std::vector<std::uint8_t> payload;
    std::uint64_t payload_at = 0;  // in the stream
    Trailer trailer = Trailer::kVoid;
  };

  RawTarget() : listener_(std::move(tcp::listen_on("127.0.0.1", 0).value())) {
    const int bytes = 64 << 10;
    ::setsockopt(listener_.fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
  TargetBlob blob() const { return {"127.0.0.1", listener_.port, 1U << 20, 128}; }

  bool welcome(std::span<const std::uint8_t, 32> secret) {
    if (!readable(listener_.fd.get(), 30'000)) return false;
    fd_ = Fd(::accept(listener_.fd.get(), nullptr, nullptr));
    Nonce nonce{};
    fill_random(nonce);
    std::array<std::uint8_t, kResponseBytes> bytes{};
    if (!send(encode_challenge(nonce)) || !read(bytes)) return false;
    const auto response = parse_response(bytes);
    if (!response) return false;
    return send(encode_welcome(lane_proof(secret, Prover::kTarget, nonce, response->nonce,
                                          response->epoch, response->serial)));
  }
  bool readable(int timeout_ms) { return readable(fd_.get(), timeout_ms); }
  std::optional<Frame> read_frame() {
    Frame frame;
    std::array<std::uint8_t, kHeaderBytes> head{};
    if (!read(head)) return std::nullopt;
    const auto header = parse_header(head);
    if (!header) return std::nullopt;
    frame.header = *header;
    if (header->type != FrameType::kData) return frame;
    for (int i = 0; i < header->count; ++i) {
      std::array<std::uint8_t, kDescriptorBytes> descriptor{};
      if (!read(descriptor)) return std::nullopt;
      frame.writes.push_back(parse_descriptor(descriptor));
    }
    frame.payload.resize(header->payload_bytes);
    std::array<std::uint8_t, kTrailerBytes> tail{};
    if (!read_padding(header->count * kDescriptorBytes)) return std::nullopt;
    frame.payload_at = position_;
    if (!read(frame.payload) || !read_padding(header->payload_bytes) || !read(tail)) {
      return std::nullopt;
    }
    const auto trailer = parse_trailer(tail);
    if (!trailer) return std::nullopt;
    frame.trailer = *trailer;
    return frame;
  }
  bool acknowledge(const Frame& frame, WriteResult result) {
    FrameHeader header;
    header.type = FrameType::kAck;
    header.count = frame.header.count;
    header.sequence = frame.header.sequence;
    std::vector<std::uint8_t> bytes;
    append_header(bytes, header);
    bytes.insert(bytes.end(), frame.header.count, static_cast<std::uint8_t>(result));
    return send(bytes);
  }

 private:
  bool read_padding(std::uint64_t bytes) {
    std::array<std::uint8_t, kStreamAlignment> padding{};
    return read(std::span(padding).first(stream_padding(bytes)));
  }
  static bool readable(int fd, int timeout_ms) {
    pollfd polled{fd, POLLIN, 0};
    return ::poll(&polled, 1, timeout_ms) == 1;
  }
  bool send(const std::vector<std::uint8_t>& bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool read(std::span<std::uint8_t> bytes) {
    while (!bytes.empty()) {
      if (!readable(30'000)) return false;
      const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
      position_ += static_cast<std::uint64_t>(got);
    }
    return true;
  }

  std::uint64_t position_ = 0;  // in what the source has sent
  tcp::Listener listener_;
  Fd fd_;
};

constexpr SessionEpoch kEpoch(1);

// A source with one lane to a target of ours.
struct Scene {
  explicit Scene(const Shape& shape) : pool(shape), item_bytes(shape.item_bytes) {}

  void open() {
    TransportConfig config;
    config.lanes_per_peer = 1;
    source = std::move(make_transport("tcp", config, sink).value());
    ASSERT_TRUE(source->register_regions(pool.regions()));
    SessionLink link;
    link.epoch = kEpoch;
    link.peer_blob = encode_blob(target.blob());
    link.peer_item_bytes = {item_bytes};
    ASSERT_TRUE(source->open_session(link));
    ASSERT_TRUE(target.welcome(link.secret));
  }

  std::atomic<std::uint64_t> clock{0};
  RecordingSink sink{clock};
  Pool pool;
  std::uint64_t item_bytes;
  std::unique_ptr<Transport> source;
  RawTarget target;
};

TEST(TcpSource, PayloadsStandAtMultiplesOfTheStreamsAlignment) {
  constexpr Shape kShape{1, 4'096, 8};
  Scene scene(kShape);
  ASSERT_NO_FATAL_FAILURE(scene.open());
  Write write;
  for (const std::uint64_t length : {1U, 100U, 4'096U, 4'095U, 64U}) {
    write.ticket = TicketId(write.ticket.value() + 1);
    write.length = length;
    scene.source->post(kEpoch, std::span(&write, 1));
    auto frame = scene.target.read_frame();
    while (frame && frame->header.type != FrameType::kData) frame = scene.target.read_frame();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->payload.size(), length);
    EXPECT_EQ(frame->payload_at % kStreamAlignment, 0U) << length;
    ASSERT_TRUE(scene.target.acknowledge(*frame, WriteResult::kLanded));
    ASSERT_TRUE(scene.sink.wait_outcome(write.ticket.value()));
  }
}

// Gives a grant up while its source is filling a slow target's socket and reuses the pages at once.
// Sets saw_zeros when that met a frame in mid-payload; it may also meet one between payload and
// trailer.
void give_up_in_mid_way(bool& saw_zeros) {
  constexpr Shape kLarge{1, 1U << 20, 16};
  Scene scene(kLarge);
  scene.pool.fill_pattern(1);
  Pool before(kLarge);
  before.fill_pattern(1);
  ASSERT_NO_FATAL_FAILURE(scene.open());
  std::vector<Write> writes(kLarge.items);
  for (std::uint32_t i = 0; i < kLarge.items; ++i) {
    writes[i].ticket = TicketId(i + 1);
    writes[i].source_offset = i * kLarge.item_bytes;
    writes[i].target_item = i;
    writes[i].length = kLarge.item_bytes;
  }
  Write marker;
  marker.ticket = TicketId(1'000);
  scene.source->post(kEpoch, writes);
  ASSERT_TRUE(scene.target.readable(30'000));
  // The source is sending. It takes up this refusal only when the socket is full.
  scene.source->post(SessionEpoch(2), std::span(&marker, 1));
  ASSERT_TRUE(scene.sink.wait_outcome(marker.ticket.value()));
  scene.source->give_up(kEpoch, GrantSlot(0), Generation(0));
#if !defined(__SANITIZE_THREAD__)
  scene.pool.fill(std::byte{0x55});
#endif
  std::size_t voided = 0;
  while (scene.sink.snapshot().completed() < writes.size() + 1) {
    if (!scene.target.readable(10)) continue;
    const auto frame = scene.target.read_frame();
    ASSERT_TRUE(frame);
    if (frame->header.type != FrameType::kData) continue;
    const auto original = before.item(0, frame->writes.front().item);
    const bool is_original =
        std::memcmp(original.data(), frame->payload.data(), original.size()) == 0;
    const bool is_valid = frame->trailer == Trailer::kValid;
    EXPECT_TRUE(is_original || !is_valid) << "a valid frame with bytes of the page's next use";
    if (!is_valid) {
      ++voided;
      saw_zeros = saw_zeros || frame->payload.back() == 0;
    }
    ASSERT_TRUE(
        scene.target.acknowledge(*frame, is_valid ? WriteResult::kLanded : WriteResult::kTorn));
  }
  EXPECT_LE(voided, 1U);
  for (const auto& [ticket, record] : scene.sink.snapshot().tickets) {
    EXPECT_EQ(record.outcomes.size(), 1U);
  }
}

TEST(TcpSource, AFrameGivenUpInMidWayIsFinishedWithZerosAndVoid) {
  bool saw_zeros = false;
  for (int attempt = 0; attempt < 10 && !saw_zeros; ++attempt) {
    ASSERT_NO_FATAL_FAILURE(give_up_in_mid_way(saw_zeros));
  }
  EXPECT_TRUE(saw_zeros) << "no give-up met a frame in mid-payload";
}

}  // namespace
}  // namespace kvferry::data_plane
