#include "data_plane/tcp/tcp_source_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "data_plane/page_digest.h"
#include "data_plane/tcp/socket.h"

namespace kvferry::data_plane::tcp {
namespace {

constexpr std::size_t kInputBytes = 16U << 10;
constexpr std::uint64_t kSendBytes = 1U << 20;
constexpr std::size_t kSendParts = 256;

// What a given-up frame is finished with, so that no byte of a reused source page leaves.
constexpr std::array<std::byte, 64U << 10> kZeros{};

}  // namespace

TcpSourceLane::TcpSourceLane(EventLoop& loop, LaneOwner& owner, const LaneSettings& settings,
                             std::uint32_t& next_serial)
    : loop_(loop),
      owner_(owner),
      settings_(settings),
      next_serial_(next_serial),
      input_(kInputBytes) {}

TcpSourceLane::~TcpSourceLane() { drop_connection(); }

void TcpSourceLane::tick(Instant now) {
  switch (state_) {
    case State::kClosed:
      return;
    case State::kDown:
      if (now >= retry_at_) connect();
      return;
    case State::kConnecting:
    case State::kChallenged:
    case State::kProving:
      if (now - started_at_ >= settings_.timeout) {
        lose(FailureCode::kPeerUnreachable, "no lane within lane_timeout_ms");
      }
      return;
    case State::kUp:
      break;
  }
  if (now - last_received_ >= settings_.timeout) {
    lose(FailureCode::kPeerLost, "the target was silent on this lane for lane_timeout_ms");
    return;
  }
  if (has_overdue_frame(now)) {
    // Closing is what makes an unknown write quiet when the target never answers it.
    lose(FailureCode::kWriteUnknown, "a frame stayed unanswered past write_timeout_ms");
    return;
  }
  if (now - last_sent_ >= settings_.heartbeat && !has_output()) {
    append_header(small_, FrameHeader{});
    pump();
  }
}

bool TcpSourceLane::has_overdue_frame(Instant now) const {
  return (current_ && is_overdue(*current_, now, settings_.timeout)) ||
         unanswered_.has_overdue(now, settings_.timeout);
}

void TcpSourceLane::expire(Instant now, const std::function<void(const OutFrame&)>& call) {
  unanswered_.expire(now, call);
  if (current_) expire_frame(*current_, now, call);
}

void TcpSourceLane::connect() {
  started_at_ = loop_.now();
  serial_ = next_serial_++;
  auto fd = start_connect(settings_.target.host, settings_.target.port);
  if (!fd) {
    lose(fd.error().code, fd.error().what, fd.error().where);
    return;
  }
  fd_ = std::move(*fd);
  set_lane_options(fd_.get(),
                   static_cast<std::uint32_t>(
                       std::chrono::duration_cast<milliseconds>(settings_.timeout).count()));
  state_ = State::kConnecting;
  watching_output_ = true;
  token_ = loop_.add(fd_.get(), EPOLLIN | EPOLLOUT, this);
}

void TcpSourceLane::on_ready(std::uint32_t epoll_events) {
  if (state_ == State::kConnecting) {
    const std::string error = connect_error(fd_.get());
    if (!error.empty()) {
      lose(FailureCode::kPeerUnreachable, error);
      return;
    }
    state_ = State::kChallenged;
    watch_output(false);
  }
  if ((epoll_events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0 && !read_input()) return;
  if ((epoll_events & EPOLLOUT) != 0) pump();
}

// False when the lane was lost on the way.
bool TcpSourceLane::read_input() {
  const ssize_t got =
      ::recv(fd_.get(), input_.data() + input_size_, input_.size() - input_size_, 0);
  if (got == 0) {
    lose(FailureCode::kPeerLost, "the target closed the lane", FailureWhere::kPeer);
    return false;
  }
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return true;
    lose(FailureCode::kPeerLost, errno_text("recv"));
    return false;
  }
  input_size_ += static_cast<std::size_t>(got);
  last_received_ = loop_.now();
  if (!handle_input()) return false;
  if (state_ == State::kUp) owner_.after_answers();
  return state_ != State::kDown;
}

bool TcpSourceLane::handle_input() {
  if (state_ == State::kChallenged && !handle_challenge()) return false;
  if (state_ == State::kProving && !handle_welcome()) return false;
  return state_ != State::kUp || handle_frames();
}

bool TcpSourceLane::handle_challenge() {
  if (input_size_ < kChallengeBytes) return true;
  // It sends nothing more before it has the response.
  proof_.emplace(settings_, serial_);
  auto response = proof_->respond(std::span(input_).first(input_size_));
  if (!response) {
    lose(response.error().code, response.error().what, response.error().where);
    return false;
  }
  input_size_ = 0;
  small_ = std::move(*response);
  small_sent_ = 0;
  state_ = State::kProving;
  pump();
  return state_ == State::kProving;
}

bool TcpSourceLane::handle_welcome() {
  if (input_size_ < kWelcomeBytes) return true;
  if (auto proven = proof_->check_welcome(std::span(input_).first(kWelcomeBytes)); !proven) {
    lose(proven.error().code, proven.error().what, proven.error().where);
    return false;
  }
  input_size_ -= kWelcomeBytes;
  std::memmove(input_.data(), input_.data() + kWelcomeBytes, input_size_);
  state_ = State::kUp;
  failures_ = 0;
  last_sent_ = loop_.now();
  owner_.on_lane_up(*this);
  return state_ == State::kUp;
}

bool TcpSourceLane::handle_frames() {
  std::size_t position = 0;
  while (input_size_ - position >= kHeaderBytes) {
    const auto header = parse_header(
        std::span<const std::uint8_t, kHeaderBytes>(input_.data() + position, kHeaderBytes));
    const bool fits = header && header->count <= kMaxFrameWrites &&
                      (header->type == FrameType::kAck || header->type == FrameType::kResolved ||
                       (header->type == FrameType::kHeartbeat && header->count == 0));
    if (!fits) {
      lose(FailureCode::kMalformed, "the target's answers have lost their framing",
           FailureWhere::kPeer);
      return false;
    }
    if (input_size_ - position - kHeaderBytes < header->count) break;
    const std::span<const std::uint8_t> results(input_.data() + position + kHeaderBytes,
                                                header->count);
    position += kHeaderBytes + header->count;
    if (!handle_answer(*header, results)) {
      lose(FailureCode::kMalformed, "the target answered what was not asked", FailureWhere::kPeer);
      return false;
    }
  }
  input_size_ -= position;
  std::memmove(input_.data(), input_.data() + position, input_size_);
  return true;
}

bool TcpSourceLane::handle_answer(const FrameHeader& header,
                                  std::span<const std::uint8_t> results) {
  if (header.type == FrameType::kHeartbeat) return true;
  if (header.type == FrameType::kResolved) return owner_.on_resolved(header.sequence, results);
  OutFramePtr frame = unanswered_.take(header.sequence, results.size());
  if (!frame) return false;
  owner_.on_answers(std::move(frame), results);
  return true;
}

void TcpSourceLane::ask(std::uint64_t request, std::uint32_t lost_serial, const OutFrame& frame) {
  append_question(questions_, request, lost_serial, frame);
  append_stream_padding(questions_, questions_.size());
  pump();
}

void TcpSourceLane::start_frame(OutFramePtr frame) {
  current_ = std::move(frame);
  current_->sequence = next_sequence_++;
  head_.clear();
  head_sent_ = 0;
  write_index_ = 0;
  write_sent_ = 0;
  is_void_ = false;
  FrameHeader header;
  header.type = FrameType::kData;
  header.count = static_cast<std::uint16_t>(current_->writes.size());
  header.slot = current_->slot.value();
  header.payload_bytes = current_->payload_bytes;
  header.generation = current_->generation.value();
  header.sequence = current_->sequence;
  header.has_digests = settings_.page_digests;
  append_header(head_, header);
  for (const layout::Write& write : current_->writes) {
    append_descriptor(head_, write);
    if (!header.has_digests) continue;
    append_digest(head_, page_digest({owner_.source_address(write), write.length}));
  }
  append_stream_padding(head_, head_.size());
}

void TcpSourceLane::pump() {
  if (state_ != State::kUp && state_ != State::kProving) return;
  for (;;) {
    if (state_ == State::kUp && !current_) {
      small_.insert(small_.end(), questions_.begin(), questions_.end());
      questions_.clear();
      if (auto frame = owner_.next_frame()) start_frame(std::move(frame));
    }
    if (!has_output()) {
      watch_output(false);
      return;
    }
    msghdr message{};
    message.msg_iovlen = gather(parts_);
    message.msg_iov = parts_.data();
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        watch_output(true);
        return;
      }
      lose(FailureCode::kPeerLost, errno_text("sendmsg"));
      return;
    }
    last_sent_ = loop_.now();
    if (current_) loop_.stay_awake();
    consume(static_cast<std::uint64_t>(sent));
    if (current_ && write_index_ == current_->writes.size()) finish_payload();
  }
}

std::size_t TcpSourceLane::gather(std::vector<iovec>& parts) {
  parts.clear();
  if (small_sent_ < small_.size()) {
    parts.push_back(iovec{small_.data() + small_sent_, small_.size() - small_sent_});
  }
  if (!current_) return parts.size();
  if (head_sent_ < head_.size()) {
    parts.push_back(iovec{head_.data() + head_sent_, head_.size() - head_sent_});
  }
  is_void_ = is_void_ || owner_.is_given_up(current_->slot, current_->generation);
  std::uint64_t bytes = 0;
  std::uint64_t skip = write_sent_;
  for (std::size_t i = write_index_; i < current_->writes.size(); ++i) {
    const layout::Write& write = current_->writes[i];
    if (parts.size() >= kSendParts || bytes >= kSendBytes) break;
    std::uint64_t length = std::min(write.length - skip, kSendBytes - bytes);
    const std::byte* from = owner_.source_address(write) + skip;
    if (is_void_) {
      length = std::min<std::uint64_t>(length, kZeros.size());
      from = kZeros.data();
    }
    // sendmsg only reads, but its parts are not const.
    parts.push_back(iovec{const_cast<std::byte*>(from), length});  // NOLINT(*-const-cast)
    bytes += length;
    if (length < write.length - skip) break;
    skip = 0;
  }
  return parts.size();
}

void TcpSourceLane::consume(std::uint64_t sent) {
  const std::uint64_t small = std::min<std::uint64_t>(sent, small_.size() - small_sent_);
  small_sent_ += small;
  sent -= small;
  if (small_sent_ == small_.size()) {
    small_.clear();
    small_sent_ = 0;
  }
  if (!current_) return;
  const std::uint64_t head = std::min<std::uint64_t>(sent, head_.size() - head_sent_);
  head_sent_ += head;
  sent -= head;
  while (sent != 0) {
    const std::uint64_t left = current_->writes[write_index_].length - write_sent_;
    const std::uint64_t step = std::min(sent, left);
    write_sent_ += step;
    sent -= step;
    if (step == left) {
      ++write_index_;
      write_sent_ = 0;
    }
  }
}

void TcpSourceLane::finish_payload() {
  // The trailer is decided after the last source byte was read: a frame whose grant was given up
  // before that may hold bytes of the page's next use.
  is_void_ = is_void_ || owner_.is_given_up(current_->slot, current_->generation);
  append_stream_padding(small_, current_->payload_bytes);
  append_trailer(small_, is_void_ ? Trailer::kVoid : Trailer::kValid);
  unanswered_.add(std::move(current_));
}

OutFramePtr TcpSourceLane::take_untouched(GrantSlot slot, Generation generation) {
  const bool matches =
      current_ && head_sent_ == 0 && current_->slot == slot && current_->generation <= generation;
  return matches ? std::move(current_) : nullptr;
}

void TcpSourceLane::watch_output(bool wanted) {
  if (wanted == watching_output_) return;
  watching_output_ = wanted;
  loop_.change(token_, fd_.get(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

std::string TcpSourceLane::peer_text() const {
  return settings_.target.host + ":" + std::to_string(settings_.target.port);
}

void TcpSourceLane::lose(FailureCode code, std::string what, FailureWhere where) {
  drop_connection();
  retry_at_ = loop_.now() + lane_backoff(failures_++);
  OutFramePtr untouched;
  if (current_ && head_sent_ == 0) untouched = std::move(current_);
  std::vector<OutFramePtr> sent = unanswered_.take_all();
  if (current_) sent.push_back(std::move(current_));
  owner_.on_lane_lost(serial_, std::move(untouched), std::move(sent),
                      Failure{code, where, std::move(what), peer_text(), -1});
}

void TcpSourceLane::drop_connection() {
  if (fd_.is_open()) {
    loop_.remove(token_, fd_.get());
    fd_.abort();
  }
  state_ = State::kDown;
  watching_output_ = false;
  input_size_ = 0;
  small_.clear();
  small_sent_ = 0;
  questions_.clear();
}

std::vector<OutFramePtr> TcpSourceLane::close() {
  drop_connection();
  state_ = State::kClosed;
  std::vector<OutFramePtr> frames = unanswered_.take_all();
  if (current_) frames.push_back(std::move(current_));
  return frames;
}

}  // namespace kvferry::data_plane::tcp
