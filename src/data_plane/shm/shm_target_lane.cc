#include "data_plane/shm/shm_target_lane.h"

#include <sys/epoll.h>

#include <algorithm>

#include "data_plane/shm/unix_socket.h"

namespace kvferry::data_plane::shm {
namespace {

// Copied for one lane before the others of its loop get their turn.
constexpr std::uint64_t kBytesPerTurn = 8U << 20;
constexpr std::size_t kDescriptorsPerTake = 256;
constexpr std::size_t kQuestionBytes =
    kHeaderBytes + std::size_t{kMaxResolveEntries} * kResolveEntryBytes;

}  // namespace

ShmTargetLane::ShmTargetLane(TargetLaneParts&& parts)
    : TargetLane(std::move(parts)),
      taken_(kDescriptorsPerTake),
      input_(std::max(kMaxAttachBytes, kQuestionBytes)) {}

ShmTargetLane::~ShmTargetLane() { close(); }

void ShmTargetLane::start(const Digest& proof) {
  since_ = loop_.now();
  socket_token_ = loop_.add(fd_.get(), EPOLLIN, this);
  const auto sent = send_message(fd_.get(), encode_welcome(proof));
  if (!sent || !*sent) {
    lose(FailureCode::kPeerLost, "the welcome could not be sent", FailureWhere::kPath);
  }
}

void ShmTargetLane::tick(Instant now) {
  // An attached source owes nothing: its silence is the control link's to judge.
  if (is_closed() || ring_ || now - since_ < limits_.timeout) return;
  lose(FailureCode::kPeerLost, "the source did not attach within lane_timeout_ms",
       FailureWhere::kPath);
}

void ShmTargetLane::on_ready(std::uint32_t) {
  while (!is_closed()) {
    auto received = receive_message(fd_.get(), input_, kAttachFixedFds + kMaxAttachPools);
    if (!received) {
      lose(received.error().code, received.error().what, FailureWhere::kPeer);
      return;
    }
    if (!received->has_value()) return;
    if ((*received)->size == 0) {
      lose(FailureCode::kPeerLost, "the source closed the lane", FailureWhere::kPeer);
      return;
    }
    const auto message = std::span<const std::uint8_t>(input_).first((*received)->size);
    const bool is_fine =
        !(*received)->truncated &&
        (ring_ ? on_question(message) : on_attach(message, std::move((*received)->fds)));
    if (!is_fine) {
      lose(FailureCode::kMalformed, "a message that is neither an attach nor a question",
           FailureWhere::kPeer);
      return;
    }
  }
}

bool ShmTargetLane::on_attach(std::span<const std::uint8_t> message, std::vector<Fd> fds) {
  const auto parsed = parse_attach(message);
  if (!parsed || fds.size() != kAttachFixedFds + parsed->pool_count) return false;
  if (auto attached = attach(*parsed, std::move(fds)); !attached) {
    // The source goes another way; this was never a lane.
    [[maybe_unused]] const auto sent =
        send_message(fd_.get(), encode_attach_reply(Refused{attached.error().what}));
    close();
    owner_.on_lane_over(*this);
    return true;
  }
  const int answers = ring_->fd();
  const auto sent =
      send_message(fd_.get(), encode_attach_reply(Attached{}), std::span<const int>(&answers, 1));
  if (!sent || !*sent) return false;
  bell_token_ = loop_.add(work_bell_.get(), EPOLLIN, &bell_watch_);
  if (pidfd_.is_open()) pidfd_token_ = loop_.add(pidfd_.get(), EPOLLIN, &pid_watch_);
  work();
  return true;
}

Status ShmTargetLane::attach(const Attach& attach, std::vector<Fd> fds) {
  const auto peer = peer_credentials(fd_.get());
  if (!peer) return tl::unexpected(peer.error());
  if (peer->pid != 0) {
    // Optional: the socket tells of a death, too, unless a child of the source still holds it.
    if (auto pidfd = open_pidfd(peer->pid)) pidfd_ = std::move(*pidfd);
  }
  auto submissions = PeerMemory::map(std::move(fds[0]), PeerMemory::Use::kRing,
                                     submission_bytes(attach.ring_entries));
  if (!submissions) return tl::unexpected(submissions.error());
  auto ring = RingReader::create(std::move(*submissions), attach.ring_entries);
  if (!ring) return tl::unexpected(ring.error());
  work_bell_ = std::move(fds[1]);
  source_bell_ = std::move(fds[2]);
  fds.erase(fds.begin(), fds.begin() + kAttachFixedFds);
  auto source = SourceView::open(attach, std::move(fds), peer->pid);
  if (!source) return tl::unexpected(source.error());
  has_digests_ = attach.has_digests;
  ring_ = std::move(*ring);
  source_ = std::move(*source);
  return {};
}

bool ShmTargetLane::on_question(std::span<const std::uint8_t> message) {
  if (message.size() < kHeaderBytes) return false;
  const auto header = parse_header(message.first<kHeaderBytes>());
  if (!header || header->type != FrameType::kResolve || header->count == 0 ||
      message.size() != kHeaderBytes + std::size_t{header->count} * kResolveEntryBytes) {
    return false;
  }
  ask_owner(header->sequence, header->slot, message.subspan(kHeaderBytes));
  return true;
}

void ShmTargetLane::on_source_gone() {
  lose(FailureCode::kPeerLost, "the source's process has ended", FailureWhere::kPeer);
}

void ShmTargetLane::on_bell() {
  clear_event(work_bell_);
  work();
}

void ShmTargetLane::work() {
  if (is_closed() || !ring_ || is_held_) return;
  ring_->stop_waiting();
  std::uint64_t moved = 0;
  for (;;) {
    if (!take_frame()) {
      if (is_closed() || ring_->wait()) return;
      continue;
    }
    for (const IncomingWrite& write : writes_) moved += write.length;
    if (!move_frame()) return;
    if (moved >= kBytesPerTurn) {
      raise_event(work_bell_);  // goes on after the others
      return;
    }
  }
}

// The next writes that travel together: of one grant, and as many as a frame may have. A write that
// names no bytes of the source is refused by a claim that it can't pass.
bool ShmTargetLane::take_frame() {
  if (taken_begin_ == taken_end_) {
    const auto count = ring_->take(taken_);
    if (!count) {
      lose(count.error().code, count.error().what, FailureWhere::kPeer);
      return false;
    }
    taken_begin_ = 0;
    taken_end_ = *count;
    if (*count == 0) return false;
  }
  const Descriptor& first = taken_[taken_begin_];
  writes_.clear();
  digests_.clear();
  pieces_.clear();
  std::uint64_t bytes = 0;
  while (taken_begin_ < taken_end_ && writes_.size() < limits_.frame_writes) {
    const Descriptor& next = taken_[taken_begin_];
    if (next.slot != first.slot || next.generation != first.generation) break;
    SourcePiece piece;
    const bool is_readable =
        source_->find(next.source_region, next.source_offset, next.write.length, piece);
    const bool fits = is_readable && next.write.length <= limits_.frame_bytes - bytes;
    if (!writes_.empty() && !fits) break;
    ++taken_begin_;
    IncomingWrite& write = writes_.emplace_back(next.write);
    if (has_digests_) digests_.push_back(next.digest);
    // Without bytes it can't be claimed anywhere.
    if (!is_readable || write.length > limits_.largest_write_bytes) write.length = 0;
    if (write.length != 0) pieces_.push_back(piece);
    bytes += write.length;
    if (!fits) break;
  }
  frame_.begin(reader_, session_->slots, first.slot, first.generation, writes_, digests_);
  return true;
}

bool ShmTargetLane::move_frame() {
  while (!frame_.payload_complete()) {
    const std::ptrdiff_t moved = frame_.move_part(
        reader_, [this](std::span<const iovec> places) { return source_->copy(pieces_, places); },
        [this](std::span<const iovec> places) {
          skip(pieces_, places.front().iov_len);
          return static_cast<std::ptrdiff_t>(places.front().iov_len);
        });
    if (moved <= 0) {
      lose(FailureCode::kPeerLost, "the source's memory can't be read any more",
           FailureWhere::kPeer);
      return false;
    }
  }
  frame_.finish(true);
  const bool is_answered = answer_frame();
  owner_.on_claims_ended(*session_);
  return is_answered;
}

bool ShmTargetLane::answer_frame() {
  if (!frame_.answers(results_)) {
    // Counted before the next look, since the first copy may end in between.
    if (!is_held_) {
      is_held_ = true;
      session_->held_answers.fetch_add(1);
      return answer_frame();
    }
    return false;
  }
  if (is_held_) session_->held_answers.fetch_sub(1);
  is_held_ = false;
  frame_.close();
  answers_.clear();
  for (const WriteResult result : results_) answers_.push_back(static_cast<std::uint8_t>(result));
  if (ring_->answer(answers_)) raise_event(source_bell_);
  return true;
}

void ShmTargetLane::retry_held_answers() {
  if (!is_closed() && is_held_ && answer_frame()) raise_event(work_bell_);
}

void ShmTargetLane::answer_resolve(std::uint64_t request, std::span<const WriteResult> results) {
  if (is_closed()) return;
  std::vector<std::uint8_t> message;
  append_answers(message, FrameType::kResolved, request, results);
  const auto sent = send_message(fd_.get(), message);
  if (!sent || !*sent) {
    lose(FailureCode::kPeerLost, "the source takes no answers", FailureWhere::kPeer);
  }
}

void ShmTargetLane::close() {
  if (is_closed()) return;
  if (bell_token_ != 0) loop_.remove(bell_token_, work_bell_.get());
  if (pidfd_token_ != 0) loop_.remove(pidfd_token_, pidfd_.get());
  if (socket_token_ != 0) loop_.remove(socket_token_, fd_.get());
  // No byte is copied after this, so that the end of the connection says just that.
  frame_.abandon();
  if (is_held_) session_->held_answers.fetch_sub(1);
  is_held_ = false;
  ring_.reset();
  source_.reset();
  fd_.reset();
}

}  // namespace kvferry::data_plane::shm
