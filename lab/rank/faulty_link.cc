#include "lab/rank/faulty_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/prng.h"
#include "base/runtime_guards.h"
#include "wire/codec.h"

namespace kvferry::lab {
namespace {

using What = MessageFault::What;

// By What.
constexpr std::string_view kFates[] = {"dropped", "duplicated", "held"};

template <std::size_t... kIndex>
std::vector<std::string> kinds_of(std::index_sequence<kIndex...>) {
  return {std::string(
      wire::kind_name(wire::Message(std::variant_alternative_t<kIndex, wire::Message>{})))...};
}

}  // namespace

std::vector<std::string> message_kinds() {
  return kinds_of(std::make_index_sequence<std::variant_size_v<wire::Message>>());
}

Status MessageFaults::add(MessageFault fault) {
  const std::vector<std::string> kinds = message_kinds();
  if (std::ranges::find(kinds, fault.kind) == kinds.end()) {
    return fail(FailureCode::kInvalidArgument, fmt::format("'{}' is no message; there are {}",
                                                           fault.kind, fmt::join(kinds, ", ")));
  }
  std::lock_guard lock(mutex_);
  rules_.push_back(Rule{std::move(fault)});
  return {};
}

void MessageFaults::mend() {
  std::lock_guard lock(mutex_);
  rules_.clear();
}

void MessageFaults::release(std::optional<std::uint64_t> seed) {
  std::lock_guard lock(mutex_);
  ++release_.number;
  release_.seed = seed;
}

std::uint64_t MessageFaults::struck() const {
  std::lock_guard lock(mutex_);
  return struck_;
}

MessageFaults::Release MessageFaults::released() const {
  std::lock_guard lock(mutex_);
  return release_;
}

std::optional<What> MessageFaults::judge(std::string_view kind, bool incoming) {
  std::lock_guard lock(mutex_);
  std::optional<What> fate;
  for (Rule& rule : rules_) {
    if (rule.fault.kind != kind || rule.fault.incoming != incoming) continue;
    const std::uint64_t number = ++rule.seen;
    if (!fate && number >= rule.fault.first && number - rule.fault.first < rule.fault.count) {
      fate = rule.fault.what;
      ++struck_;
    }
  }
  return fate;
}

class FaultyLink final : public net::ControlLink {
 public:
  FaultyLink(std::unique_ptr<net::ControlLink> inner, MessageFaults& faults, const Routes& routes,
             Journal* journal)
      : inner_(std::move(inner)), faults_(faults), routes_(routes), journal_(journal) {}

  std::string endpoint() const override { return inner_->endpoint(); }
  Status dial(PeerId peer, const PeerAddress& address) override {
    PeerAddress led = address;
    led.endpoint = routes_.of(address.endpoint);
    return inner_->dial(peer, led);
  }
  void hang_up(PeerId peer) override { inner_->hang_up(peer); }

  net::LinkSend send(PeerId peer, std::vector<std::uint8_t> bytes,
                     net::LinkPriority priority) override {
    send_released();
    auto frame = wire::decode(bytes);
    if (!frame) return inner_->send(peer, std::move(bytes), priority);
    Parts parts = split(*std::move(frame), false);
    for (wire::Frame& held : parts.held) {
      held_out_.push_back({peer, wire::encode(held), priority});
    }
    // In the field each message was one of its own.
    const bool goes_whole = parts.untouched && has_guard(RuntimeGuard::kWholeMessages);
    if (goes_whole) return inner_->send(peer, std::move(bytes), priority);
    net::LinkSend result = net::LinkSend::kQueued;
    for (const wire::Frame& part : parts.passed) {
      result = inner_->send(peer, wire::encode(part), priority);
    }
    return result;
  }

  void wait(Duration timeout, int wake_fd, std::vector<net::LinkEvent>& events,
            std::size_t max_events) override {
    if (faults_.thread_ends_.load(std::memory_order_acquire)) {
      throw std::runtime_error("the drill ends this thread");
    }
    send_released();
    const std::size_t before = events.size();
    inner_->wait(timeout, wake_fd, events, max_events);
    std::vector<net::LinkEvent> came(std::make_move_iterator(events.begin() + before),
                                     std::make_move_iterator(events.end()));
    events.resize(before);
    for (net::LinkEvent& frame : std::exchange(released_in_, {})) {
      events.push_back(std::move(frame));
    }
    for (net::LinkEvent& event : came) receive(std::move(event), events);
  }

 private:
  // What becomes of a frame's messages.
  struct Parts {
    bool untouched = true;
    std::vector<wire::Frame> passed;
    std::vector<wire::Frame> held;
  };
  struct Outgoing {
    PeerId peer;
    std::vector<std::uint8_t> bytes;
    net::LinkPriority priority;
  };

  Parts split(wire::Frame frame, bool incoming) {
    Parts parts;
    std::vector<wire::Message> messages = std::exchange(frame.messages, {});
    for (std::size_t i = 0; i < messages.size(); ++i) {
      wire::Frame single = frame;
      if (frame.sequence != 0) single.sequence = frame.sequence + i;
      single.messages.push_back(std::move(messages[i]));
      const auto fate = faults_.judge(wire::kind_name(single.messages.front()), incoming);
      note(single, incoming, fate ? kFates[static_cast<std::size_t>(*fate)] : "");
      parts.untouched = parts.untouched && !fate;
      if (fate == What::kHold) {
        parts.held.push_back(std::move(single));
        continue;
      }
      if (fate == What::kDuplicate) parts.passed.push_back(single);
      if (!fate || fate == What::kDuplicate) parts.passed.push_back(std::move(single));
    }
    return parts;
  }

  // Of one message.
  void note(const wire::Frame& single, bool incoming, std::string_view fate) {
    if (journal_ == nullptr) return;
    const wire::Message& message = single.messages.front();
    router::JsonObject line = Journal::line("message");
    line.text("way", incoming ? "in" : "out")
        .text("kind", wire::kind_name(message))
        .integer("session", static_cast<std::int64_t>(single.session.value()));
    if (single.sequence != 0) line.integer("number", static_cast<std::int64_t>(single.sequence));
    if (const auto* reply = std::get_if<wire::HelloReply>(&message)) {
      line.integer("opens", static_cast<std::int64_t>(reply->epoch.value()));
    }
    std::visit(
        [&](const auto& body) {
          if constexpr (requires { body.generation; }) {
            line.integer("slot", body.slot.value())
                .integer("generation", static_cast<std::int64_t>(body.generation.value()));
          }
        },
        message);
    if (!fate.empty()) line.text("fate", fate);
    journal_->append(line);
  }

  void note_released(const std::vector<std::uint8_t>& bytes, bool incoming) {
    if (const auto single = wire::decode(bytes)) note(*single, incoming, "released");
  }

  void receive(net::LinkEvent event, std::vector<net::LinkEvent>& events) {
    auto* came = std::get_if<net::LinkFrame>(&event);
    auto frame =
        came == nullptr ? tl::expected<wire::Frame, wire::Malformed>{} : wire::decode(came->bytes);
    if (came == nullptr || !frame) {
      events.push_back(std::move(event));
      return;
    }
    Parts parts = split(*std::move(frame), true);
    for (const wire::Frame& held : parts.held) {
      held_in_.emplace_back(net::LinkFrame{came->sender_key, wire::encode(held)});
    }
    if (parts.untouched) {
      events.push_back(std::move(event));
      return;
    }
    for (const wire::Frame& part : parts.passed) {
      events.emplace_back(net::LinkFrame{came->sender_key, wire::encode(part)});
    }
  }

  void send_released() {
    const MessageFaults::Release release = faults_.released();
    if (release.number == released_) return;
    released_ = release.number;
    if (release.seed) {
      Prng prng(*release.seed);
      shuffle(held_out_, prng);
      shuffle(held_in_, prng);
    }
    for (Outgoing& out : std::exchange(held_out_, {})) {
      note_released(out.bytes, false);
      inner_->send(out.peer, std::move(out.bytes), out.priority);
    }
    released_in_ = std::exchange(held_in_, {});
    for (const net::LinkEvent& event : released_in_) {
      note_released(std::get<net::LinkFrame>(event).bytes, true);
    }
  }

  template <typename T>
  static void shuffle(std::vector<T>& items, Prng& prng) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[prng.below(i)]);
  }

  std::unique_ptr<net::ControlLink> inner_;
  MessageFaults& faults_;
  const Routes& routes_;
  Journal* journal_;
  std::uint64_t released_ = 0;
  std::vector<Outgoing> held_out_;
  std::vector<net::LinkEvent> held_in_;
  std::vector<net::LinkEvent> released_in_;
};

std::unique_ptr<net::ControlLink> make_faulty_link(std::unique_ptr<net::ControlLink> inner,
                                                   MessageFaults& faults, const Routes& routes,
                                                   Journal* journal) {
  return std::make_unique<FaultyLink>(std::move(inner), faults, routes, journal);
}

}  // namespace kvferry::lab
