// The simulated fabric against the contract of data_plane/transport.h (D1 to D5), on drawn courses
// of grants, writes, fences, pauses and deaths with every fault of the data plane; and each guard
// that the model can miss against the same checks, which must then fail.
#include "sim/fabric.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

constexpr SessionEpoch kSession{77};
constexpr RegionId kRegion{0};
constexpr std::uint32_t kPagesPerGrant = 4;
constexpr std::uint32_t kGrants = 40;
constexpr std::uint32_t kSlots = 3;
constexpr std::byte kPainted{0x11};
constexpr std::byte kReused{
    0x22};  // what a source page holds once its ticket has had its last word

Profile make_profile(std::uint64_t seed, TransportKind kind, bool faults) {
  Prng prng(seed);
  Profile profile;
  profile.seed = seed;
  profile.transport = kind;
  profile.prefill.pages = profile.decode.pages = kGrants * kPagesPerGrant;
  profile.write_latency = milliseconds(1);
  profile.turn_delay = milliseconds(1);
  profile.lanes = 1 + static_cast<std::uint32_t>(prng.below(3));
  profile.receive_threads = 1 + static_cast<std::uint32_t>(prng.below(3));
  profile.frame_writes = 3;
  profile.options.write_timeout_ms = 5'000;
  profile.options.lane_timeout_ms = 1'000;
  if (faults) {
    for (auto i = static_cast<std::size_t>(Fault::kSlowWrite);
         i <= static_cast<std::size_t>(Fault::kSlowCopy); ++i) {
      profile.faults.set(i);
      profile.rate[i] = static_cast<std::uint16_t>(2ULL << prng.below(6));
    }
    profile.faults.reset(static_cast<std::size_t>(Fault::kBadKey));
    if (seed % 2 == 1) {
      profile.faults.reset(static_cast<std::size_t>(Fault::kCompletionTwice));
    }
    profile.rate[static_cast<std::size_t>(Fault::kSlowCopy)] = 300;
    profile.rate[static_cast<std::size_t>(Fault::kWriteOutlives)] = 700;
  }
  return profile;
}

struct Course {
  std::uint64_t seed = 1;
  TransportKind kind = TransportKind::kStream;
  ModelGuard missing = ModelGuard::kNone;
  bool faults = true;
};

// Two processes, one session, and what each write and grant has been through. Nothing is expected
// of the protocols: the events go to them, too, and mean nothing there.
class Harness {
 public:
  explicit Harness(const Course& course)
      : course_(course),
        world_(make_profile(course.seed, course.kind, course.faults),
               Missing{core::Guard::kNone, course.missing}, LogLevel::kNone),
        prng_(course.seed * 31 + 7),
        prefill_(*world_.node_at(0)),
        decode_(*world_.node_at(1)) {
    world_.oracle.overlook("T1");  // the automata's: no protocol orders what happens here
    world_.fabric.watch([this](const Node& node, const core::Event& event) { see(node, event); });
    for (std::uint32_t page = 0; page < kGrants * kPagesPerGrant; ++page) {
      for (std::byte& byte : prefill_.memory().item(kRegion, page)) {
        byte = source_byte(page);
      }
    }
  }

  // What went wrong first, or nothing.
  std::optional<std::string> run() {
    open();
    const bool dies = prng_.below(4) == 0 && course_.faults;
    const std::uint64_t last = dies ? kGrants / 2 : kGrants;
    for (std::uint64_t i = 0; i < last; ++i) {
      step();
    }
    if (dies && !wrong_) {
      resume();
      open_grant(kSlots);  // a slot that is surely free, so that something is under way
      run_for(std::chrono::microseconds(prng_.below(2'000)));
      // The prefill process, or the decode process whose memory is then the next life's.
      (prng_.below(2) == 0 ? prefill_dead_ : decode_dead_) = true;
      world_.kill(prefill_dead_ ? prefill_ : decode_);
    }
    world_.faults.disable_all();
    resume();
    world_.fabric.heal(prng_.below(2) == 0);
    run_for(milliseconds(4'000));
    expect_fences();  // slow ones included; longer than any that waits for its marks alone
    run_for(milliseconds(8'000));
    close();
    run_for(milliseconds(12'000));
    expect_ends();
    return wrong_;
  }

  std::uint64_t hash() const { return world_.trace.hash(); }
  std::size_t tickets() const { return tickets_.size(); }
  std::size_t ended_as(layout::WriteOutcome outcome) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        tickets_, [&](const auto& entry) { return entry.second.outcome == outcome; }));
  }
  std::uint32_t fired(Fault fault) const {
    return world_.faults.fired()[static_cast<std::size_t>(fault)];
  }

 private:
  struct Grant {
    GrantSlot slot;
    Generation generation;
    bool fence_ordered = false;
    bool fence_done = false;
    bool given_up = false;
  };
  struct Ticket {
    layout::Write write;
    std::uint64_t grant = 0;
    std::optional<layout::WriteOutcome> outcome;
    bool quiet = false;
    std::uint32_t landings = 0;
    bool torn = false;
  };

  static std::byte source_byte(std::uint32_t page) { return static_cast<std::byte>(page | 0x80); }

  void fail(const std::string& what) {
    if (!wrong_) {
      wrong_ = what;
    }
  }
  void run_for(Duration time) {
    const Instant until = world_.agenda.now() + time;
    while (!wrong_ && world_.agenda.run_one(until)) {
      if (world_.oracle.has_failed()) {
        fail(world_.oracle.violation()->invariant + " " + world_.oracle.violation()->what);
      }
    }
  }

  void open() {
    core::OpenDataSession open;
    open.epoch = kSession;
    open.local_role = Role::kPrefill;
    EXPECT_TRUE(world_.fabric.open_session(prefill_, open).has_value());
    open.local_role = Role::kDecode;
    EXPECT_TRUE(world_.fabric.open_session(decode_, open).has_value());
    EXPECT_FALSE(world_.fabric.open_session(decode_, open).has_value());
  }

  void step() {
    open_grant();
    run_for(std::chrono::microseconds(prng_.below(6'000)));
    const std::uint64_t move = prng_.below(12);
    if (move == 0 && course_.faults) {
      world_.fabric.reset_some_lane(prng_);
    } else if (move == 1 && course_.faults) {
      world_.fabric.flush_some_session(prng_);
    } else if (move == 2) {
      Node& node = prng_.below(2) == 0 ? prefill_ : decode_;
      if (node.is_running()) {
        node.pause();
        world_.fabric.process_paused(node);
      }
    } else if (move < 6) {
      resume();
    }
    for (auto& [number, grant] : grants_) {
      if (prng_.below(4) == 0 && course_.faults) {
        end(number, grant);
      }
    }
  }

  void resume() {
    for (Node* node : {&prefill_, &decode_}) {
      if (node->is_alive() && !node->is_running()) {
        node->resume();
        world_.fabric.process_resumed(*node);
      }
    }
  }

  void open_grant(std::optional<std::uint32_t> spare = std::nullopt) {
    std::set<std::uint32_t> free;
    for (std::uint32_t slot = 0; slot < (course_.faults ? kSlots : kGrants); ++slot) {
      free.insert(slot);
    }
    for (const auto& [number, grant] : grants_) {
      if (!grant.fence_done) {
        free.erase(grant.slot.value());
      }
    }
    if (course_.kind == TransportKind::kOneSided && free.empty()) {
      free.insert(static_cast<std::uint32_t>(grants_.size()) + kSlots + 1);
    }
    if (spare) {
      free = {*spare};
    }
    if (free.empty() || !decode_.is_running()) {
      return;
    }
    const std::uint64_t number = grants_.size() + 1;
    Grant& grant = grants_[number];
    grant.slot = GrantSlot(*free.begin());
    grant.generation = Generation(number);
    core::MetadataGiven metadata;
    metadata.receiver = core::ReceiverId(number);
    for (std::uint32_t i = 0; i < kPagesPerGrant; ++i) {
      metadata.pages.push_back(
          PageIndex(static_cast<std::uint32_t>(number - 1) * kPagesPerGrant + i));
    }
    world_.oracle.pages_given(decode_, number, metadata);
    world_.oracle.attempt_named(decode_, number, AttemptId(number));
    const std::uint64_t bytes = decode_.memory().shape().regions[0].item_bytes;
    const layout::ItemSlice slice{kRegion, 0, bytes, 1, bytes};
    core::OpenGrant open{GrantId(number), {}};
    open.slots.push_back(
        core::GrantedSlot{kSession, grant.slot, grant.generation,
                          layout::GrantExtent({slice}, metadata.pages, {}, -1, {}, {})});
    decode_.open_grant(std::move(open));
    post(number, metadata.pages, bytes);
  }

  void post(std::uint64_t number, const std::vector<PageIndex>& pages, std::uint64_t bytes) {
    core::PostWrites post{kSession, {}};
    for (const PageIndex page : pages) {
      for (const std::uint64_t half : {std::uint64_t{0}, bytes / 2}) {
        layout::Write write;
        write.ticket = TicketId(tickets_.size() + 1);
        write.slot = grants_[number].slot;
        write.generation = grants_[number].generation;
        write.source_region = write.target_region = kRegion;
        write.source_offset = page.value() * bytes + half;
        write.target_item = page.value();
        write.offset_in_item = half;
        write.length = bytes / 2;
        tickets_[write.ticket] = Ticket{write, number, {}, false, 0, false};
        post.writes.push_back(write);
      }
    }
    world_.fabric.post(prefill_, post);
  }

  // A room is over: by a fence at the target, after a give-up at the source or without.
  void end(std::uint64_t number, Grant& grant) {
    if (prng_.below(3) == 0 && !grant.given_up) {
      grant.given_up = true;
      world_.fabric.give_up(prefill_, core::GiveUpWrites{kSession, grant.slot, grant.generation});
    }
    if (course_.kind != TransportKind::kOneSided && !grant.fence_ordered && decode_.is_running()) {
      grant.fence_ordered = true;
      world_.fabric.fence(decode_, GrantId(number));
    }
  }

  void close() {
    if (!prefill_dead_) {
      world_.fabric.close_session(prefill_, kSession);
    }
    if (!decode_dead_) {
      world_.fabric.close_session(decode_, kSession);
    }
  }

  // --- what the fabric says ---

  void see(const Node& node, const core::Event& event) {
    if (const auto* done = std::get_if<core::WritesCompleted>(&event)) {
      for (const layout::WriteCompletion& each : done->completions) {
        completed(each);
      }
    } else if (const auto* quiet = std::get_if<core::WritesQuiet>(&event)) {
      for (const TicketId id : quiet->tickets) {
        Ticket& ticket = tickets_.at(id);
        if (ticket.quiet || ticket.outcome != layout::WriteOutcome::kUnknown) {
          fail("D2: quiet twice, or of a ticket that is not unknown");
        }
        ticket.quiet = true;
        reuse_source(ticket);
      }
    } else if (const auto* landed = std::get_if<core::WritesLanded>(&event)) {
      for (const layout::Landing& each : landed->landings) {
        this->landed(each);
      }
    } else if (const auto* torn = std::get_if<core::WriteTorn>(&event)) {
      tickets_.at(torn->landing.ticket).torn = true;
    } else if (const auto* fence = std::get_if<core::FenceCompleted>(&event)) {
      fenced(fence->grant);
    } else if (std::holds_alternative<core::SessionTornDown>(event)) {
      torn_down_ = true;
      EXPECT_EQ(node.place().index, decode_.place().index);
    }
  }

  void completed(const layout::WriteCompletion& completion) {
    Ticket& ticket = tickets_.at(completion.ticket);
    if (ticket.outcome && (ticket.outcome != completion.outcome || !course_.faults)) {
      fail("D1: two outcomes of one ticket");
    }
    ticket.outcome = completion.outcome;
    if (completion.outcome == layout::WriteOutcome::kLanded && !holds(ticket)) {
      fail("D1: landed, and the bytes are not there");
    }
    if (completion.outcome == layout::WriteOutcome::kRefused && ticket.landings > 0) {
      fail("D1: refused, and it has landed");
    }
    if (completion.outcome != layout::WriteOutcome::kUnknown) {
      reuse_source(ticket);
    }
  }

  void landed(const layout::Landing& landing) {
    Ticket& ticket = tickets_.at(landing.ticket);
    // Where nothing is told twice, a second landing is a second copy.
    const bool may_repeat = fired(Fault::kCompletionTwice) > 0;
    if (++ticket.landings > 1 && !may_repeat) {
      fail("rule 5: a ticket's second copy was executed");
    }
    if (ticket.outcome == layout::WriteOutcome::kRefused) {
      fail("D1: it lands after its refusal");
    }
    if (!holds(ticket)) {
      fail("a landing is told before its bytes are there");
    }
  }

  void fenced(GrantId id) {
    Grant& grant = grants_.at(id.value());
    if (grant.fence_done || !grant.fence_ordered) {
      fail("D3: a fence that nobody ordered, or twice");
    }
    grant.fence_done = true;
    for (std::uint32_t i = 0; i < kPagesPerGrant; ++i) {
      decode_.memory().paint_page(page_of(id.value(), i), kPainted);
    }
  }

  void reuse_source(const Ticket& ticket) {
    const layout::Write& write = ticket.write;
    std::ranges::fill(
        prefill_.memory().bytes(write.source_region, write.source_offset, write.length), kReused);
  }

  static PageIndex page_of(std::uint64_t grant, std::uint32_t i) {
    return PageIndex(static_cast<std::uint32_t>(grant - 1) * kPagesPerGrant + i);
  }

  std::uint64_t bytes_there(const Ticket& ticket) {
    return count_at_target(ticket, source_byte(ticket.write.target_item));
  }
  std::uint64_t count_at_target(const Ticket& ticket, std::byte value) {
    const layout::Write& write = ticket.write;
    const auto bytes = decode_.memory()
                           .item(write.target_region, write.target_item)
                           .subspan(write.offset_in_item, write.length);
    return static_cast<std::uint64_t>(std::ranges::count(bytes, value));
  }
  // After its fence a grant's pages are somebody else's, and say nothing.
  bool holds(const Ticket& ticket) {
    return grants_.at(ticket.grant).fence_done || decode_dead_ ||
           bytes_there(ticket) == ticket.write.length;
  }

  // --- the end ---

  void expect_fences() {
    for (const auto& [number, grant] : grants_) {
      if (grant.fence_ordered && !grant.fence_done && !decode_dead_) {
        fail("D3: a fence is never done");
      }
    }
  }

  void expect_ends() {
    for (auto& [id, ticket] : tickets_) {
      const bool is_unknown = ticket.outcome == layout::WriteOutcome::kUnknown;
      if (!prefill_dead_ && (!ticket.outcome || (is_unknown && !ticket.quiet))) {
        fail("D1, D2: ticket " + std::to_string(id.value()) + " has no end");
      }
      if (count_at_target(ticket, kReused) > 0) {
        fail("S2: a source was read after its ticket's last word");
      }
      const Grant& grant = grants_.at(ticket.grant);
      const std::uint64_t there = bytes_there(ticket);
      const bool is_partly_there = there > 0 && there < ticket.write.length;
      if (course_.kind != TransportKind::kOneSided && !grant.fence_ordered && !decode_dead_ &&
          is_partly_there && !ticket.torn) {
        fail("a torn copy is not told");
      }
      if (grant.fence_done && there > 0) {
        fail("D3: bytes landed after the fence");
      }
    }
    const bool must_be_told = course_.kind == TransportKind::kOneSided && !decode_dead_;
    if (torn_down_ != must_be_told) {
      fail("the teardown is told, or not, against the kind");
    }
    if (world_.fabric.writes_under_way() != 0) {
      fail("something is still under way");
    }
  }

  const Course course_;
  World world_;
  Prng prng_;
  Node& prefill_;
  Node& decode_;
  bool prefill_dead_ = false;
  bool decode_dead_ = false;
  bool torn_down_ = false;
  std::map<std::uint64_t, Grant> grants_;
  std::map<TicketId, Ticket> tickets_;
  std::optional<std::string> wrong_;
};

// Those that the fabric draws itself; lane resets and flush storms are the nemesis's.
std::vector<Fault> drawn_faults(TransportKind kind) {
  std::vector<Fault> faults = {
      Fault::kSlowWrite,       Fault::kCompletionLost, Fault::kCompletionLate,
      Fault::kCompletionTwice, Fault::kErrorLanded,    Fault::kErrorNothing,
      Fault::kPartlyLanded,    Fault::kWriteOutlives,  Fault::kStalledFrame};
  if (kind != TransportKind::kOneSided) {
    faults.insert(faults.end(), {Fault::kFrameTwice, Fault::kSlowFence, Fault::kSlowCopy});
  }
  return faults;
}

class FabricContract : public testing::TestWithParam<TransportKind> {};

TEST_P(FabricContract, EverythingLandsWithoutFaults) {
  Harness harness({3, GetParam(), ModelGuard::kNone, false});
  const auto wrong = harness.run();
  EXPECT_FALSE(wrong) << *wrong;
  EXPECT_GT(harness.tickets(), 100U);
  EXPECT_EQ(harness.ended_as(layout::WriteOutcome::kLanded), harness.tickets());
}

TEST_P(FabricContract, HoldsUnderEveryFault) {
  std::map<layout::WriteOutcome, std::size_t> outcomes;
  std::map<Fault, std::uint32_t> fired;
  std::size_t tickets = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Harness harness({seed, GetParam()});
    const auto wrong = harness.run();
    ASSERT_FALSE(wrong) << "seed " << seed << ": " << *wrong;
    tickets += harness.tickets();
    for (const auto outcome : {layout::WriteOutcome::kLanded, layout::WriteOutcome::kRefused,
                               layout::WriteOutcome::kUnknown}) {
      outcomes[outcome] += harness.ended_as(outcome);
    }
    for (const Fault fault : drawn_faults(GetParam())) {
      fired[fault] += harness.fired(fault);
    }
  }
  // Not vacuous: every end and every fault comes often.
  for (const auto& [outcome, count] : outcomes) {
    EXPECT_GT(count, tickets / 50) << static_cast<int>(outcome);
  }
  for (const auto& [fault, count] : fired) {
    EXPECT_GT(count, 10U) << to_string(fault);
  }
}

TEST_P(FabricContract, EqualSeedsGiveEqualTraces) {
  Harness first({11, GetParam()});
  Harness second({11, GetParam()});
  first.run();
  second.run();
  EXPECT_EQ(first.hash(), second.hash());
}

INSTANTIATE_TEST_SUITE_P(Kinds, FabricContract,
                         testing::Values(TransportKind::kStream, TransportKind::kShared,
                                         TransportKind::kOneSided),
                         [](const auto& each) {
                           return each.param == TransportKind::kStream   ? "Stream"
                                  : each.param == TransportKind::kShared ? "Shared"
                                                                         : "OneSided";
                         });

// Which checks notice depends on the guard; that one of them does, within these seeds, must hold.
struct NamedGuard {
  const char* name;
  ModelGuard guard;
};
void PrintTo(const NamedGuard& named, std::ostream* out) { *out << named.name; }

class FabricGuard : public testing::TestWithParam<NamedGuard> {};

TEST_P(FabricGuard, IsMissed) {
  const ModelGuard guard = GetParam().guard;
  const TransportKind kind =
      guard == ModelGuard::kFenceAfterRestart ? TransportKind::kOneSided : TransportKind::kStream;
  for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
    Harness harness({seed, kind, guard});
    if (const auto wrong = harness.run()) {
      RecordProperty("seed", std::to_string(seed));
      RecordProperty("seen", *wrong);
      return;
    }
  }
  FAIL() << "nothing notices that the guard is missing";
}

INSTANTIATE_TEST_SUITE_P(
    Guards, FabricGuard,
    testing::Values(NamedGuard{"MarkBeforeCheck", ModelGuard::kMarkBeforeCheck},
                    NamedGuard{"MarkPerThread", ModelGuard::kMarkPerThread},
                    NamedGuard{"GenerationChecked", ModelGuard::kGenerationChecked},
                    NamedGuard{"Claim", ModelGuard::kClaim},
                    NamedGuard{"SecondCopyAnswered", ModelGuard::kSecondCopyAnswered},
                    NamedGuard{"NoMarkWhileWaiting", ModelGuard::kNoMarkWhileWaiting},
                    NamedGuard{"FenceWaitsForMarks", ModelGuard::kFenceWaitsForMarks},
                    NamedGuard{"FenceAfterRestart", ModelGuard::kFenceAfterRestart},
                    NamedGuard{"LandedAfterCopy", ModelGuard::kLandedAfterCopy},
                    NamedGuard{"ExtentChecked", ModelGuard::kExtentChecked}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace kvferry::sim
