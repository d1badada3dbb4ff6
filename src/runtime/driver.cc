#include "runtime/driver.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/runtime_guards.h"

namespace kvferry::runtime {
namespace {

constexpr Duration kMaxWait = milliseconds(250);
constexpr Duration kViewInterval = milliseconds(50);
// While a whole process is paused, the kernel goes on taking in what peers send; the link's own I/O
// thread needs a moment to hand it over.
constexpr Duration kPauseSettle = milliseconds(20);
// What one turn takes in at most, so that a burst of calls or of full frames becomes many turns:
// none keeps the link, the timers or a sleeping caller waiting for long.
constexpr std::size_t kMaxCalls = 2'048;
constexpr std::size_t kMaxLinkEvents = 64;
constexpr std::size_t kMaxSettledEvents = 262'144;
constexpr std::size_t kMaxRoomsShown = 256;
constexpr std::size_t kMaxBrokenShown = 8;
// After the last frame of a stop the sockets get so long to put it on the wire.
constexpr Duration kLastFrames = milliseconds(10);

bool is_owner_cleared(const core::Event& event, std::uint64_t& owner) {
  if (const auto* receiver = std::get_if<core::ReceiverCleared>(&event)) {
    owner = receiver->receiver.value();
    return true;
  }
  if (const auto* sender = std::get_if<core::SenderCleared>(&event)) {
    owner = sender->sender.value();
    return true;
  }
  return false;
}

}  // namespace

Driver::Driver(const Parts& parts, const DriverSink::Parts& sink_parts)
    : parts_(parts),
      sink_(sink_parts),
      // A turn that only waited must not look like a pause.
      max_wait_(std::min<Duration>(kMaxWait, milliseconds(parts.options.pause_threshold_ms) / 2)),
      pause_threshold_(milliseconds(parts.options.pause_threshold_ms)),
      view_(std::make_shared<DriverView>()) {
  codec_limits_.max_frame_bytes = parts.options.control_message_max_bytes;
}

Driver::~Driver() { join(); }

Status Driver::start() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(FailureCode::kOperatingSystem, fmt::format("control thread: {}", error.what()));
  }
  return {};
}

std::shared_ptr<const DriverView> Driver::view() const {
  std::shared_ptr<const DriverView> view;
  {
    std::lock_guard lock(mutex_);
    view = view_;
  }
  if (monotonic_now() - view->taken_at >= kViewInterval &&
      !view_requested_.exchange(true, std::memory_order_acq_rel)) {
    parts_.mailbox.wake();
  }
  return view;
}

void Driver::condemn(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    verdict_ = why;
  }
  condemned_.store(true, std::memory_order_release);
  parts_.mailbox.wake();
}

void Driver::request_stop(Failure cause, Instant deadline) {
  stop_deadline_ns_.store(std::max<std::int64_t>(deadline.since_start().count(), 1),
                          std::memory_order_release);
  parts_.mailbox.push_reserved(core::StopRequested{std::move(cause)});
  parts_.mailbox.wake();
}

void Driver::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Driver::run() {
  parts_.place->begin();
  try {
    last_turn_ = monotonic_now();
    while (!is_finished(monotonic_now())) {
      turn();
      if (!has_guard(RuntimeGuard::kMalformedDropped) && has_seen_malformed()) {
        return;  // as a thread ends that nobody looks after: without a word
      }
    }
    publish_view(monotonic_now());
    const Failure cause{
        FailureCode::kShuttingDown, FailureWhere::kLocal, "the manager was stopped", {}, -1};
    parts_.mailbox.close(cause);
    parts_.table.fail_all(cause);
    parts_.place->ends({});
  } catch (const std::exception& error) {
    die(error.what());
  } catch (...) {
    die("unknown exception");
  }
  parts_.releases.raise();
}

// Nothing turns any more: whoever waits is told so, and every later call is refused.
void Driver::die(std::string_view why) {
  const Failure cause{FailureCode::kControlThreadDead,
                      FailureWhere::kLocal,
                      fmt::format("control thread ended: {}", why),
                      {},
                      -1};
  log::error("{}", cause.what);
  parts_.mailbox.close(cause);
  parts_.table.fail_all(cause);
  parts_.place->ends(std::string(why));
}

Duration Driver::time_to_wait(Instant now) const {
  if (!carried_.empty()) {
    return Duration::zero();
  }
  Instant until = std::min(now + max_wait_, parts_.protocol.next_deadline());
  if (dirty_ || view_requested_.load(std::memory_order_acquire)) {
    until = std::min(until, next_view_);
  }
  if (stop_seen_) {
    until = std::min(until, now + kLastFrames);
  }
  return std::max(until - now, Duration::zero());
}

void Driver::turn() {
  Instant now = monotonic_now();
  parts_.place->waits();
  parts_.link.wait(time_to_wait(now), parts_.mailbox.wake_fd(), link_events_, kMaxLinkEvents);
  parts_.place->works();
  if (condemned_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    throw std::runtime_error(verdict_);
  }
  now = monotonic_now();
  std::size_t max_calls = kMaxCalls;
  if (now - last_turn_ > pause_threshold_) {
    settle_after_pause();
    max_calls = std::numeric_limits<std::size_t>::max();
    now = monotonic_now();
  }
  gather(max_calls);
  note_owners_cleared();
  const bool eventful = !events_.empty();
  parts_.protocol.step(now, events_, sink_);
  events_.clear();
  carried_.swap(sink_.caused());
  for (const std::uint64_t owner : cleared_) {
    parts_.table.release(owner);
  }
  cleared_.clear();
  last_turn_ = monotonic_now();
  if (sink_.take_news()) {
    parts_.releases.raise();
  }
  const std::uint64_t link_counted = parts_.link.counted();
  dirty_ = dirty_ || eventful || link_counted != std::exchange(link_counted_before_, link_counted);
  if ((dirty_ || view_requested_.load(std::memory_order_acquire)) && last_turn_ >= next_view_) {
    publish_view(last_turn_);
  }
}

// The pause rule (rule 13): what came in meanwhile is settled before the timers that fell due.
void Driver::settle_after_pause() {
  sink_.count("pauses", 1);
  const Instant until = monotonic_now() + kPauseSettle;
  for (Instant now = monotonic_now(); now < until && link_events_.size() < kMaxSettledEvents;
       now = monotonic_now()) {
    parts_.link.wait(until - now, -1, link_events_, kMaxLinkEvents);
  }
}

// Completions first, then calls, then frames: a landing is reported before its writer can say Done,
// and a room is opened before the frame that answers it.
void Driver::gather(std::size_t max_calls) {
  parts_.mailbox.drain(events_, max_calls);
  if (!carried_.empty()) {
    events_.insert(events_.end(), std::make_move_iterator(carried_.begin()),
                   std::make_move_iterator(carried_.end()));
    carried_.clear();
  }
  add_link_events();
}

void Driver::add_link_events() {
  for (net::LinkEvent& event : link_events_) {
    std::visit([this](auto& each) { add_link_event(std::move(each)); }, event);
  }
  link_events_.clear();
}

void Driver::add_link_event(net::LinkFrame&& frame) {
  tl::expected<wire::Frame, wire::Malformed> decoded = wire::decode(frame.bytes, codec_limits_);
  if (!decoded) {
    count_malformed(decoded.error());
    return;
  }
  events_.emplace_back(core::FrameArrived{std::move(frame.sender_key), std::move(*decoded)});
}

void Driver::add_link_event(net::LinkConnected&& connected) {
  events_.emplace_back(core::LinkUp{connected.peer});
}

void Driver::add_link_event(net::LinkLost&& lost) {
  using Why = core::LinkDown::Why;
  Why why = Why::kClosed;
  switch (lost.why) {
    case net::LinkLost::Why::kClosed:
      break;
    case net::LinkLost::Why::kRefused:
      why = Why::kRefused;
      break;
    case net::LinkLost::Why::kHandshakeFailed:
      why = Why::kWrongKey;
      break;
    case net::LinkLost::Why::kDenied:
      why = Why::kDenied;
      break;
  }
  events_.emplace_back(core::LinkDown{lost.peer, why});
  sink_.doubt(lost.peer);
}

void Driver::add_link_event(net::LinkStranger&& stranger) {
  ++strangers_refused_;
  dirty_ = true;
  parts_.resolver.refresh_keys();
  if (stranger_limit_.allow(monotonic_now())) {
    log::info("refused key {} that no registry lists ({} further lines left out)",
              stranger.public_key, stranger_limit_.suppressed());
  }
}

void Driver::add_link_event(net::LinkBadHandshake&&) {
  ++bad_handshakes_;
  dirty_ = true;
}

void Driver::add_link_event(net::LinkMalformed&& malformed) {
  ++malformed_messages_;
  dirty_ = true;
  if (message_limit_.allow(monotonic_now())) {
    log::warning("dropped a message of the control link: {} ({} further lines left out)",
                 malformed.what, message_limit_.suppressed());
  }
}

void Driver::count_malformed(const wire::Malformed& malformed) {
  const auto reason = static_cast<std::size_t>(malformed.reason);
  ++malformed_frames_[reason];
  dirty_ = true;
  log::RateLimit& limit = malformed_limits_[reason];
  if (limit.allow(monotonic_now())) {
    log::warning("dropped a frame: {}: {} ({} further lines left out)",
                 wire::to_string(malformed.reason), malformed.what, limit.suppressed());
  }
}

bool Driver::has_seen_malformed() const {
  return malformed_messages_ > 0 || std::any_of(malformed_frames_.begin(), malformed_frames_.end(),
                                                [](std::uint64_t count) { return count > 0; });
}

// The step takes the events over, so whose places it frees is noted before.
void Driver::note_owners_cleared() {
  for (const core::Event& event : events_) {
    std::uint64_t owner = 0;
    if (is_owner_cleared(event, owner)) {
      cleared_.push_back(owner);
    } else if (std::holds_alternative<core::StopRequested>(event)) {
      stop_seen_ = true;
    }
  }
}

void Driver::publish_view(Instant now) {
  view_requested_.store(false, std::memory_order_release);
  auto view = std::make_shared<DriverView>();
  view->snapshot = parts_.protocol.snapshot(now, kMaxRoomsShown);
  view->counters = sink_.counters();
  view->link_counters = parts_.link.counters();
  view->malformed_frames = malformed_frames_;
  view->malformed_messages = malformed_messages_;
  view->strangers_refused = strangers_refused_;
  view->bad_handshakes = bad_handshakes_;
  view->taken_at = now;
  check_invariants(now, *view);
  const Duration cost = monotonic_now() - now;
  next_view_ = now + std::max(kViewInterval, cost * 20);
  dirty_ = false;
  std::lock_guard lock(mutex_);
  view_ = std::move(view);
}

// Production degrades where the simulator stops: a broken invariant is logged and makes readiness
// fall.
void Driver::check_invariants(Instant now, DriverView& view) {
  if (now >= next_invariants_) {
    std::vector<std::string> broken = parts_.protocol.check_invariants();
    if (!broken.empty() && broken_invariants_.empty()) {
      log::error("broken invariant: {}", broken.front());
    }
    sink_.count("invariants_broken", broken.size());
    broken.resize(std::min(broken.size(), kMaxBrokenShown));
    broken_invariants_ = std::move(broken);
    const Duration cost = monotonic_now() - now;
    next_invariants_ = now + std::max<Duration>(std::chrono::seconds(1), cost * 100);
  }
  view.broken_invariants = broken_invariants_;
}

bool Driver::is_finished(Instant now) {
  const std::int64_t deadline_ns = stop_deadline_ns_.load(std::memory_order_acquire);
  if (deadline_ns == 0) {
    return false;
  }
  if (now >= Instant(Duration(deadline_ns))) {
    return true;
  }
  if (!stop_seen_) {
    return false;
  }
  const core::Snapshot snapshot = parts_.protocol.snapshot(now, 0);
  const bool idle =
      snapshot.room_count == 0 && snapshot.grants == 0 && snapshot.tickets == 0 &&
      std::all_of(snapshot.peers.begin(), snapshot.peers.end(), [](const core::PeerView& peer) {
        return peer.unacknowledged == 0 && peer.queued_messages == 0;
      });
  if (!idle || sink_.frames_sent() != frames_sent_before_) {
    frames_sent_before_ = sink_.frames_sent();
    quiet_since_ = Instant::max();
    return false;
  }
  quiet_since_ = std::min(quiet_since_, now);
  return now >= quiet_since_ + kLastFrames;
}

}  // namespace kvferry::runtime
