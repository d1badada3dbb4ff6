#include "data_plane/tcp/tcp_target_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvferry::data_plane::tcp {
namespace {

// Steps of one lane before the others of its loop get their turn.
constexpr int kStepsPerTurn = 16;
// A source that does not read its answers is not read from either.
constexpr std::size_t kMaxOutputBytes = 256U << 10;
// Answers held back for a first copy; a source that sends more second copies than this is not ours.
constexpr std::size_t kMaxHeldAnswers = 64;

}  // namespace

TcpTargetLane::TcpTargetLane(TargetLaneParts&& parts) : TargetLane(std::move(parts)) {
  expect(Stage::kHeader, kHeaderBytes);
}

TcpTargetLane::~TcpTargetLane() { close(); }

void TcpTargetLane::start(const Digest& proof) {
  last_sent_ = loop_.now();
  last_received_ = loop_.now();
  interest_ = EPOLLIN;
  token_ = loop_.add(fd_.get(), interest_, this);
  output_ = encode_welcome(proof);
  flush();
}

void TcpTargetLane::expect(Stage stage, std::size_t bytes) {
  stage_ = stage;
  input_wanted_ = bytes;
  input_size_ = 0;
  if (input_.size() < bytes) input_.resize(bytes);
}

void TcpTargetLane::expect_padded(Stage stage, std::size_t bytes) {
  expect(stage, bytes + stream_padding(bytes));
}

void TcpTargetLane::expect_trailer() {
  expect(Stage::kTrailer, stream_padding(header_.payload_bytes) + kTrailerBytes);
}

void TcpTargetLane::on_ready(std::uint32_t epoll_events) {
  if ((epoll_events & EPOLLOUT) != 0) flush();
  if (is_closed() || (epoll_events & ~static_cast<std::uint32_t>(EPOLLOUT)) == 0) return;
  for (int i = 0; i < kStepsPerTurn; ++i) {
    if (output_.size() - output_sent_ > kMaxOutputBytes) break;
    const Step step = read_step();
    if (step == Step::kLost) return;
    if (step == Step::kNothing) break;
  }
  flush();
}

TcpTargetLane::Step TcpTargetLane::read_step() {
  // Bytes keep their place modulo the stream's alignment.
  const std::span<std::byte> room = reader_.scratch().subspan(received_ % kStreamAlignment);
  const std::ptrdiff_t got = ::recv(fd_.get(), room.data(), room.size(), 0);
  if (got == 0) {
    lose(FailureCode::kPeerLost, "the source closed the lane", FailureWhere::kPeer);
    return Step::kLost;
  }
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return Step::kNothing;
    lose(FailureCode::kPeerLost, errno_text("recv"), FailureWhere::kPath);
    return Step::kLost;
  }
  received_ += static_cast<std::uint64_t>(got);
  last_received_ = loop_.now();
  take_in(room.first(static_cast<std::size_t>(got)));
  return is_closed() ? Step::kLost : Step::kMoved;
}

void TcpTargetLane::take_in(std::span<const std::byte> bytes) {
  while (!bytes.empty() && !is_closed()) {
    bytes = stage_ == Stage::kPayload ? take_payload(bytes) : take_message(bytes);
  }
}

std::span<const std::byte> TcpTargetLane::take_payload(std::span<const std::byte> bytes) {
  loop_.stay_awake();
  frame_.move_part(
      reader_,
      [&](std::span<const iovec> places) {
        const std::size_t before = bytes.size();
        for (const iovec& place : places) {
          const std::size_t n = std::min(place.iov_len, bytes.size());
          if (n == 0) break;
          std::memcpy(place.iov_base, bytes.data(), n);
          bytes = bytes.subspan(n);
        }
        return static_cast<std::ptrdiff_t>(before - bytes.size());
      },
      [&](std::span<const iovec> places) {
        const std::size_t n = std::min(places.front().iov_len, bytes.size());
        bytes = bytes.subspan(n);
        return static_cast<std::ptrdiff_t>(n);
      });
  if (frame_.payload_complete()) expect_trailer();
  return bytes;
}

std::span<const std::byte> TcpTargetLane::take_message(std::span<const std::byte> bytes) {
  const std::size_t n = std::min(input_wanted_ - input_size_, bytes.size());
  std::memcpy(input_.data() + input_size_, bytes.data(), n);
  input_size_ += n;
  if (input_size_ == input_wanted_) on_message();
  return bytes.subspan(n);
}

void TcpTargetLane::on_message() {
  switch (stage_) {
    case Stage::kHeader:
      on_header();
      break;
    case Stage::kDescriptors:
      on_descriptors();
      break;
    case Stage::kEntries:
      on_entries();
      break;
    case Stage::kTrailer:
      on_trailer();
      break;
    case Stage::kPayload:
      break;
  }
}

void TcpTargetLane::on_header() {
  const auto header =
      parse_header(std::span<const std::uint8_t, kHeaderBytes>(input_.data(), kHeaderBytes));
  const char* complaint = nullptr;
  if (!header) {
    complaint = "bytes that are no frame header";
  } else if (header->type == FrameType::kHeartbeat) {
    if (header->count != 0) complaint = "a heartbeat with content";
  } else if (header->type == FrameType::kResolve) {
    if (header->count == 0 || header->count > kMaxResolveEntries) {
      complaint = "a resolve request outside its limits";
    }
  } else if (header->type != FrameType::kData) {
    complaint = "an answer from the side that asks";
  } else if (header->count == 0 || header->count > limits_.frame_writes) {
    complaint = "a frame with no or too many writes";
  } else if (header->payload_bytes > limits_.frame_bytes &&
             (header->count != 1 || header->payload_bytes > limits_.largest_write_bytes)) {
    complaint = "a frame with too many bytes";
  }
  if (complaint != nullptr) {
    lose(FailureCode::kMalformed, std::string("the lane has lost its framing: ") + complaint,
         FailureWhere::kPeer);
    return;
  }
  header_ = *header;
  if (header_.type == FrameType::kData) {
    expect_padded(Stage::kDescriptors, std::size_t{header_.count} * descriptor_bytes());
  } else if (header_.type == FrameType::kResolve) {
    expect_padded(Stage::kEntries, std::size_t{header_.count} * kResolveEntryBytes);
  } else {
    expect(Stage::kHeader, kHeaderBytes);
  }
}

std::size_t TcpTargetLane::descriptor_bytes() const {
  return kDescriptorBytes + (header_.has_digests ? kDigestBytes : 0);
}

void TcpTargetLane::on_descriptors() {
  writes_.clear();
  digests_.clear();
  std::uint64_t total = 0;
  bool consistent = true;
  for (std::size_t i = 0; i < header_.count; ++i) {
    const std::uint8_t* const descriptor = input_.data() + i * descriptor_bytes();
    writes_.push_back(parse_descriptor(
        std::span<const std::uint8_t, kDescriptorBytes>(descriptor, kDescriptorBytes)));
    if (header_.has_digests) {
      digests_.push_back(parse_digest(std::span<const std::uint8_t, kDigestBytes>(
          descriptor + kDescriptorBytes, kDigestBytes)));
    }
    // Compared with what is left, so that no sum can wrap.
    consistent = consistent && writes_.back().length <= header_.payload_bytes - total;
    if (consistent) total += writes_.back().length;
  }
  if (!consistent || total != header_.payload_bytes) {
    lose(FailureCode::kMalformed,
         "the lane has lost its framing: lengths that do not add up to the frame's",
         FailureWhere::kPeer);
    return;
  }
  frame_.begin(reader_, session_->slots, GrantSlot(header_.slot), Generation(header_.generation),
               writes_, digests_);
  if (frame_.payload_complete()) {
    expect_trailer();
  } else {
    stage_ = Stage::kPayload;
  }
}

void TcpTargetLane::on_trailer() {
  const auto trailer = parse_trailer(std::span<const std::uint8_t, kTrailerBytes>(
      input_.data() + stream_padding(header_.payload_bytes), kTrailerBytes));
  if (!trailer) {
    lose(FailureCode::kMalformed, "the lane has lost its framing: no trailer after a frame",
         FailureWhere::kPeer);
    return;
  }
  frame_.finish(*trailer == Trailer::kValid);
  expect(Stage::kHeader, kHeaderBytes);
  if (frame_.answers(results_)) {
    frame_.close();
    append_answers(output_, FrameType::kAck, header_.sequence, results_);
  } else if (held_.size() < kMaxHeldAnswers) {
    held_.push_back(std::make_unique<HeldAnswer>());
    held_.back()->sequence = header_.sequence;
    std::swap(held_.back()->frame, frame_);
    session_->held_answers.fetch_add(1);
    // The first copy may have ended between the look and the count.
    retry_held_answers();
  } else {
    lose(FailureCode::kMalformed, "too many second copies of tickets that are under way",
         FailureWhere::kPeer);
    return;
  }
  owner_.on_claims_ended(*session_);
}

void TcpTargetLane::retry_held_answers() {
  if (is_closed()) return;
  std::erase_if(held_, [this](const std::unique_ptr<HeldAnswer>& held) {
    if (!held->frame.answers(results_)) return false;
    append_answers(output_, FrameType::kAck, held->sequence, results_);
    session_->held_answers.fetch_sub(1);
    return true;
  });
  flush();
}

void TcpTargetLane::on_entries() {
  const std::size_t bytes = std::size_t{header_.count} * kResolveEntryBytes;
  // Before the lane can be lost, so that its state is whole.
  expect(Stage::kHeader, kHeaderBytes);
  ask_owner(header_.sequence, header_.slot, std::span(input_).first(bytes));
}

void TcpTargetLane::answer_resolve(std::uint64_t request, std::span<const WriteResult> results) {
  if (is_closed()) return;
  append_answers(output_, FrameType::kResolved, request, results);
  flush();
}

void TcpTargetLane::tick(Instant now) {
  if (is_closed()) return;
  if (now - last_received_ >= limits_.timeout) {
    lose(FailureCode::kPeerLost, "the source was silent on this lane for lane_timeout_ms",
         FailureWhere::kPath);
    return;
  }
  if (now - last_sent_ >= limits_.heartbeat && output_.empty()) {
    append_header(output_, FrameHeader{});
    flush();
  }
}

void TcpTargetLane::flush() {
  while (!is_closed() && output_sent_ < output_.size()) {
    const ssize_t sent = ::send(fd_.get(), output_.data() + output_sent_,
                                output_.size() - output_sent_, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      lose(FailureCode::kPeerLost, errno_text("send"), FailureWhere::kPath);
      return;
    }
    last_sent_ = loop_.now();
    output_sent_ += static_cast<std::size_t>(sent);
  }
  if (is_closed()) return;
  if (output_sent_ == output_.size()) {
    output_.clear();
    output_sent_ = 0;
  }
  update_interest();
}

void TcpTargetLane::update_interest() {
  std::uint32_t wanted = 0;
  if (output_.size() - output_sent_ <= kMaxOutputBytes) wanted |= EPOLLIN;
  if (!output_.empty()) wanted |= EPOLLOUT;
  if (wanted == interest_) return;
  interest_ = wanted;
  loop_.change(token_, fd_.get(), interest_);
}

void TcpTargetLane::close() {
  if (is_closed()) return;
  if (token_ != 0) loop_.remove(token_, fd_.get());
  fd_.abort();
  // The socket is closed first: what is told about the frame is then final.
  frame_.abandon();
  session_->held_answers.fetch_sub(static_cast<std::uint32_t>(held_.size()));
  held_.clear();
}

}  // namespace kvferry::data_plane::tcp
