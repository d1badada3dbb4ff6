// Stock SGLang prefill ranks, seen by the core of a kvferry decode rank as kvferry prefill
// processes (docs/adr/0015). Pure but for the aux shadow, which is this process's memory: SGLang's
// messages and the core's frames come in, both kinds go out through take_outputs(), in order.
// Single-threaded; belongs to the driver's thread.
//
// For each prefill rank that the core dials it registers this decode rank there and plays the
// prefill half of one session: it answers the hello, numbers what it says and acknowledges what it
// hears. The grants of an attempt become metadata for every rank of the mapping at once; statuses
// become Done or Failed; an Abort becomes ABORT, said again until it is acknowledged, and only that
// acknowledgement, naming the attempt, becomes Drained. What is not served is refused with Failed
// and its reason, and SGLang hears nothing of it.
//
// Limits of what an ABORT_ACK proves: where several decode ranks take a room from one prefill rank,
// that rank may acknowledge before it has heard of all of them, and write afterwards; there an
// acknowledgement counts only after a status of the room. In NIXL's flavour it does not count of a
// rank that has said that the room failed: an error of NIXL's ends no write.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/peer_id.h"
#include "dialect/sglang/aux_shadow.h"
#include "dialect/sglang/decode_rooms.h"
#include "dialect/sglang/messages.h"
#include "dialect/sglang/stock_prefill.h"
#include "dialect/sglang/translator.h"
#include "wire/messages.h"

namespace kvferry::sglang {

using Registration = std::variant<MooncakeRegistration, NixlRegistration>;

// How a prefill rank's writes come, asked for each session; a failure refuses it.
using ReachPrefill = std::function<Result<wire::TransportOffer>(const PrefillRank& rank)>;

struct DecodeTranslatorConfig {
  wire::Introduction self;    // of this decode rank, as in its own hellos
  Registration registration;  // what prefill ranks are told; it decides the flavour
  ReachPrefill reach;
  // An ABORT is said again after so long, then after twice that, and so on.
  Duration repeat_min = std::chrono::milliseconds(100);
  Duration repeat_max = std::chrono::milliseconds(2'000);
  // Once every rank has succeeded the aux slot is looked at so often, and for so long.
  Duration aux_interval = std::chrono::milliseconds(1);
  Duration aux_timeout = std::chrono::milliseconds(5'000);
  std::size_t max_rooms = 65'536;  // open at one time, and remembered as unproven
};

class DecodeTranslator final : public Translator {
 public:
  // shadow outlives the translator.
  DecodeTranslator(DecodeTranslatorConfig config, AuxShadow& shadow);
  ~DecodeTranslator() override;
  DecodeTranslator(const DecodeTranslator&) = delete;
  DecodeTranslator& operator=(const DecodeTranslator&) = delete;

  void handle(const Message& message) override;
  void handle_endpoint_up(const RankEndpoint& endpoint) override;
  // Its sessions end. Nothing proves what becomes of their rooms on SGLang's side.
  void handle_endpoint_lost(const RankEndpoint& endpoint) override;
  bool owns(const PeerAddress& address) const override;
  bool owns(PeerId peer) const override { return peers_.contains(peer); }
  void handle_dial(PeerId peer, const PeerAddress& address) override;
  void handle_hang_up(PeerId peer) override;
  void handle_frame(PeerId peer, const wire::Frame& frame) override;
  void advance(Instant now) override;
  std::optional<Instant> next_deadline() const override { return rooms_.next_due(); }
  std::vector<TranslatorOutput> take_outputs() override { return std::exchange(outputs_, {}); }

  std::size_t open_rooms() const { return rooms_.size(); }

 private:
  struct Peer;
  struct Endpoint;

  // from SGLang
  void on(const RoomStatus& status);
  void on(const AbortAck& ack);
  void on(const AuxData& data);
  template <typename Other>
  void on(const Other& message);
  void succeeded(DecodeAttempt& attempt, DecodeTarget& target);
  void look_at_aux(DecodeAttempt& attempt);

  // from the core
  void on(Peer& peer, const wire::Hello& hello);
  void on(Peer& peer, const wire::HelloConfirm& confirm);
  void on(Peer& peer, const wire::SessionEnded& ended);
  void on(Peer& peer, const wire::Heartbeat& heartbeat);
  void on(Peer& peer, const wire::Grant& grant);
  void on(Peer& peer, const wire::Consumed& consumed);
  void on(Peer& peer, const wire::Abort& abort);
  template <typename Other>
  void on(Peer&, const Other&) {}

  // rooms
  std::optional<std::string> refusal(const Peer& peer, const wire::Grant& grant) const;
  Result<std::vector<DecodeTarget>> targets_of(const Peer& peer) const;
  void tell(const Peer& peer, DecodeAttempt& attempt, const wire::Grant& grant);
  void start_abort(DecodeAttempt& attempt);
  void repeat_abort(DecodeAttempt& attempt);
  void say_done(DecodeAttempt& attempt, DecodeTarget& target);
  void say_drained(DecodeAttempt& attempt, DecodeTarget& target);
  void say_failed(DecodeAttempt& attempt, Failure cause);
  void refuse(Peer& peer, const wire::Grant& grant, std::string reason);
  void release_endpoint(DecodeTarget& target);
  void close_if_over(AttemptId id);

  // peers
  void end_session(Peer& peer);
  void leave_if_unused(const RankEndpoint& endpoint);
  wire::Introduction introduction(const Peer& peer, wire::TransportOffer offer) const;
  void refuse_hello(const Peer& peer, const wire::Hello& hello, const Failure& reason);
  const RankEndpoint& own_endpoint() const;
  bool is_nixl() const;
  Result<StockPairing> pair(const PrefillRank& rank) const;
  Peer* find(PeerId peer) const;
  Peer* find_live(const DecodeTarget& target) const;

  void say(Peer& peer, wire::Message message);       // numbered
  void say_once(Peer& peer, wire::Message message);  // not numbered
  void say_in_hello(const Peer& peer, wire::Message message);
  void send(const RankEndpoint& endpoint, Message message);
  void not_done(std::string_view counter, std::string what);

  const DecodeTranslatorConfig config_;
  AuxShadow& shadow_;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;
  std::map<std::string, Endpoint> endpoints_;  // by their text
  DecodeRooms rooms_;
  std::vector<TranslatorOutput> outputs_;
  Instant now_;
  std::uint64_t next_epoch_ = 1;
};

}  // namespace kvferry::sglang
