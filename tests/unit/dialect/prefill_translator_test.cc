// The translator between what a stock SGLang decode rank sends and the real core of a prefill rank:
// no sockets, no memory, time stands still.
#include "dialect/sglang/prefill_translator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/crypto.h"
#include "base/prng.h"
#include "core/protocol.h"

namespace kvferry::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kItemBytes = 64;
constexpr std::uint32_t kPages = 32;
constexpr std::uint32_t kPrefillRank = 5;
constexpr std::uint16_t kFirstPort = 41'235;
constexpr RegionId kAuxRegion{2};

// In a storm each decode rank has four rooms of two pages, which no other has.
constexpr std::uint32_t kStormRanks = 4;
constexpr std::uint32_t kStormRooms = 4;
std::vector<std::uint32_t> storm_pages(std::uint32_t rank, std::uint32_t room) {
  const std::uint32_t first = 2 * (rank * kStormRooms + room % kStormRooms);
  return {first, first + 1};
}

wire::Introduction prefill_self() {
  wire::Introduction self;
  self.role = Role::kPrefill;
  self.instance = "prefill";
  self.control_endpoint = "p:1";
  self.incarnation = Incarnation{1, 1};
  self.engine_epoch = EngineEpoch(7);
  LayoutShape& layout = self.layout;
  layout.model_fingerprint = "model";
  layout.page_size_tokens = 16;
  layout.total_layers = 1;
  layout.total_kv_heads = 1;
  layout.head_dim = 4;
  layout.dtype = DType::kU8;
  layout.layers = {0, 1};
  layout.heads = {0, 1};
  layout.regions = {{RegionKind::kKey, 0, kItemBytes, kPages, MemoryKind::kHost},
                    {RegionKind::kValue, 0, kItemBytes, kPages, MemoryKind::kHost},
                    {RegionKind::kAux, 0, kAuxRecordBytes, 8, MemoryKind::kHost}};
  self.limits = {64, 1U << 20, 256};
  self.transports = {{"raw", {}}};
  return self;
}

MooncakeRegistration registration(std::string session = "10.0.0.2:15003",
                                  std::uint16_t port = 41'235) {
  MooncakeRegistration out;
  out.endpoint = {"10.0.0.2", port};
  out.session = std::move(session);
  out.memory.kv_pointers = {0x1000, 0x2000};
  out.memory.aux_pointers = {0x3000};
  out.memory.kv_item_bytes = kItemBytes;
  return out;
}

MooncakeMetadata metadata(std::uint64_t room, std::vector<std::uint32_t> pages = {5, 6}) {
  MooncakeMetadata out;
  out.target.room = RoomId(room);
  out.target.endpoint = {"10.0.0.2", 41'235};
  for (const std::uint32_t page : pages) {
    out.target.pages.emplace_back(page);
  }
  out.session = "10.0.0.2:15003";
  out.aux_index = 3;
  return out;
}

AbortRoom abort_of(std::uint64_t room, std::optional<std::uint64_t> generation = 9) {
  return {RoomId(room), RankEndpoint{"10.0.0.2", 41'235}, generation};
}

// The core, its caller and its transport, with the translator as its link.
class Rig final : public core::ActionSink, public core::Environment {
 public:
  explicit Rig(const PrefillTranslatorConfig& configured = config())
      : translator_(configured),
        protocol_(core::make_prefill_protocol(
            {Options{}, prefill_self(), core::TransportClass{false, false, false}}, *this)) {}

  // --- SGLang's side ---
  static PrefillTranslatorConfig config() {
    PrefillTranslatorConfig out;
    out.self = prefill_self();
    out.prefill_rank = kPrefillRank;
    out.reach = [](const MooncakeRegistration& registered) -> Result<wire::TransportOffer> {
      if (registered.memory.aux_pointers.empty()) {
        return fail(FailureCode::kInvalidArgument, "no aux buffer");
      }
      return wire::TransportOffer{"raw", process};
    };
    return out;
  }
  // The process that the decode rank is, as far as the transport can tell.
  static inline std::vector<std::uint8_t> process{1};

  void arrive(const Message& message) {
    translator_.handle(message);
    run();
  }
  void lose_endpoint(const RankEndpoint& endpoint) {
    translator_.handle_endpoint_lost(endpoint);
    run();
  }
  // As text: "room 1 success", "ack room 1 generation 9".
  std::vector<std::string> take_sent() { return std::exchange(sent_, {}); }
  std::vector<std::string> take_not_done() { return std::exchange(not_done_, {}); }

  // --- the caller's side ---
  SenderId open(std::uint64_t room) {
    const SenderId sender(next_sender_++);
    give(core::SenderOpened{sender, RoomId(room), Binding{}});
    return sender;
  }
  SenderId send(std::uint64_t room, std::vector<std::uint32_t> pages = {1, 2}) {
    const SenderId sender = open(room);
    give(core::SenderInitialized{sender, static_cast<std::uint32_t>(pages.size()), 0});
    core::ChunkGiven chunk{sender, {}, {}};
    for (const std::uint32_t page : pages) {
      chunk.pages.emplace_back(page);
    }
    give(std::move(chunk));
    return sender;
  }
  void give(core::Event event) {
    events_.push_back(std::move(event));
    run();
  }
  KvPoll status(SenderId sender) const {
    const auto found = status_.find(sender.value());
    return found == status_.end() ? KvPoll::kBootstrapping : found->second;
  }
  std::string cause(SenderId sender) const { return causes_.at(sender.value()); }

  // --- the transport's side ---
  struct Posted {
    SessionEpoch session;
    layout::Write write;
  };
  const std::vector<Posted>& posted() const { return posted_; }
  // The first `most` of the posted writes end.
  void finish_writes(layout::WriteOutcome outcome = layout::WriteOutcome::kLanded,
                     std::size_t most = std::numeric_limits<std::size_t>::max()) {
    const auto end = posted_.begin() + static_cast<std::ptrdiff_t>(std::min(most, posted_.size()));
    const std::vector<Posted> ended(posted_.begin(), end);
    posted_.erase(posted_.begin(), end);
    core::WritesCompleted completed;
    for (const Posted& each : ended) {
      completed.completions.push_back({each.session, each.write.ticket, outcome, false});
    }
    if (outcome == layout::WriteOutcome::kUnknown) {
      unknown_.insert(unknown_.end(), ended.begin(), ended.end());
    }
    give(std::move(completed));
  }
  void become_quiet() {
    for (const Posted& each : std::exchange(unknown_, {})) {
      give(core::WritesQuiet{each.session, {each.write.ticket}});
    }
  }

  PrefillTranslator& translator() { return translator_; }
  // Nothing runs for so long; then a turn comes, as the link and the driver take it.
  void sleep(Duration time) {
    now_ = now_ + time;
    translator_.advance(now_);
    run();
  }
  std::uint64_t counter(const std::string& name) const {
    const auto found = counters_.find(name);
    return found == counters_.end() ? 0 : found->second;
  }
  std::size_t downs() const { return downs_; }
  std::size_t left() const { return left_; }
  const std::vector<PeerAddress>& dialled() const { return dialled_; }
  std::size_t acks() const { return acks_; }

  void run() {
    do {
      for (TranslatorOutput& output : translator_.take_outputs()) {
        std::visit([this](auto& body) { take(body); }, output);
      }
      std::vector<core::Event> events = std::exchange(events_, {});
      protocol_->step(now_, events, *this);
      for (const std::string& broken : protocol_->check_invariants()) {
        ADD_FAILURE() << broken;
      }
      // What the core ordered, outside of its step.
      for (const auto& order : std::exchange(orders_, {})) {
        order();
      }
      auto outputs = translator_.take_outputs();
      for (TranslatorOutput& output : outputs) {
        std::visit([this](auto& body) { take(body); }, output);
      }
    } while (!events_.empty());
  }

  // ActionSink
  void publish_status(std::uint64_t owner, KvPoll status) override { status_[owner] = status; }
  bool publish_terminal(std::uint64_t owner, KvPoll status,
                        const std::optional<Failure>& failure) override {
    status_[owner] = status;
    causes_[owner] = failure ? failure->what : "";
    return true;
  }
  void publish_attempt(core::ReceiverId, AttemptId) override {}
  void publish_prefix(SenderId, std::uint32_t pages) override { prefix_pages_ = pages; }
  void publish_landed_bytes(SenderId, std::uint64_t) override {}
  void release_pages(core::ReleasePages) override {}
  void resolve_prefill(core::ResolvePrefill) override {}
  void dial_peer(core::DialPeer dial) override {
    dialled_.push_back(dial.address);
    orders_.push_back([this, dial] { translator_.handle_dial(dial.peer, dial.address); });
  }
  void hang_up(PeerId peer) override {
    orders_.push_back([this, peer] { translator_.handle_hang_up(peer); });
  }
  void send_frame(core::SendFrame send) override {
    orders_.push_back([this, send] { translator_.handle_frame(send.peer, send.frame); });
  }
  Status open_data_session(core::OpenDataSession) override { return {}; }
  void close_data_session(SessionEpoch) override {}
  void open_grant(core::OpenGrant) override {}
  void fence_grant(GrantId) override {}
  void post_writes(core::PostWrites post) override {
    for (const layout::Write& write : post.writes) {
      posted_.push_back({post.session, write});
    }
  }
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

  std::uint32_t prefix_pages_ = 0;

 private:
  void take(VirtualPeerUp& up) { events_.emplace_back(core::LinkUp{up.peer}); }
  void take(VirtualPeerDown& down) {
    ++downs_;
    events_.emplace_back(core::LinkDown{down.peer, core::LinkDown::Why::kRefused});
  }
  void take(VirtualFrame& frame) {
    events_.emplace_back(core::FrameArrived{frame.key, std::move(frame.frame)});
  }
  void take(ToEndpoint& to) {
    EXPECT_EQ(to.endpoint.ip, "10.0.0.2");
    if (const auto* status = std::get_if<RoomStatus>(&to.message)) {
      EXPECT_EQ(status->prefill_rank, kPrefillRank);
      sent_.push_back(fmt::format("room {} {}", status->room.value(),
                                  status->status == KvPoll::kSuccess
                                      ? "success"
                                      : fmt::format("failed: {}", status->reason)));
    } else if (const auto* ack = std::get_if<AbortAck>(&to.message)) {
      EXPECT_EQ(ack->prefill_rank, kPrefillRank);
      expect_quiet(to.endpoint, ack->room);
      ++acks_;
      sent_.push_back(
          fmt::format("ack room {} generation {}", ack->room.value(), ack->generation.value_or(0)));
    } else {
      sent_.push_back(std::string(kind_name(to.message)));
    }
  }
  // What an acknowledgement says: nothing writes to the room's pages any more.
  void expect_quiet(const RankEndpoint& endpoint, RoomId room) const {
    const std::vector<std::uint32_t> pages =
        storm_pages(endpoint.port - kFirstPort, static_cast<std::uint32_t>(room.value()));
    for (const auto* unfinished : {&posted_, &unknown_}) {
      for (const Posted& each : *unfinished) {
        EXPECT_TRUE(each.write.target_region == kAuxRegion ||
                    !std::ranges::count(pages, each.write.target_item))
            << "page " << each.write.target_item << " of room " << room.value();
      }
    }
  }
  void take(HoldEndpoint& hold) { EXPECT_EQ(hold.endpoint.ip, "10.0.0.2"); }
  void take(LeaveEndpoint&) { ++left_; }
  void take(NotDone& what) { not_done_.push_back(what.what); }

  Prng prng_{1};
  Instant now_{std::chrono::seconds(1)};
  PrefillTranslator translator_;
  std::vector<core::Event> events_;
  std::vector<std::function<void()>> orders_;
  std::vector<std::string> sent_;
  std::vector<std::string> not_done_;
  std::map<std::uint64_t, KvPoll> status_;
  std::map<std::uint64_t, std::string> causes_;
  std::map<std::string, std::uint64_t> counters_;
  std::vector<Posted> posted_;
  std::vector<Posted> unknown_;
  std::uint64_t next_sender_ = 1;
  std::size_t downs_ = 0;
  std::size_t left_ = 0;
  std::vector<PeerAddress> dialled_;
  std::size_t acks_ = 0;
  std::unique_ptr<core::Protocol> protocol_;
};

class PrefillTranslatorTest : public ::testing::Test {
 protected:
  Rig rig_;
};

TEST_F(PrefillTranslatorTest, ARoomSucceedsOnceItsWritesLanded) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  ASSERT_EQ(rig_.status(sender), KvPoll::kTransferring);
  ASSERT_EQ(rig_.posted().size(), 5U);  // two pages of K and V, aux
  EXPECT_EQ(rig_.posted()[0].write.target_item, 5U);
  EXPECT_EQ(rig_.posted()[4].write.target_item, 3U);
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success"));
  EXPECT_EQ(rig_.status(sender), KvPoll::kSuccess);
  EXPECT_EQ(rig_.translator().open_rooms(), 0U);
  EXPECT_THAT(rig_.take_not_done(), IsEmpty());
}

TEST_F(PrefillTranslatorTest, TheOrderOfRegistrationMetadataAndSenderDoesNotMatter) {
  const SenderId early = rig_.send(1);
  EXPECT_EQ(rig_.status(early), KvPoll::kBootstrapping);
  // Both at once: metadata waits until the session is live.
  rig_.translator().handle(registration());
  rig_.translator().handle(metadata(1));
  rig_.translator().handle(metadata(2));
  rig_.run();
  EXPECT_EQ(rig_.status(early), KvPoll::kTransferring);
  const SenderId late = rig_.send(2);
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success", "room 2 success"));
  EXPECT_EQ(rig_.status(late), KvPoll::kSuccess);
}

TEST_F(PrefillTranslatorTest, ThePrefixIsToldInPages) {
  rig_.arrive(registration());
  MooncakeMetadata with_prefix = metadata(1);
  with_prefix.target.prefix_tokens = 48;
  rig_.arrive(with_prefix);
  rig_.open(1);
  EXPECT_EQ(rig_.prefix_pages_, 3U);
}

TEST_F(PrefillTranslatorTest, ASenderWaitsForEveryDecodeRank) {
  rig_.arrive(registration());
  MooncakeRegistration second = registration("10.0.0.2:15004", 41'236);
  rig_.arrive(second);
  MooncakeMetadata of_first = metadata(1);
  of_first.target.decode_ranks = 2;
  rig_.arrive(of_first);
  const SenderId sender = rig_.send(1);
  EXPECT_EQ(rig_.status(sender), KvPoll::kBootstrapping);
  MooncakeMetadata of_second = of_first;
  of_second.session = second.session;
  of_second.target.endpoint = second.endpoint;
  rig_.arrive(of_second);
  EXPECT_EQ(rig_.status(sender), KvPoll::kTransferring);
}

TEST_F(PrefillTranslatorTest, AnAbortIsAcknowledgedOnceNothingIsWrittenAnyMore) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.arrive(abort_of(1));
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.cause(sender), HasSubstr("aborted by the decode rank"));
  rig_.arrive(abort_of(1));  // said again
  EXPECT_THAT(rig_.take_sent(), IsEmpty()) << "writes are under way";
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 9"));
  rig_.arrive(abort_of(1, 10));
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 10"));
}

// The control of the test above: while the outcome of a write is not known, there is no word of it.
TEST_F(PrefillTranslatorTest, AnUnknownWriteHoldsTheAcknowledgementBack) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  rig_.send(1);
  rig_.arrive(abort_of(1));
  rig_.finish_writes(layout::WriteOutcome::kUnknown);
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  rig_.become_quiet();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 9"));
}

TEST_F(PrefillTranslatorTest, AnAbortWithoutGenerationFailsTheRoomAndIsNotAnswered) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.arrive(abort_of(1, std::nullopt));
  rig_.finish_writes();
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  EXPECT_EQ(rig_.translator().open_rooms(), 0U);
}

TEST_F(PrefillTranslatorTest, AnAbortBeforeAnyMetadataEndsTheRoomAndIsAcknowledgedAtOnce) {
  rig_.arrive(registration());
  const SenderId sender = rig_.open(1);
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 9"));
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  rig_.arrive(AbortRoom{RoomId(1), RankEndpoint{"10.0.0.2", 1}, 9});
  EXPECT_THAT(rig_.take_sent(), IsEmpty()) << "a stranger";
  EXPECT_THAT(rig_.take_not_done(), ElementsAre(HasSubstr("not registered")));
}

// A client may go away just when its room has succeeded.
TEST_F(PrefillTranslatorTest, AnAbortAfterTheEndDoesNotReachTheNextLifeOfTheRoom) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  rig_.send(1);
  rig_.finish_writes();
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success", "ack room 1 generation 9"));
  rig_.arrive(metadata(1));
  const SenderId next = rig_.send(1);
  rig_.finish_writes();
  EXPECT_EQ(rig_.status(next), KvPoll::kSuccess);
  // Without a generation it may be of a life whose metadata never came.
  rig_.arrive(abort_of(1, std::nullopt));
  EXPECT_EQ(rig_.status(rig_.open(1)), KvPoll::kFailed);
}

// SGLang's decode registers with its first room and may abort that at once.
TEST_F(PrefillTranslatorTest, AnAbortThatComesBeforeTheSessionIsLiveIsNotForgotten) {
  const SenderId sender = rig_.open(1);
  rig_.translator().handle(registration());
  rig_.translator().handle(abort_of(1, std::nullopt));
  rig_.run();
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.cause(sender), HasSubstr("aborted by the decode rank"));

  const SenderId other = rig_.open(2);
  rig_.lose_endpoint(registration().endpoint);
  rig_.arrive(abort_of(2, std::nullopt));
  EXPECT_EQ(rig_.status(other), KvPoll::kFailed);
  EXPECT_THAT(rig_.cause(other), HasSubstr("aborted by the decode rank"));
}

TEST_F(PrefillTranslatorTest, AFailureHereIsToldWithItsReason) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.give(core::SenderAborted{
      sender, Failure{FailureCode::kAborted, FailureWhere::kLocal, "the client went away", {}, 0}});
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 failed: the client went away"));
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 9"));
}

TEST_F(PrefillTranslatorTest, ARoomNumberMayComeAgainOnceItIsOver) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  rig_.arrive(metadata(1, {7, 8}));
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 failed: this room is still open here"));
  rig_.send(1);
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success"));
  rig_.arrive(metadata(1, {7, 8}));
  const SenderId again = rig_.send(1);
  ASSERT_EQ(rig_.posted().size(), 5U);
  EXPECT_EQ(rig_.posted()[0].write.target_item, 7U);
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success"));
  EXPECT_EQ(rig_.status(again), KvPoll::kSuccess);
}

TEST_F(PrefillTranslatorTest, TheSameRegistrationAgainChangesNothing) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.arrive(registration());
  EXPECT_EQ(rig_.downs(), 0U);
  rig_.finish_writes();
  EXPECT_EQ(rig_.status(sender), KvPoll::kSuccess);
}

// The writes under way go to addresses that the peer no longer means: nothing proves their end.
TEST_F(PrefillTranslatorTest, AnotherRegistrationEndsTheRoomsAndTheirAbortsAreNotAcknowledged) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  MooncakeRegistration moved = registration();
  moved.memory.kv_pointers = {0x8000, 0x9000};
  rig_.arrive(moved);
  EXPECT_EQ(rig_.downs(), 1U);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.take_sent(),
              ElementsAre("room 1 failed: the decode rank registered other memory"));
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  EXPECT_THAT(rig_.take_not_done(), ::testing::Contains(HasSubstr("ended before its writes did")));
  rig_.arrive(metadata(2));
  const SenderId next = rig_.send(2);
  EXPECT_EQ(rig_.status(next), KvPoll::kTransferring);
}

// The same words, said by a process that has taken the place of the first.
TEST_F(PrefillTranslatorTest, TheSameRegistrationOfAnotherProcessIsAnotherOne) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  Rig::process = {2};
  rig_.arrive(registration());
  Rig::process = {1};
  EXPECT_EQ(rig_.downs(), 1U);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
}

TEST_F(PrefillTranslatorTest, AnotherSessionAtAnEndpointEndsTheOneBefore) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.arrive(registration("10.0.0.2:15099"));
  EXPECT_EQ(rig_.downs(), 1U);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_EQ(rig_.translator().session_count(), 1U);
}

TEST_F(PrefillTranslatorTest, ADecodeRankMayHaveMorePagesAndSlotsThanThisOne) {
  PrefillTranslatorConfig config = Rig::config();
  config.decode_pages = 2 * kPages;
  config.decode_aux_slots = 100;
  Rig rig(config);
  rig.arrive(registration());
  MooncakeMetadata wanted = metadata(1, {kPages, 2 * kPages - 1});
  wanted.aux_index = 99;
  rig.arrive(wanted);
  rig.send(1);
  EXPECT_EQ(rig.posted().size(), 5U);
  rig.arrive(metadata(2, {2 * kPages}));
  EXPECT_EQ(rig.status(rig.send(2)), KvPoll::kFailed);
}

// At the limit a session that is over makes place; one that is not stays.
TEST_F(PrefillTranslatorTest, SessionsAreLimited) {
  PrefillTranslatorConfig config = Rig::config();
  config.max_sessions = 2;
  Rig rig(config);
  rig.arrive(registration("10.0.0.2:1", 1));
  rig.arrive(registration("10.0.0.2:2", 2));
  rig.arrive(registration("10.0.0.2:3", 3));
  EXPECT_THAT(rig.take_not_done(), ElementsAre(HasSubstr("no place for 10.0.0.2:3")));
  rig.lose_endpoint({"10.0.0.2", 2});
  rig.arrive(registration("10.0.0.2:3", 3));
  EXPECT_THAT(rig.take_not_done(), IsEmpty());
  EXPECT_EQ(rig.left(), 1U);
  EXPECT_EQ(rig.translator().session_count(), 2U);
}

TEST_F(PrefillTranslatorTest, RoomsOfASessionAreLimited) {
  PrefillTranslatorConfig config = Rig::config();
  config.self.limits.max_grant_slots = 2;
  Rig rig(config);
  rig.arrive(registration());
  for (std::uint64_t room = 1; room <= 3; ++room) {
    rig.arrive(metadata(room));
  }
  EXPECT_THAT(rig.take_sent(), ElementsAre(HasSubstr("room 3 failed: 2 rooms are open here")));
}

// The core's patience is 3 s. It hears what waits before it looks at its deadlines, so a peer that
// lives has to have said something meanwhile.
TEST_F(PrefillTranslatorTest, AStoppedProcessDoesNotLoseItsPeers) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.sleep(std::chrono::seconds(20));
  rig_.sleep(milliseconds(50));
  rig_.finish_writes();
  EXPECT_EQ(rig_.status(sender), KvPoll::kSuccess);
  EXPECT_EQ(rig_.downs(), 0U);
}

// What was a virtual peer is never dialled as something else.
TEST_F(PrefillTranslatorTest, AnAddressOfAnEarlierLifeIsRefused) {
  rig_.arrive(registration());
  ASSERT_FALSE(rig_.dialled().empty());
  const PeerAddress address = rig_.dialled().front();
  rig_.lose_endpoint(registration().endpoint);
  EXPECT_TRUE(rig_.translator().owns(address));
  rig_.translator().handle_dial(PeerId(77), address);
  const auto outputs = rig_.translator().take_outputs();
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_EQ(std::get<VirtualPeerDown>(outputs.front()).peer, PeerId(77));
}

TEST(PrefillTranslatorGreeting, ASessionThatTheCoreDoesNotTakeUpFailsItsRooms) {
  PrefillTranslator translator(Rig::config());
  translator.advance(Instant(std::chrono::seconds(1)));
  translator.handle(registration());
  translator.handle(metadata(1));
  translator.take_outputs();
  ASSERT_EQ(translator.next_deadline(), Instant(std::chrono::seconds(6)));
  translator.advance(Instant(milliseconds(5'999)));
  EXPECT_TRUE(translator.take_outputs().empty());
  translator.advance(*translator.next_deadline());
  const auto outputs = translator.take_outputs();
  ASSERT_FALSE(outputs.empty());
  const auto& status = std::get<RoomStatus>(std::get<ToEndpoint>(outputs.front()).message);
  EXPECT_EQ(status.status, KvPoll::kFailed);
  EXPECT_THAT(status.reason, HasSubstr("did not take the session up"));
  EXPECT_EQ(translator.open_rooms(), 0U);
  EXPECT_FALSE(translator.next_deadline());
}

// A status may have been lost with the connection, so that nothing of the session can be relied on.
TEST_F(PrefillTranslatorTest, ALostConnectionEndsTheRoomsAndTheNextRoomGreetsAgain) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.lose_endpoint(registration().endpoint);
  EXPECT_EQ(rig_.downs(), 1U);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 failed: the connection to decode was lost"));
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  rig_.arrive(metadata(2));
  const SenderId next = rig_.send(2);
  EXPECT_EQ(rig_.status(next), KvPoll::kTransferring);
}

TEST_F(PrefillTranslatorTest, ASessionThatTheCoreEndedIsGreetedAgainForTheNextRoom) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.finish_writes();
  ASSERT_EQ(rig_.status(sender), KvPoll::kSuccess);
  rig_.take_sent();
  for (std::uint64_t peer = 0; peer < 8; ++peer) {
    rig_.translator().handle_hang_up(PeerId(peer));
    rig_.give(core::LinkDown{PeerId(peer), core::LinkDown::Why::kRefused});
  }
  rig_.arrive(metadata(2));
  const SenderId next = rig_.send(2);
  EXPECT_EQ(rig_.status(next), KvPoll::kTransferring);
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 2 success"));
}

TEST_F(PrefillTranslatorTest, WhatCanNotBeServedIsRefusedWithItsReason) {
  const auto reason = [](const MooncakeRegistration& registered, const MooncakeMetadata& wanted) {
    Rig rig;
    rig.arrive(registered);
    rig.arrive(wanted);
    const std::vector<std::string> sent = rig.take_sent();
    EXPECT_EQ(sent.size(), 1U);
    EXPECT_EQ(rig.translator().open_rooms(), 0U);
    return sent.empty() ? std::string() : sent.front();
  };
  MooncakeRegistration other = registration();
  other.tp_size = 2;
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("decode has 2 TP ranks, prefill 1"));
  other = registration();
  other.dcp_size = 2;
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("context parallelism of 2"));
  other = registration();
  other.memory.kv_pointers.push_back(0x9000);
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("decode has 3 KV buffers, prefill 2"));
  other = registration();
  other.memory.kv_item_bytes = 128;
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("has 128 bytes on decode, 64 on prefill"));
  other = registration();
  other.memory.kv_item_bytes_of = {kItemBytes, 32};
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("buffer 1 has 32 bytes"));
  other = registration();
  other.memory.state_pointers = {{1}};
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("1 state components"));
  other = registration();
  other.memory.aux_pointers.clear();
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("no aux buffer"));

  MooncakeMetadata wanted = metadata(1);
  wanted.session = "10.0.0.2:1";
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("10.0.0.2:1 is not registered here"));
  wanted = metadata(1);
  wanted.target.endpoint.port = 7;
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("is that of 10.0.0.2:41235"));
  wanted = metadata(1);
  wanted.target.prefix_tokens = 17;
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("no multiple of the page size 16"));
  wanted = metadata(1, {});
  wanted.aux_index.reset();
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("sends nothing"));
  EXPECT_THAT(reason(registration(), metadata(0)), HasSubstr("room 0 can't be used"));
  wanted = metadata(1);
  wanted.target.state_indices = {{1}};
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("state components"));
}

TEST_F(PrefillTranslatorTest, PagesOutsideThePoolAreRefusedByTheCore) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1, {5, kPages}));
  const SenderId sender = rig_.send(1);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.posted(), IsEmpty());
  EXPECT_THAT(rig_.take_sent(), ElementsAre(HasSubstr("room 1 failed: granted page 32")));
  EXPECT_EQ(rig_.translator().open_rooms(), 0U);
}

TEST_F(PrefillTranslatorTest, MessagesOfOtherPartsAreCounted) {
  rig_.arrive(registration());
  rig_.arrive(Watermark{1, 2, "s"});
  rig_.arrive(StagingResponse{});
  rig_.arrive(AwaitPrefill{RoomId(1), {"10.0.0.2", 41'235}});
  EXPECT_THAT(rig_.take_not_done(),
              ElementsAre("watermark is not served", "staging-rsp is not served",
                          "bootstrap is not served"));
}

// Whatever comes in whatever order: no acknowledgement while a write is under way (Rig::take), no
// broken invariant of the core (Rig::run), and once all is over nothing is left open.
TEST(PrefillTranslatorStorm, NothingIsAcknowledgedTooSoonAndNothingIsLeft) {
  std::size_t acks = 0;
  std::size_t downs = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Prng prng(seed);
    Rig rig;
    std::map<std::uint64_t, SenderId> senders;
    const auto draw_registration = [&] {
      const auto rank = static_cast<std::uint16_t>(prng.below(kStormRanks));
      MooncakeRegistration out =
          registration(fmt::format("s{}", rank), static_cast<std::uint16_t>(kFirstPort + rank));
      out.memory.kv_pointers[0] += prng.below(8) == 0 ? 8 : 0;
      return out;
    };
    const auto draw_metadata = [&] {
      const auto rank = static_cast<std::uint32_t>(prng.below(kStormRanks));
      const std::uint64_t room = 1 + prng.below(kStormRooms);
      MooncakeMetadata out = metadata(room, storm_pages(rank, static_cast<std::uint32_t>(room)));
      out.session = fmt::format("s{}", rank);
      out.target.endpoint.port = static_cast<std::uint16_t>(kFirstPort + rank);
      return out;
    };
    for (int step = 0; step < 120; ++step) {
      const std::uint64_t room = 1 + prng.below(kStormRooms);
      switch (prng.below(8)) {
        case 0:
          rig.arrive(draw_registration());
          break;
        case 1:
        case 2:
          rig.arrive(draw_metadata());
          break;
        case 3: {
          AbortRoom abort =
              abort_of(room, prng.below(4) == 0 ? std::nullopt : std::optional(prng.next() >> 1));
          abort.endpoint->port = static_cast<std::uint16_t>(kFirstPort + prng.below(kStormRanks));
          rig.arrive(abort);
          break;
        }
        case 4:
        case 5: {
          const auto known = senders.find(room);
          if (known == senders.end() || is_terminal(rig.status(known->second))) {
            senders[room] = rig.send(room);
          }
          break;
        }
        case 6:
          rig.finish_writes(
              prng.below(4) == 0 ? layout::WriteOutcome::kUnknown : layout::WriteOutcome::kLanded,
              prng.below(8));
          break;
        default:
          if (prng.below(4) == 0) {
            rig.become_quiet();
          }
      }
    }
    for (int round = 0; round < 3; ++round) {
      for (std::uint64_t room = 1; room <= kStormRooms; ++room) {
        const auto known = senders.find(room);
        if (known == senders.end() || is_terminal(rig.status(known->second))) {
          senders[room] = rig.open(room);
        }
        rig.give(core::SenderAborted{
            senders[room], Failure{FailureCode::kAborted, FailureWhere::kLocal, "the end", {}, 0}});
      }
      rig.finish_writes();
      rig.become_quiet();
    }
    EXPECT_EQ(rig.translator().open_rooms(), 0U);
    acks += rig.acks();
    downs += rig.downs();
  }
  EXPECT_GT(acks, 500U);
  EXPECT_GT(downs, 100U);
}

}  // namespace
}  // namespace kvferry::sglang
