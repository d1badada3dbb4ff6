// The control link of a manager that speaks SGLang's protocol (docs/adr/0015): wraps the product's
// own, keeps a PULL socket for what SGLang's ranks say and PUSH sockets for what they are told, and
// has a translator between both and the core. Frames for virtual peers end in the translator, all
// others pass; what the translator says comes out of wait() as if virtual peers had sent it.
//
// Not thread-safe: of the driver's thread, as every control link. No method but wait() waits, and
// that does so where the wrapped link does.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "base/log.h"
#include "data_plane/fd.h"
#include "dialect/sglang/codec.h"
#include "dialect/sglang/pull_listener.h"
#include "dialect/sglang/push_endpoints.h"
#include "dialect/sglang/translator.h"
#include "net/control_link.h"

namespace kvferry::sglang {

class DialectLink final : public net::ControlLink {
 public:
  struct Parts {
    std::unique_ptr<zmq::context_t> context;  // of listener and endpoints
    std::unique_ptr<PullListener> listener;
    std::unique_ptr<PushEndpoints> endpoints;
    std::unique_ptr<Translator> translator;
  };
  // reads: whose messages come to the listener; a prefill rank reads each in the flavour that it is
  // of. Fails when the system has no descriptors left.
  static Result<std::unique_ptr<DialectLink>> make(Parts parts, Listener reads,
                                                   const CodecLimits& limits);
  // Once, before any method below.
  void wrap(std::unique_ptr<net::ControlLink> inner) { inner_ = std::move(inner); }

  std::string endpoint() const override { return inner_->endpoint(); }
  Status dial(PeerId peer, const PeerAddress& address) override;
  void hang_up(PeerId peer) override;
  net::LinkSend send(PeerId peer, std::vector<std::uint8_t> frame,
                     net::LinkPriority priority) override;
  void wait(Duration timeout, int wake_fd, std::vector<net::LinkEvent>& events,
            std::size_t max_events) override;
  // What was not done, by name; messages that were dropped, by reason.
  std::vector<net::LinkCounter> counters() const override;
  std::uint64_t counted() const override;

 private:
  struct Count {
    std::uint64_t value = 0;
    log::RateLimit limit;
  };
  DialectLink(Parts parts, Listener reads, const CodecLimits& limits, data_plane::Fd wake);

  bool has_work(Instant now) const;
  void wake_by(int wake_fd);
  void serve(Instant now);
  void serve_listener();
  void serve_endpoints();
  void count_malformed(const Malformed& malformed);
  // Does what the translator wants, in order.
  void carry_out(Instant now);
  void carry_out(VirtualPeerUp& up);
  void carry_out(VirtualPeerDown& down);
  void carry_out(VirtualFrame& frame);
  void carry_out(ToEndpoint& to);
  void carry_out(HoldEndpoint& hold);
  void carry_out(LeaveEndpoint& leave);
  void carry_out(NotDone& not_done);
  void not_done(std::string_view counter, std::string_view what);

  const Listener reads_;
  const CodecLimits limits_;
  // The context is above the sockets: it ends last.
  std::unique_ptr<zmq::context_t> context_;
  std::unique_ptr<PullListener> listener_;
  std::unique_ptr<PushEndpoints> endpoints_;
  std::unique_ptr<Translator> translator_;
  std::unique_ptr<net::ControlLink> inner_;
  // Readable when a socket of the dialect or the caller's own wake-up is, so that the wrapped link
  // has one descriptor to sleep by.
  const data_plane::Fd wake_;
  int caller_wake_ = -1;

  Instant now_{};
  bool listener_ready_ = true;  // it was not read until nothing was left
  std::deque<net::LinkEvent> backlog_;
  std::array<Count, kMalformedReasons> malformed_;
  std::map<std::string, Count, std::less<>> not_done_;
  std::uint64_t counted_ = 0;  // of both
};

}  // namespace kvferry::sglang
