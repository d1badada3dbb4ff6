#include "data_plane/lanes/lane_target.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace kvferry::data_plane {
namespace {

// For a connection to prove itself. One that names a session which this side has yet to open waits
// that long too, since the two sides open it at slightly different times.
constexpr milliseconds kStrangerTimeout{3'000};
// The lanes of a session, counting those whose loss has not been noticed yet.
constexpr std::uint32_t kMaxLanesPerSession = 64;
constexpr milliseconds kMaxTick{50};
constexpr milliseconds kMinTick{5};

}  // namespace

// One door with its listener in loop 0.
class LaneTarget::Porter final : public EventLoop::Handler {
 public:
  Porter(LaneTarget& target, std::unique_ptr<LaneDoor> door)
      : target_(target), door_(std::move(door)) {}

  LaneDoor& door() { return *door_; }
  void start(EventLoop& loop) { token_ = loop.add(door_->listener(), EPOLLIN, this); }
  // Without a free descriptor the listener would stay ready for ever; it is heard again at a tick.
  void mute(bool muted) {
    is_muted_ = muted;
    EventLoop& loop = target_.parts_.front()->loop;
    loop.change(token_, door_->listener(), muted ? 0U : static_cast<std::uint32_t>(EPOLLIN));
  }
  bool is_muted() const { return is_muted_; }

  void on_ready(std::uint32_t) override { target_.accept_all(*this); }

 private:
  LaneTarget& target_;
  std::unique_ptr<LaneDoor> door_;
  EventLoop::Token token_ = 0;
  bool is_muted_ = false;
};

// A connection between accept and proof. It may send exactly one message of a fixed size.
class LaneTarget::Stranger final : public EventLoop::Handler {
 public:
  Stranger(LaneTarget& target, LaneDoor& door, Fd fd, std::string peer)
      : target_(target),
        door_(door),
        fd_(std::move(fd)),
        peer_(std::move(peer)),
        token_(loop().add(fd_.get(), EPOLLIN, this)) {
    fill_random(nonce_);
    since_ = loop().now();
    // A fresh socket takes these few bytes; if not, the peer never answers and is timed out.
    const std::vector<std::uint8_t> challenge = encode_challenge(nonce_);
    [[maybe_unused]] const auto sent =
        ::send(fd_.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() override {
    if (fd_.is_open()) loop().remove(token_, fd_.get());
  }

  EventLoop& loop() { return target_.parts_.front()->loop; }
  LaneDoor& door() { return door_; }
  int descriptor() const { return fd_.get(); }
  const Nonce& nonce() const { return nonce_; }
  const std::string& peer() const { return peer_; }
  Instant since() const { return since_; }
  const std::optional<LaneResponse>& response() const { return response_; }

  Fd take_socket() {
    loop().remove(token_, fd_.get());
    return std::move(fd_);
  }

  void on_ready(std::uint32_t) override {
    // It stays silent until it is welcomed, so anything further is a breach.
    std::uint8_t extra = 0;
    const bool full = size_ == input_.size();
    const ssize_t got = full ? ::recv(fd_.get(), &extra, 1, 0)
                             : ::recv(fd_.get(), input_.data() + size_, input_.size() - size_, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0 || full) {
      if (full) ++target_.counters_.strangers_rejected;
      target_.dismiss(*this);
      return;
    }
    size_ += static_cast<std::size_t>(got);
    if (size_ < input_.size()) return;
    response_ = parse_response(input_);
    if (!response_) {
      ++target_.counters_.strangers_rejected;
      target_.dismiss(*this);
      return;
    }
    target_.judge(*this);
  }

 private:
  LaneTarget& target_;
  LaneDoor& door_;
  Fd fd_;
  const std::string peer_;
  const EventLoop::Token token_;
  Instant since_{};
  Nonce nonce_{};
  std::array<std::uint8_t, kResponseBytes> input_{};
  std::size_t size_ = 0;
  std::optional<LaneResponse> response_;
};

LaneTarget::LaneTarget(const TransportConfig& config, CompletionSink& sink, ReceiveGate& gate)
    : config_(config), sink_(sink), gate_(gate) {
  limits_.frame_bytes = config.frame_bytes;
  limits_.frame_writes = std::min(config.frame_writes, kMaxFrameWrites);
  limits_.heartbeat = milliseconds(config.lane_heartbeat_ms);
  limits_.timeout = milliseconds(config.lane_timeout_ms);
  for (std::uint32_t i = 0; i < std::max(1U, config.receive_threads); ++i) {
    parts_.push_back(std::make_unique<Part>(gate_));
  }
}

LaneTarget::~LaneTarget() { stop(); }

void LaneTarget::add_door(std::unique_ptr<LaneDoor> door) {
  porters_.push_back(std::make_unique<Porter>(*this, std::move(door)));
}

TargetBlob LaneTarget::blob() const {
  TargetBlob blob;
  blob.frame_bytes = limits_.frame_bytes;
  blob.frame_writes = limits_.frame_writes;
  for (const auto& porter : porters_) porter->door().describe(blob);
  return blob;
}

Status LaneTarget::start() {
  const Duration period = std::clamp<Duration>(std::min(limits_.heartbeat, limits_.timeout / 4) / 2,
                                               kMinTick, kMaxTick);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (auto opened = parts_[i]->loop.open(
            {period, std::chrono::microseconds(config_.lane_poll_us)},
            [this, i](Instant now) { tick(i, now); },
            enrol(config_.threads, fmt::format("kvf-receive-{}", i), "receives what peers write"));
        !opened) {
      return opened;
    }
  }
  for (const auto& porter : porters_) porter->start(parts_.front()->loop);
  for (const auto& part : parts_) part->loop.start();
  return {};
}

void LaneTarget::stop() {
  for (const auto& part : parts_) part->loop.stop();
  // No thread is left: what remains is closed from here.
  strangers_.clear();
  for (const auto& part : parts_) part->lanes.clear();
  porters_.clear();
}

std::shared_ptr<TargetSession> LaneTarget::find_session(SessionEpoch epoch) {
  std::lock_guard lock(sessions_mutex_);
  const auto found = sessions_.find(epoch);
  return found == sessions_.end() ? nullptr : found->second;
}

void LaneTarget::open_session(const SessionLink& link, std::shared_ptr<SessionSlots> slots) {
  auto session = std::make_shared<TargetSession>();
  session->epoch = link.epoch;
  session->secret = link.secret;
  session->slots = std::move(slots);
  {
    std::lock_guard lock(sessions_mutex_);
    sessions_.emplace(link.epoch, std::move(session));
  }
  parts_.front()->loop.post([this, epoch = link.epoch] {
    std::vector<Stranger*> waiting;
    for (const auto& [fd, stranger] : strangers_) {
      if (stranger->response() && stranger->response()->epoch == epoch) {
        waiting.push_back(stranger.get());
      }
    }
    for (Stranger* stranger : waiting) judge(*stranger);
  });
}

void LaneTarget::close_session(SessionEpoch epoch) {
  std::shared_ptr<TargetSession> session;
  {
    std::lock_guard lock(sessions_mutex_);
    const auto found = sessions_.find(epoch);
    if (found == sessions_.end()) return;
    session = std::move(found->second);
    sessions_.erase(found);
  }
  // Set before the tasks: a lane that is handed over after them sees it.
  session->closed = true;
  for (const auto& part : parts_) {
    part->loop.post([this, &part = *part, epoch] { close_lanes_of(part, epoch); });
  }
}

void LaneTarget::close_lanes_of(Part& part, SessionEpoch epoch) {
  const auto begin = part.lanes.lower_bound(LaneKey(epoch, 0));
  auto end = begin;
  while (end != part.lanes.end() && end->first.first == epoch) ++end;
  part.lanes.erase(begin, end);
  update_ticking(part);
}

void LaneTarget::accept_all(Porter& porter) {
  for (;;) {
    LaneDoor::Arrival arrival = porter.door().accept();
    if (!arrival.fd.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE) return;
      porter.mute(true);
      parts_.front()->loop.wants_ticks(true);
      return;
    }
    if (!arrival.is_welcome) {
      ++counters_.strangers_rejected;
      continue;
    }
    if (strangers_.size() >= config_.max_lane_strangers) {
      ++counters_.strangers_full;
      continue;
    }
    const int descriptor = arrival.fd.get();
    strangers_[descriptor] = std::make_unique<Stranger>(*this, porter.door(), std::move(arrival.fd),
                                                        std::move(arrival.peer));
    parts_.front()->loop.wants_ticks(true);
  }
}

bool LaneTarget::has_muted_door() const {
  return std::any_of(porters_.begin(), porters_.end(),
                     [](const auto& porter) { return porter->is_muted(); });
}

void LaneTarget::dismiss(Stranger& stranger) {
  // Called from the stranger's own handler, which touches nothing of it afterwards.
  strangers_.erase(stranger.descriptor());
}

// Whether the stranger was let in or sent away, as against left waiting.
bool LaneTarget::judge(Stranger& stranger) {
  const LaneResponse& response = *stranger.response();
  auto session = find_session(response.epoch);
  if (!session) return false;
  const Digest expected = lane_proof(session->secret, Prover::kSource, stranger.nonce(),
                                     response.nonce, response.epoch, response.serial);
  if (!equal_digests(expected, response.proof) || response.serial == 0 ||
      session->lanes.load() >= kMaxLanesPerSession) {
    ++counters_.strangers_rejected;
  } else {
    admit(stranger, response, std::move(session));
    return true;
  }
  dismiss(stranger);
  return true;
}

void LaneTarget::admit(Stranger& stranger, const LaneResponse& response,
                       std::shared_ptr<TargetSession> session) {
  const Digest proof = lane_proof(session->secret, Prover::kTarget, stranger.nonce(),
                                  response.nonce, response.epoch, response.serial);
  const int descriptor = stranger.descriptor();
  const std::size_t index = part_index(response.serial);
  Part& part = *parts_[index];
  const LaneKey key(response.epoch, response.serial);
  auto lane = std::make_shared<std::unique_ptr<TargetLane>>(
      stranger.door().make_lane({part.loop, part.reader, *this, limits_, std::move(session),
                                 response.serial, stranger.take_socket(), stranger.peer()}));
  strangers_.erase(descriptor);
  // The welcome is sent by the lane's own loop, after it knows the lane: a source that was welcomed
  // can thus ask any loop how this lane ended.
  part.loop.post([this, &part, key, lane, proof] {
    if ((*lane)->session().closed) return;
    auto [place, added] = part.lanes.try_emplace(key, std::move(*lane));
    // A serial is used once; a second connection that claims it is not let in.
    if (!added) return;
    place->second->start(proof);
    update_ticking(part);
  });
}

void LaneTarget::update_ticking(Part& part) {
  const bool is_door = &part == parts_.front().get();
  part.loop.wants_ticks(!part.lanes.empty() ||
                        (is_door && (!strangers_.empty() || has_muted_door())));
}

void LaneTarget::tick(std::size_t index, Instant now) {
  Part& part = *parts_[index];
  std::vector<TargetLane*> lanes;
  lanes.reserve(part.lanes.size());
  for (const auto& [key, lane] : part.lanes) lanes.push_back(lane.get());
  for (TargetLane* lane : lanes) lane->tick(now);
  if (index == 0) {
    std::erase_if(strangers_, [&](const auto& entry) {
      if (now - entry.second->since() < kStrangerTimeout) return false;
      ++counters_.strangers_timed_out;
      return true;
    });
    for (const auto& porter : porters_) {
      if (porter->is_muted()) porter->mute(false);
    }
  }
  update_ticking(part);
}

void LaneTarget::on_lane_lost(TargetLane& lane, Failure cause) {
  const LaneKey key(lane.session().epoch, lane.serial());
  destroy_later(part_index(lane.serial()), key);
  if (!lane.session().closed) sink_.lane_failed(key.first, std::move(cause));
}

void LaneTarget::on_lane_over(TargetLane& lane) {
  destroy_later(part_index(lane.serial()), LaneKey(lane.session().epoch, lane.serial()));
}

// The lane is still on the stack when it reports its end.
void LaneTarget::destroy_later(std::size_t index, LaneKey key) {
  Part& part = *parts_[index];
  part.loop.post([this, &part, key] {
    part.lanes.erase(key);
    update_ticking(part);
  });
}

void LaneTarget::on_claims_ended(TargetSession& session) {
  if (session.held_answers.load() == 0) return;
  for (const auto& part : parts_) {
    part->loop.post([&part = *part, epoch = session.epoch] {
      std::vector<TargetLane*> lanes;
      for (const auto& [key, lane] : part.lanes) {
        if (key.first == epoch) lanes.push_back(lane.get());
      }
      for (TargetLane* lane : lanes) lane->retry_held_answers();
    });
  }
}

void LaneTarget::on_resolve(TargetLane& lane, std::uint32_t lost_serial, std::uint64_t request,
                            std::vector<ResolveEntry> entries) {
  const LaneKey asker(lane.session().epoch, lane.serial());
  Part& part = *parts_[part_index(lost_serial)];
  part.loop.post([this, asker, lost_serial, request, entries = std::move(entries)] {
    answer_resolve(asker, lost_serial, request, entries);
  });
}

// On the loop that owns the lost lane. Its socket may still hold unread bytes of the very tickets
// that are asked about, so it is closed before anything is said about them.
void LaneTarget::answer_resolve(LaneKey asker, std::uint32_t lost_serial, std::uint64_t request,
                                const std::vector<ResolveEntry>& entries) {
  Part& part = *parts_[part_index(lost_serial)];
  const auto lost = part.lanes.find(LaneKey(asker.first, lost_serial));
  if (lost != part.lanes.end()) {
    TargetSession& session = lost->second->session();
    const bool was_open = !lost->second->is_closed();
    lost->second->close();
    on_claims_ended(session);
    if (was_open) {
      on_lane_lost(*lost->second, Failure{FailureCode::kPeerLost,
                                          FailureWhere::kPath,
                                          "the source replaced this lane",
                                          {},
                                          -1});
    }
  }
  const auto session = find_session(asker.first);
  if (!session) return;
  std::vector<WriteResult> results;
  results.reserve(entries.size());
  for (const ResolveEntry& entry : entries) {
    // A ticket that another lane is copying has no end yet; the source can only take it as unknown.
    results.push_back(session->slots->outcome_of(entry.slot, entry.generation, entry.ticket)
                          .value_or(WriteResult::kNotKnown));
  }
  Part& home = *parts_[part_index(asker.second)];
  home.loop.post([&home, asker, request, results = std::move(results)] {
    const auto lane = home.lanes.find(asker);
    if (lane != home.lanes.end()) lane->second->answer_resolve(request, results);
  });
}

}  // namespace kvferry::data_plane
