#include "dialect/sglang/dialect_link.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "wire/codec.h"

namespace kvferry::sglang {
namespace {

// Messages of one turn, so that a flood of them keeps nothing else waiting.
constexpr int kMessageBatch = 64;
// With so much not yet taken by the driver nothing more is read.
constexpr std::size_t kBacklogEvents = 4'096;

bool watch(const data_plane::Fd& poll_fd, int fd, int operation) {
  epoll_event entry{};
  entry.events = EPOLLIN;
  return ::epoll_ctl(poll_fd.get(), operation, fd, &entry) == 0;
}

}  // namespace

Result<std::unique_ptr<DialectLink>> DialectLink::make(Parts parts, Listener reads,
                                                       const CodecLimits& limits) {
  data_plane::Fd wake(::epoll_create1(EPOLL_CLOEXEC));
  if (!wake.is_open() || !watch(wake, parts.listener->descriptor(), EPOLL_CTL_ADD) ||
      !watch(wake, parts.endpoints->descriptor(), EPOLL_CTL_ADD)) {
    return fail(FailureCode::kOperatingSystem, data_plane::errno_text("epoll"));
  }
  return std::unique_ptr<DialectLink>(
      new DialectLink(std::move(parts), reads, limits, std::move(wake)));
}

DialectLink::DialectLink(Parts parts, Listener reads, const CodecLimits& limits,
                         data_plane::Fd wake)
    : reads_(reads),
      limits_(limits),
      context_(std::move(parts.context)),
      listener_(std::move(parts.listener)),
      endpoints_(std::move(parts.endpoints)),
      translator_(std::move(parts.translator)),
      wake_(std::move(wake)) {}

// --- the core's side ---

Status DialectLink::dial(PeerId peer, const PeerAddress& address) {
  if (!translator_->owns(address)) {
    return inner_->dial(peer, address);
  }
  translator_->handle_dial(peer, address);
  carry_out(monotonic_now());
  return {};
}

void DialectLink::hang_up(PeerId peer) {
  if (!translator_->owns(peer)) {
    inner_->hang_up(peer);
    return;
  }
  translator_->handle_hang_up(peer);
  carry_out(monotonic_now());
}

net::LinkSend DialectLink::send(PeerId peer, std::vector<std::uint8_t> frame,
                                net::LinkPriority priority) {
  if (!translator_->owns(peer)) {
    return inner_->send(peer, std::move(frame), priority);
  }
  if (const auto decoded = wire::decode(frame)) {
    translator_->handle_frame(peer, *decoded);
    carry_out(monotonic_now());
  } else {
    not_done("sglang_own_frames_unread", decoded.error().what);
  }
  return net::LinkSend::kQueued;
}

// --- waiting ---

bool DialectLink::has_work(Instant now) const {
  if (listener_ready_ || !backlog_.empty()) {
    return true;
  }
  const auto endpoints = endpoints_->next_deadline();
  const auto translator = translator_->next_deadline();
  return (endpoints && *endpoints <= now) || (translator && *translator <= now) ||
         listener_->next_deadline() <= now;
}

void DialectLink::wait(Duration timeout, int wake_fd, std::vector<net::LinkEvent>& events,
                       std::size_t max_events) {
  const Instant now = monotonic_now();
  const std::size_t limit = events.size() + std::max<std::size_t>(max_events, 1);
  wake_by(wake_fd);
  if (has_work(now)) {
    timeout = Duration::zero();
  } else {
    Instant due = listener_->next_deadline();
    due = std::min(due, endpoints_->next_deadline().value_or(due));
    due = std::min(due, translator_->next_deadline().value_or(due));
    timeout = timeout < Duration::zero() ? due - now : std::min(timeout, due - now);
  }
  // Neither side may keep the other from being heard.
  const std::size_t share = backlog_.empty() ? limit - events.size() : (limit - events.size()) / 2;
  inner_->wait(timeout, wake_.get(), events, std::max<std::size_t>(share, 1));
  try {
    serve(monotonic_now());
  } catch (const zmq::error_t& error) {
    // Only a socket or context that is no more throws here; the driver goes on without this turn.
    log::error("SGLang's side of the control link: {}", error.what());
  }
  while (!backlog_.empty() && events.size() < limit) {
    events.push_back(std::move(backlog_.front()));
    backlog_.pop_front();
  }
}

void DialectLink::wake_by(int wake_fd) {
  if (wake_fd == caller_wake_) {
    return;
  }
  if (caller_wake_ >= 0) {
    watch(wake_, caller_wake_, EPOLL_CTL_DEL);
  }
  caller_wake_ = wake_fd >= 0 && watch(wake_, wake_fd, EPOLL_CTL_ADD) ? wake_fd : -1;
}

void DialectLink::serve(Instant now) {
  translator_->advance(now);
  carry_out(now);
  endpoints_->serve(now);
  serve_endpoints();
  serve_listener();
  listener_->serve(now);
}

// What the translator says to this is sent at once, but what becomes of that is looked at in the
// next turn: an endpoint that is lost again and again keeps nobody waiting.
void DialectLink::serve_endpoints() {
  for (EndpointEvent& event : endpoints_->take_events()) {
    if (const auto* up = std::get_if<EndpointUp>(&event)) {
      translator_->handle_endpoint_up(up->endpoint);
    } else {
      const auto& lost = std::get<EndpointLost>(event);
      not_done("sglang_endpoints_lost",
               fmt::format("{}:{} was lost with {} messages: {}", lost.endpoint.ip,
                           lost.endpoint.port, lost.messages, lost.why));
      translator_->handle_endpoint_lost(lost.endpoint);
    }
    carry_out(now_);
  }
}

void DialectLink::serve_listener() {
  listener_ready_ = true;
  for (int i = 0; i < kMessageBatch && backlog_.size() < kBacklogEvents; ++i) {
    const std::optional<Frames> frames = listener_->receive();
    if (!frames) {
      listener_ready_ = false;
      return;
    }
    Listener reads = reads_;
    if (reads.role == Role::kPrefill) {
      reads.flavour = flavour_at_prefill(*frames);
    }
    if (const auto message = decode(reads, *frames, limits_)) {
      translator_->handle(*message);
      carry_out(now_);
    } else {
      count_malformed(message.error());
    }
  }
}

// --- what the translator wants ---

void DialectLink::carry_out(Instant now) {
  now_ = now;
  for (TranslatorOutput& output : translator_->take_outputs()) {
    std::visit([this](auto& each) { carry_out(each); }, output);
  }
}

void DialectLink::carry_out(VirtualPeerUp& up) {
  backlog_.emplace_back(net::LinkConnected{up.peer});
}

// As a connection that is refused: the peer's life is over, which ends the session at once.
void DialectLink::carry_out(VirtualPeerDown& down) {
  backlog_.emplace_back(net::LinkLost{down.peer, net::LinkLost::Why::kRefused});
}

void DialectLink::carry_out(VirtualFrame& frame) {
  backlog_.emplace_back(net::LinkFrame{std::move(frame.key), wire::encode(frame.frame)});
}

void DialectLink::carry_out(ToEndpoint& to) {
  endpoints_->send(to.endpoint, encode(to.flavour, to.message), now_);
}

void DialectLink::carry_out(HoldEndpoint& hold) { endpoints_->hold(hold.endpoint, now_); }

void DialectLink::carry_out(LeaveEndpoint& leave) { endpoints_->leave(leave.endpoint); }

void DialectLink::carry_out(NotDone& what) { not_done(what.counter, what.what); }

// --- counting ---

void DialectLink::not_done(std::string_view counter, std::string_view what) {
  auto found = not_done_.find(counter);
  if (found == not_done_.end()) {
    found = not_done_.try_emplace(std::string(counter)).first;
  }
  Count& count = found->second;
  ++count.value;
  ++counted_;
  if (count.limit.allow(now_)) {
    log::warning("SGLang: {} ({} further lines left out)", what, count.limit.suppressed());
  }
}

void DialectLink::count_malformed(const Malformed& malformed) {
  Count& count = malformed_[static_cast<std::size_t>(malformed.reason)];
  ++count.value;
  ++counted_;
  if (count.limit.allow(now_)) {
    log::warning("dropped a message of SGLang's protocol: {}: {} ({} further lines left out)",
                 to_string(malformed.reason), malformed.what, count.limit.suppressed());
  }
}

std::uint64_t DialectLink::counted() const {
  return counted_ + listener_->cut_unfinished() + listener_->cut_surplus();
}

std::vector<net::LinkCounter> DialectLink::counters() const {
  std::vector<net::LinkCounter> out;
  for (std::size_t reason = 0; reason < malformed_.size(); ++reason) {
    out.push_back({"sglang_malformed_messages",
                   fmt::format("reason=\"{}\"", to_string(static_cast<MalformedReason>(reason))),
                   malformed_[reason].value});
  }
  for (const auto& [name, count] : not_done_) {
    out.push_back({name, {}, count.value});
  }
  out.push_back({"sglang_connections_cut", "why=\"unfinished\"", listener_->cut_unfinished()});
  out.push_back({"sglang_connections_cut", "why=\"surplus\"", listener_->cut_surplus()});
  return out;
}

}  // namespace kvferry::sglang
