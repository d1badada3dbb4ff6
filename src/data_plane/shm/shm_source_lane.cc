#include "data_plane/shm/shm_source_lane.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/crypto.h"
#include "data_plane/page_digest.h"
#include "data_plane/shm/host.h"
#include "data_plane/shm/unix_socket.h"

namespace kvferry::data_plane::shm {
namespace {

constexpr std::size_t kInputBytes = 4'096;
// Tries before a socket that can't be reached counts as impossible: its queue may just be full.
constexpr std::uint32_t kMaxTries = 3;

}  // namespace

ShmSourceLane::ShmSourceLane(EventLoop& loop, LaneOwner& owner, const LaneSettings& settings,
                             std::uint32_t& next_serial, std::uint32_t ring_entries)
    : loop_(loop),
      owner_(owner),
      settings_(settings),
      next_serial_(next_serial),
      ring_entries_(ring_entries),
      probe_value_(random_u64()),
      input_(kInputBytes) {}

ShmSourceLane::~ShmSourceLane() { drop_connection(); }

void ShmSourceLane::tick(Instant now) {
  switch (state_) {
    case State::kDown:
      if (now >= retry_at_) connect();
      return;
    case State::kChallenged:
    case State::kProving:
    case State::kAttaching:
      if (now - started_at_ >= settings_.timeout) {
        lose(FailureCode::kPeerUnreachable, "no shm lane within lane_timeout_ms",
             FailureWhere::kPath);
      }
      return;
    case State::kUp:
      send_questions();
      return;
    case State::kClosing:
    case State::kClosed:
      return;
  }
}

void ShmSourceLane::connect() {
  started_at_ = loop_.now();
  if (settings_.target.boot != boot_id()) {
    give_way("the peer runs on another host");
    return;
  }
  auto socket = connect_unix(settings_.target.unix_path);
  if (!socket) {
    try_again("the peer's socket can't be reached (shm_folder must be shared): " +
              socket.error().what);
    return;
  }
  const auto peer = peer_credentials(socket->get());
  if (!peer || peer->uid != ::geteuid()) {
    give_way(peer ? "the peer's socket belongs to user " + std::to_string(peer->uid)
                  : peer.error().what);
    return;
  }
  serial_ = next_serial_++;
  socket_ = std::move(*socket);
  socket_token_ = loop_.add(socket_.get(), EPOLLIN, this);
  proof_.emplace(settings_, serial_);
  state_ = State::kChallenged;
}

void ShmSourceLane::try_again(const std::string& reason) {
  if (++failures_ >= kMaxTries) {
    give_way(reason);
    return;
  }
  retry_at_ = loop_.now() + lane_backoff(failures_);
}

void ShmSourceLane::give_way(std::string reason) {
  drop_connection();
  retry_at_ = loop_.now() + lane_backoff(failures_++);
  owner_.on_lane_impossible(*this, std::move(reason));
}

void ShmSourceLane::on_ready(std::uint32_t) {
  while (socket_.is_open()) {
    auto received = receive_message(socket_.get(), input_, 1);
    if (!received) {
      lose(received.error().code, received.error().what, FailureWhere::kPeer);
      return;
    }
    if (!received->has_value()) return;
    if ((*received)->size == 0) {
      on_target_closed();
      return;
    }
    if (state_ == State::kClosing) continue;
    const auto message = std::span<const std::uint8_t>(input_).first((*received)->size);
    if ((*received)->truncated || !on_message(message, std::move((*received)->fds))) return;
  }
}

bool ShmSourceLane::on_message(std::span<const std::uint8_t> message, std::vector<Fd> fds) {
  switch (state_) {
    case State::kChallenged:
      return on_challenge(message);
    case State::kProving:
      return on_welcome(message);
    case State::kAttaching:
      return on_attach_reply(message, std::move(fds));
    case State::kUp:
      return on_resolved(message);
    default:
      return false;
  }
}

bool ShmSourceLane::on_challenge(std::span<const std::uint8_t> message) {
  auto response = proof_->respond(message);
  if (!response) {
    lose(response.error().code, response.error().what, response.error().where);
    return false;
  }
  const auto sent = send_message(socket_.get(), *response);
  if (!sent || !*sent) {
    lose(FailureCode::kPeerLost, "the response could not be sent", FailureWhere::kPath);
    return false;
  }
  state_ = State::kProving;
  return true;
}

bool ShmSourceLane::on_welcome(std::span<const std::uint8_t> message) {
  if (auto proven = proof_->check_welcome(message); !proven) {
    lose(proven.error().code, proven.error().what, proven.error().where);
    return false;
  }
  if (auto sent = send_attach(); !sent) {
    give_way(sent.error().what);
    return false;
  }
  state_ = State::kAttaching;
  return true;
}

Status ShmSourceLane::send_attach() {
  auto ring = RingWriter::create(ring_entries_);
  if (!ring) return tl::unexpected(ring.error());
  ring_ = std::move(*ring);
  target_bell_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  answer_bell_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!target_bell_.is_open() || !answer_bell_.is_open()) {
    return fail(FailureCode::kOperatingSystem, errno_text("eventfd"));
  }
  Attach attach;
  attach.ring_entries = ring_entries_;
  attach.has_digests = settings_.page_digests;
  attach.probe = {reinterpret_cast<std::uintptr_t>(&probe_value_), probe_value_};
  std::vector<int> fds{ring_->fd(), target_bell_.get(), answer_bell_.get()};
  std::vector<int> pools;
  for (const Region& region : owner_.source_regions()) {
    AttachRegion described;
    described.bytes = region.item_bytes * region.item_count;
    described.place = reinterpret_cast<std::uintptr_t>(region.base);
    if (region.memory_fd >= 0) {
      auto pool = std::find(pools.begin(), pools.end(), region.memory_fd);
      if (pool == pools.end()) pool = pools.insert(pools.end(), region.memory_fd);
      described.pool = static_cast<std::uint32_t>(pool - pools.begin());
      described.place = region.memory_fd_offset;
    }
    attach.regions.push_back(described);
  }
  if (attach.regions.size() > kMaxAttachRegions || pools.size() > kMaxAttachPools) {
    return fail(FailureCode::kInvalidArgument,
                std::to_string(attach.regions.size()) + " regions in " +
                    std::to_string(pools.size()) + " memfds are more than " +
                    std::to_string(kMaxAttachRegions) + " in " + std::to_string(kMaxAttachPools));
  }
  attach.pool_count = static_cast<std::uint32_t>(pools.size());
  fds.insert(fds.end(), pools.begin(), pools.end());
  const auto sent = send_message(socket_.get(), encode_attach(attach), fds);
  if (!sent) return tl::unexpected(sent.error());
  if (!*sent) return fail(FailureCode::kPeerUnreachable, "the peer's socket is full");
  return {};
}

bool ShmSourceLane::on_attach_reply(std::span<const std::uint8_t> message, std::vector<Fd> fds) {
  auto reply = parse_attach_reply(message);
  if (!reply) {
    lose(reply.error().code, reply.error().what, FailureWhere::kPeer);
    return false;
  }
  if (const auto* refused = std::get_if<Refused>(&*reply)) {
    give_way(refused->reason);
    return false;
  }
  if (fds.size() != 1) {
    lose(FailureCode::kMalformed, "the target attached without the memory of its answers",
         FailureWhere::kPeer);
    return false;
  }
  auto answers =
      PeerMemory::map(std::move(fds.front()), PeerMemory::Use::kRing, answer_bytes(ring_entries_));
  Status attached =
      answers ? ring_->attach(std::move(*answers)) : Status(tl::unexpected(answers.error()));
  if (!attached) {
    lose(attached.error().code, attached.error().what, FailureWhere::kPeer);
    return false;
  }
  bell_token_ = loop_.add(answer_bell_.get(), EPOLLIN, &bell_handler_);
  failures_ = 0;
  state_ = State::kUp;
  owner_.on_lane_up(*this);
  return state_ == State::kUp;
}

bool ShmSourceLane::on_resolved(std::span<const std::uint8_t> message) {
  std::optional<FrameHeader> header;
  if (message.size() >= kHeaderBytes) header = parse_header(message.first<kHeaderBytes>());
  const bool fits = header && header->type == FrameType::kResolved &&
                    message.size() == kHeaderBytes + header->count &&
                    owner_.on_resolved(header->sequence, message.subspan(kHeaderBytes));
  if (!fits) {
    lose(FailureCode::kMalformed, "the target answered what was not asked", FailureWhere::kPeer);
  }
  return fits;
}

void ShmSourceLane::ask(std::uint64_t request, std::uint32_t lost_serial, const OutFrame& frame) {
  append_question(questions_.emplace_back(), request, lost_serial, frame);
  send_questions();
}

// A full socket is tried again at the next tick; its breaking shows as the end of the connection.
void ShmSourceLane::send_questions() {
  std::size_t sent = 0;
  while (sent < questions_.size()) {
    const auto taken = send_message(socket_.get(), questions_[sent]);
    if (taken && !*taken) break;
    ++sent;
  }
  questions_.erase(questions_.begin(), questions_.begin() + static_cast<std::ptrdiff_t>(sent));
}

std::uint64_t ShmSourceLane::digest_of(const layout::Write& write) const {
  if (!settings_.page_digests) return 0;
  return page_digest({owner_.source_address(write), write.length});
}

void ShmSourceLane::pump() {
  if (state_ != State::kUp) return;
  for (;;) {
    if (!current_) current_ = owner_.next_frame();
    if (!current_ || current_->writes.size() > ring_->free_entries()) break;
    for (const layout::Write& write : current_->writes) {
      ring_->put({write.slot,
                  write.generation,
                  {write.ticket, write.target_region, write.target_item, write.offset_in_item,
                   write.length},
                  write.source_region,
                  write.source_offset,
                  digest_of(write)});
    }
    current_->sequence = next_sequence_++;
    unanswered_.add(std::move(current_));
    if (ring_->publish()) raise_event(target_bell_);
  }
  // Answers that came before this side asked for its bell ring no bell.
  if (ring_->outstanding() != 0 && !ring_->wait_for_answers()) raise_event(answer_bell_);
}

void ShmSourceLane::on_answer_bell() {
  clear_event(answer_bell_);
  if (state_ != State::kUp || !take_answers()) return;
  // Pumps this lane too, which asks for the next bell.
  owner_.after_answers();
}

bool ShmSourceLane::take_answers() {
  const auto taken = ring_->take_answers(answers_);
  if (!taken) {
    lose(taken.error().code, taken.error().what, FailureWhere::kPeer);
    return false;
  }
  std::size_t used = 0;
  while (!unanswered_.empty()) {
    const OutFrame& front = unanswered_.front();
    const std::size_t count = front.writes.size();
    if (answers_.size() - used < count) break;
    const auto results = std::span<const std::uint8_t>(answers_).subspan(used, count);
    used += count;
    owner_.on_answers(unanswered_.take(front.sequence, count), results);
  }
  answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(used));
  return state_ == State::kUp;
}

void ShmSourceLane::expire(Instant now, const std::function<void(const OutFrame&)>& call) {
  unanswered_.expire(now, call);
  if (current_) expire_frame(*current_, now, call);
}

OutFramePtr ShmSourceLane::take_untouched(GrantSlot slot, Generation generation) {
  const bool matches = current_ && current_->slot == slot && current_->generation <= generation;
  return matches ? std::move(current_) : nullptr;
}

// The target may be copying, so what was sent has no end yet: it is told to stop, and the loss is
// reported when it has closed its end.
void ShmSourceLane::lose(FailureCode code, std::string what, FailureWhere where) {
  loss_ = Failure{code, where, std::move(what), settings_.target.unix_path, -1};
  if (state_ != State::kUp) {
    on_target_closed();
    return;
  }
  state_ = State::kClosing;
  ::shutdown(socket_.get(), SHUT_WR);
}

void ShmSourceLane::on_target_closed() {
  const bool was_closed_by_us = is_closed_for_good_;
  drop_connection();
  if (was_closed_by_us) {
    state_ = State::kClosed;
    owner_.on_lane_quiet(*this);
    return;
  }
  retry_at_ = loop_.now() + lane_backoff(failures_++);
  Failure cause =
      loss_.value_or(Failure{FailureCode::kPeerLost, FailureWhere::kPeer,
                             "the target closed the shm lane", settings_.target.unix_path, -1});
  loss_.reset();
  owner_.on_lane_lost(serial_, std::move(current_), unanswered_.take_all(), std::move(cause));
}

void ShmSourceLane::drop_connection() {
  if (bell_token_ != 0) loop_.remove(bell_token_, answer_bell_.get());
  if (socket_.is_open()) loop_.remove(socket_token_, socket_.get());
  bell_token_ = 0;
  socket_.reset();
  target_bell_.reset();
  answer_bell_.reset();
  ring_.reset();
  answers_.clear();
  questions_.clear();
  state_ = is_closed_for_good_ ? State::kClosed : State::kDown;
}

std::vector<OutFramePtr> ShmSourceLane::close() {
  is_closed_for_good_ = true;
  std::vector<OutFramePtr> frames = unanswered_.take_all();
  if (current_) frames.push_back(std::move(current_));
  if (state_ == State::kUp) {
    // The ring goes, its memory stays with the target until that has closed.
    state_ = State::kClosing;
    ::shutdown(socket_.get(), SHUT_WR);
  } else if (state_ != State::kClosing) {
    drop_connection();
  }
  return frames;
}

}  // namespace kvferry::data_plane::shm
