// The real core of one side with a translator as its link: no sockets, no memory, virtual time.
// What the rigs of both sides share; each adds what its SGLang side says and its caller does.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/crypto.h"
#include "base/prng.h"
#include "core/protocol.h"
#include "dialect/sglang/translator.h"

namespace kvferry::sglang {

// This side's words in a hello, with 16 tokens to a page, one layer and one rank; heads, regions
// and transports are the rig's.
inline wire::Introduction rig_introduction(Role role) {
  wire::Introduction self;
  self.role = role;
  self.instance = to_string(role);
  self.control_endpoint = self.instance.substr(0, 1) + ":1";
  self.incarnation = Incarnation{1, 1};
  self.engine_epoch = EngineEpoch(7);
  LayoutShape& layout = self.layout;
  layout.model_fingerprint = "model";
  layout.page_size_tokens = 16;
  layout.total_layers = 1;
  layout.head_dim = 4;
  layout.dtype = DType::kU8;
  layout.layers = {0, 1};
  self.limits = {64, 1U << 20, 256};
  return self;
}

class TranslatorRig : public core::ActionSink, public core::Environment {
 public:
  // As texts of the rig's own.
  std::vector<std::string> take_sent() { return std::exchange(sent_, {}); }
  std::vector<std::string> take_not_done() { return std::exchange(not_done_, {}); }
  void give(core::Event event) {
    events_.push_back(std::move(event));
    run();
  }
  std::uint64_t counter(const std::string& name) const {
    const auto found = counters_.find(name);
    return found == counters_.end() ? 0 : found->second;
  }
  std::size_t downs() const { return downs_; }
  std::size_t left() const { return left_; }

  // Until neither side has anything more to do.
  void run() {
    do {
      take_outputs();
      std::vector<core::Event> events = std::exchange(events_, {});
      protocol_->step(now_, events, *this);
      for (const std::string& broken : protocol_->check_invariants()) {
        ADD_FAILURE() << broken;
      }
      // What the core ordered, outside of its step.
      for (const auto& order : std::exchange(orders_, {})) {
        order();
      }
      take_outputs();
    } while (!events_.empty() || !orders_.empty());
  }

  // ActionSink; what a side never orders, or the rig has no use for, is left.
  void publish_status(std::uint64_t owner, KvPoll status) override { status_[owner] = status; }
  bool publish_terminal(std::uint64_t owner, KvPoll status,
                        const std::optional<Failure>& failure) override {
    status_[owner] = status;
    causes_[owner] = failure ? failure->what : "";
    return true;
  }
  void publish_attempt(core::ReceiverId, AttemptId) override {}
  void publish_prefix(SenderId, std::uint32_t) override {}
  void publish_landed_bytes(SenderId, std::uint64_t) override {}
  void release_pages(core::ReleasePages) override {}
  void resolve_prefill(core::ResolvePrefill) override {}
  void dial_peer(core::DialPeer dial) override {
    orders_.push_back([this, dial] {
      EXPECT_TRUE(link_.owns(dial.address));
      link_.handle_dial(dial.peer, dial.address);
    });
  }
  void hang_up(PeerId peer) override {
    orders_.push_back([this, peer] { link_.handle_hang_up(peer); });
  }
  void send_frame(core::SendFrame send) override {
    orders_.push_back([this, send] { link_.handle_frame(send.peer, send.frame); });
  }
  Status open_data_session(core::OpenDataSession) override { return {}; }
  void close_data_session(SessionEpoch) override {}
  void open_grant(core::OpenGrant) override {}
  void fence_grant(GrantId) override {}
  void post_writes(core::PostWrites) override {}
  void give_up_writes(core::GiveUpWrites) override {}
  Status inspect_aux(std::uint32_t, RoomId, Binding) override { return {}; }
  void count(std::string_view counter, std::uint64_t by) override {
    counters_[std::string(counter)] += by;
  }
  void note(std::string_view) override {}
  // Environment
  std::uint64_t random_u64() override { return prng_.next(); }
  void fill_random(std::span<std::uint8_t> out) override { prng_.fill(out); }
  wire::Proof hmac(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data) override {
    return hmac_sha256(key, data);
  }

 protected:
  // link: the derived rig's, which makes the core, too, when it is complete.
  explicit TranslatorRig(Translator& link) : link_(link) {}

  virtual void deliver(ToEndpoint& to) = 0;
  virtual void hold(const RankEndpoint& endpoint) = 0;
  virtual void leave(const RankEndpoint&) {}
  KvPoll status_of(std::uint64_t owner) const {
    const auto found = status_.find(owner);
    return found == status_.end() ? KvPoll::kBootstrapping : found->second;
  }
  void sent(std::string text) { sent_.push_back(std::move(text)); }
  // Done by the next run().
  void order(std::function<void()> what) { orders_.push_back(std::move(what)); }
  void happened(core::Event event) { events_.push_back(std::move(event)); }

  Instant now_{std::chrono::seconds(1)};
  std::unique_ptr<core::Protocol> protocol_;
  std::map<std::uint64_t, std::string> causes_;

 private:
  void take_outputs() {
    for (auto outputs = link_.take_outputs(); !outputs.empty(); outputs = link_.take_outputs()) {
      for (TranslatorOutput& output : outputs) {
        std::visit([this](auto& body) { take(body); }, output);
      }
    }
  }
  void take(VirtualPeerUp& up) { events_.emplace_back(core::LinkUp{up.peer}); }
  void take(VirtualPeerDown& down) {
    ++downs_;
    events_.emplace_back(core::LinkDown{down.peer, core::LinkDown::Why::kRefused});
  }
  void take(VirtualFrame& frame) {
    events_.emplace_back(core::FrameArrived{frame.key, std::move(frame.frame)});
  }
  void take(ToEndpoint& to) { deliver(to); }
  void take(HoldEndpoint& held) { hold(held.endpoint); }
  void take(LeaveEndpoint& left) {
    ++left_;
    leave(left.endpoint);
  }
  void take(NotDone& what) { not_done_.push_back(what.what); }

  Translator& link_;
  Prng prng_{1};
  std::vector<core::Event> events_;
  std::vector<std::function<void()>> orders_;
  std::vector<std::string> sent_;
  std::vector<std::string> not_done_;
  std::map<std::uint64_t, KvPoll> status_;
  std::map<std::string, std::uint64_t> counters_;
  std::size_t downs_ = 0;
  std::size_t left_ = 0;
};

}  // namespace kvferry::sglang
