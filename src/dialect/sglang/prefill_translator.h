// Stock SGLang decode ranks, seen by the core of a kvferry prefill as kvferry decode processes
// (docs/adr/0015). Pure: SGLang's messages and the core's frames come in, both kinds go out through
// take_outputs(), in order. Single-threaded; belongs to the driver's thread.
//
// For each registration it plays the decode half of one session: it says hello, numbers what it
// says, acknowledges what it hears, turns metadata into a Grant, a Done into SGLang's Success and,
// since SGLang has no such word, a Consumed, and an ABORT into an Abort whose Drained becomes the
// ABORT_ACK. Decode ranks may speak Mooncake's or NIXL's flavour, each its own; a rank is answered
// in the flavour of what it said. First version: TP sizes of which one divides the
// other, no state, no staging, no dummies;
// what it can't serve is refused with a status that names the reason.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/peer_id.h"
#include "dialect/sglang/messages.h"
#include "dialect/sglang/stock_decode.h"
#include "dialect/sglang/translator.h"
#include "wire/messages.h"

namespace kvferry::sglang {

// How this rank's transport gets at the memory that a registration names: the offer that a kvferry
// decode process would have made. Asked again for each registration, so that the same words of
// another process are told apart; a failure refuses the session with its text.
using ReachDecode = std::function<Result<wire::TransportOffer>(const DecodeRank&)>;

struct PrefillTranslatorConfig {
  wire::Introduction self;         // of this prefill rank, as in its own hellos
  std::uint32_t prefill_rank = 0;  // rank_mapping.h: prefill_rank_id()
  ReachDecode reach;
  // Sizes of the decode ranks' pools where their registrations don't tell them; 0: as this rank's
  // own.
  std::uint32_t decode_pages = 0;
  std::uint32_t decode_aux_slots = 0;
  std::size_t max_sessions = 1'024;
  std::size_t max_rooms = 65'536;  // open at one time, and remembered as unproven
  // From a registration until the core has taken the session up.
  Duration greeting_timeout = std::chrono::seconds(5);
};

class PrefillTranslator final : public Translator {
 public:
  explicit PrefillTranslator(PrefillTranslatorConfig config);
  ~PrefillTranslator() override;
  PrefillTranslator(const PrefillTranslator&) = delete;
  PrefillTranslator& operator=(const PrefillTranslator&) = delete;

  void handle(const Message& message) override;
  void handle_endpoint_up(const RankEndpoint&) override {}
  // What was queued there may have been a Success: the endpoint's session ends.
  void handle_endpoint_lost(const RankEndpoint& endpoint) override;
  // Of any life of any session: what was one once is never dialled as something else.
  bool owns(const PeerAddress& address) const override;
  bool owns(PeerId peer) const override { return find(peer) != nullptr; }
  void handle_dial(PeerId peer, const PeerAddress& address) override;
  void handle_hang_up(PeerId peer) override;
  void handle_frame(PeerId peer, const wire::Frame& frame) override;
  void advance(Instant now) override;
  std::optional<Instant> next_deadline() const override;
  std::vector<TranslatorOutput> take_outputs() override { return std::exchange(outputs_, {}); }

  std::size_t session_count() const { return sessions_.size(); }
  std::size_t open_rooms() const { return open_rooms_; }

 private:
  struct Attempt;
  struct Session;

  // from SGLang
  void on(const MooncakeRegistration& registration) { enrol(decode_rank_of(registration)); }
  void on(const NixlRegistration& registration) { enrol(decode_rank_of(registration)); }
  void on(const MooncakeMetadata& metadata) { admit(room_request_of(metadata)); }
  void on(const NixlMetadata& metadata) { admit(room_request_of(metadata)); }
  void on(const AbortRoom& abort);
  template <typename Other>
  void on(const Other& message);

  // from the core
  void on(Session& session, const wire::HelloReply& reply);
  void on(Session& session, const wire::HelloConfirmed& confirmed);
  void on(Session& session, const wire::HelloRefused& refused);
  void on(Session& session, const wire::SessionEnded& ended);
  void on(Session& session, const wire::Heartbeat& heartbeat);
  void on(Session& session, const wire::Done& done);
  void on(Session& session, const wire::Failed& failed);
  void on(Session& session, const wire::Drained& drained);
  template <typename Other>
  void on(Session&, const Other&) {}

  void enrol(DecodeRank rank);
  bool is_claimed_by_another(const DecodeRank& rank);
  void admit(const RoomRequest& request);
  std::optional<std::string> refusal(const Session& session, const RoomRequest& request) const;
  bool make_place();
  wire::Introduction introduction(const Session& session) const;
  void greet(Session& session);
  void open_room(Session& session, const RoomRequest& request);
  void grant(Session& session, Attempt& attempt);
  void refuse(Flavour flavour, const RoomTarget& target, std::string reason);
  void close(Session& session, const std::string& why);
  void remember_unproven(const RankEndpoint& endpoint, RoomId room);
  bool is_unproven(const RankEndpoint& endpoint, RoomId room) const;
  void finish(Session& session, RoomId room);
  void acknowledge(const Session& session, RoomId room, std::uint64_t generation);
  wire::Abort abort_of(const Session& session, RoomId room) const;
  AttemptId low_water_mark(const Session& session) const;
  void say(Session& session, wire::Message message);       // numbered
  void say_once(Session& session, wire::Message message);  // not numbered
  void send(Flavour flavour, const RankEndpoint& endpoint, Message message);
  void not_done(std::string_view counter, std::string what);

  void part_from_peer(Session& session);
  Session* find(PeerId peer) const;
  Session* find(const RankEndpoint& endpoint) const;

  const PrefillTranslatorConfig config_;
  std::map<SessionName, std::unique_ptr<Session>> sessions_;
  std::unordered_map<PeerId, Session*> by_peer_;  // of those that the core has dialled
  std::vector<TranslatorOutput> outputs_;
  std::uint64_t next_key_ = 1;
  std::size_t open_rooms_ = 0;
  Instant now_{};
  // By when the core must have taken a greeted session up: its name and its key of that life.
  struct Greeting {
    Instant due;
    SessionName session;
    std::string key;
  };
  std::deque<Greeting> greetings_;
  // Rooms of sessions that ended before they were drained: whether anything still writes there is
  // not known, so an ABORT of them is never acknowledged.
  std::set<std::pair<std::string, RoomId>> unproven_;
  std::set<std::string> distrusted_;  // endpoints of which some found no place there
};

}  // namespace kvferry::sglang
