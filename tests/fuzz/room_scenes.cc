#include "room_scenes.h"

#include <array>

namespace kvferry::fuzz {
namespace {

using core::GrantState;
using core::TargetState;
using layout::WriteOutcome;

// --- decode, in the order of its life ---

void decode_opened(RoomWorld& w) { w.open_on(w.decode()); }

void decode_resolving(RoomWorld& w) { w.decode().name_prefill(w.now(), w.open_on(w.decode())); }

void decode_dialling(RoomWorld& w) {
  decode_resolving(w);
  w.answer_query(w.decode());
}

void decode_greeting(RoomWorld& w) {
  decode_dialling(w);
  while (w.answer_dial(w.decode())) {
  }
}

// Both prefill ranks answered; decode's confirmations have left.
void decode_confirming(RoomWorld& w) {
  decode_greeting(w);
  while (w.deliver_frame(w.decode())) {
  }
  for (const std::size_t rank : {0U, 1U}) {
    w.answer_dial(w.prefill(rank));
    while (w.deliver_frame(w.prefill(rank))) {
    }
  }
}

void decode_waiting(RoomWorld& w) { w.connect_decode_room(); }

void decode_granted(RoomWorld& w) {
  w.decode().give_metadata(w.now(), w.connect_decode_room(), kPagesOfRoom, 1);
}

void open_senders(RoomWorld& w) {
  for (const std::size_t rank : {0U, 1U}) {
    const std::uint64_t sender = w.open_on(w.prefill(rank));
    w.prefill(rank).init_sender(w.now(), sender, kPagesOfRoom);
  }
}

// Both senders have posted all of their writes.
void both_posting(RoomWorld& w) {
  decode_granted(w);
  open_senders(w);
  w.exchange();
  for (const std::size_t rank : {0U, 1U}) {
    w.prefill(rank).send(w.now(), 1, kPagesOfRoom);
  }
}

void decode_partly_landed(RoomWorld& w) {
  both_posting(w);
  w.land_write(w.prefill(0));
}

void decode_one_done(RoomWorld& w) {
  both_posting(w);
  w.land_all(w.prefill(0));
  w.exchange();
}

void decode_covered(RoomWorld& w) {
  decode_one_done(w);
  w.land_all(w.prefill(1));
}

// The second writer's Done is still on its way.
void decode_fenced(RoomWorld& w) {
  decode_covered(w);
  w.finish_fence(w.decode());
}

void decode_consumed(RoomWorld& w) {
  decode_covered(w);
  w.exchange();
  w.finish_fence(w.decode());
}

void decode_failed_before_grant(RoomWorld& w) {
  w.decode().abort(w.now(), w.connect_decode_room());
}

void decode_revoking(RoomWorld& w) {
  decode_partly_landed(w);
  w.decode().abort(w.now(), 1);
}

void decode_free(RoomWorld& w) {
  decode_revoking(w);
  w.finish_fence(w.decode());
}

void decode_suspended(RoomWorld& w) {
  decode_partly_landed(w);
  const PeerId first = w.decode().peers.begin()->first;
  w.decode().step(w.now(), core::LinkDown{first, core::LinkDown::Why::kClosed});
}

void decode_cleared(RoomWorld& w) {
  decode_revoking(w);
  w.decode().clear(w.now(), 1);
}

// --- prefill ---

void prefill_alone(RoomWorld& w) { w.open_on(w.prefill(0)); }

// The hello is answered and not confirmed.
void prefill_greeted(RoomWorld& w) {
  w.open_on(w.prefill(0));
  decode_greeting(w);
  while (w.deliver_frame(w.decode())) {
  }
  w.answer_dial(w.prefill(0));
}

void prefill_opened(RoomWorld& w) {
  w.open_on(w.prefill(0));
  w.connect_decode_room();
}

void prefill_grant_without_sender(RoomWorld& w) {
  decode_granted(w);
  w.exchange();
}

void prefill_one_grant_of_two(RoomWorld& w) {
  w.open_on(w.prefill(0));
  w.decode().give_metadata(w.now(), w.connect_decode_room(), kPagesOfRoom, 2);
  w.exchange();
}

void prefill_waiting(RoomWorld& w) {
  decode_granted(w);
  open_senders(w);
  w.exchange();
}

void prefill_posting(RoomWorld& w) {
  both_posting(w);
  w.land_write(w.prefill(0));
}

void prefill_done(RoomWorld& w) {
  both_posting(w);
  w.land_all(w.prefill(0));
}

void prefill_consumed(RoomWorld& w) {
  decode_consumed(w);
  w.exchange();
}

// Writes are under way and one of them is unknown.
void prefill_given_up(RoomWorld& w) {
  both_posting(w);
  w.land_write(w.prefill(0), WriteOutcome::kUnknown);
}

void prefill_drained(RoomWorld& w) {
  prefill_waiting(w);
  w.prefill(0).abort(w.now(), 1);
}

// Its decode room was aborted before anything was granted.
void prefill_failed_before_grant(RoomWorld& w) {
  prefill_opened(w);
  w.decode().abort(w.now(), 1);
  w.exchange();
}

// Only the attempt's tombstone is left.
void prefill_forgotten(RoomWorld& w) {
  prefill_drained(w);
  w.prefill(0).clear(w.now(), 1);
}

void prefill_suspended(RoomWorld& w) {
  prefill_posting(w);
  const PeerId first = w.prefill(0).peers.begin()->first;
  w.prefill(0).step(w.now(), core::LinkDown{first, core::LinkDown::Why::kClosed});
}

// Without a local fence coverage and Done come together, so the stages between are not seen.
void unfenced_one_done(RoomWorld& w) {
  both_posting(w);
  w.land_all(w.prefill(0));
  w.exchange();
}

void unfenced_consumed(RoomWorld& w) {
  both_posting(w);
  w.land_all(w.prefill(0));
  w.land_all(w.prefill(1));
  w.exchange();
}

void unfenced_revoking(RoomWorld& w) {
  both_posting(w);
  w.decode().abort(w.now(), 1);
}

void unfenced_free(RoomWorld& w) {
  decode_granted(w);
  open_senders(w);
  w.exchange();
  w.decode().abort(w.now(), 1);
  w.exchange();
}

// The caller was faster than decode: any grant that fits is written under at once.
void prefill_sent_before_grant(RoomWorld& w) {
  prefill_opened(w);
  w.prefill(0).init_sender(w.now(), 1, kPagesOfRoom);
  w.prefill(0).send(w.now(), 1, kPagesOfRoom);
}

constexpr auto kBoot = KvPoll::kBootstrapping;
constexpr auto kWait = KvPoll::kWaitingForInput;
constexpr auto kMove = KvPoll::kTransferring;
constexpr auto kFail = KvPoll::kFailed;
constexpr auto kGood = KvPoll::kSuccess;
constexpr Role kD = Role::kDecode;
constexpr Role kP = Role::kPrefill;
constexpr std::nullopt_t kNo = std::nullopt;

// Append only: the corpus names a scene by its place.
constexpr std::array kScenes{
    Scene{"decode-opened", kD, true, kBoot, GrantState::kNone, kNo, decode_opened},
    Scene{"decode-resolving", kD, true, kBoot, GrantState::kNone, kNo, decode_resolving},
    Scene{"decode-dialling", kD, true, kBoot, GrantState::kNone, kNo, decode_dialling},
    Scene{"decode-greeting", kD, true, kBoot, GrantState::kNone, kNo, decode_greeting},
    Scene{"decode-confirming", kD, true, kBoot, GrantState::kNone, kNo, decode_confirming},
    Scene{"decode-waiting", kD, true, kWait, GrantState::kNone, kNo, decode_waiting},
    Scene{"decode-granted", kD, true, kMove, GrantState::kGranted, kNo, decode_granted},
    Scene{"decode-partly-landed", kD, true, kMove, GrantState::kGranted, kNo, decode_partly_landed},
    Scene{"decode-one-done", kD, true, kMove, GrantState::kGranted, kNo, decode_one_done},
    Scene{"decode-covered", kD, true, kMove, GrantState::kCovered, kNo, decode_covered},
    Scene{"decode-fenced", kD, true, kMove, GrantState::kFenced, kNo, decode_fenced},
    Scene{"decode-consumed", kD, true, kGood, GrantState::kConsumed, kNo, decode_consumed},
    Scene{"decode-failed-before-grant", kD, true, kFail, GrantState::kNone, kNo,
          decode_failed_before_grant},
    Scene{"decode-revoking", kD, true, kFail, GrantState::kRevoking, kNo, decode_revoking},
    Scene{"decode-free", kD, true, kFail, GrantState::kFree, kNo, decode_free},
    Scene{"decode-suspended", kD, true, kMove, GrantState::kGranted, kNo, decode_suspended},
    Scene{"decode-cleared", kD, true, kFail, GrantState::kRevoking, kNo, decode_cleared},
    Scene{"prefill-alone", kP, true, kBoot, kNo, kNo, prefill_alone},
    Scene{"prefill-greeted", kP, true, kBoot, kNo, kNo, prefill_greeted},
    Scene{"prefill-opened", kP, true, kBoot, kNo, kNo, prefill_opened},
    Scene{"prefill-grant-without-sender", kP, true, kNo, kNo, kNo, prefill_grant_without_sender},
    Scene{"prefill-one-grant-of-two", kP, true, kBoot, kNo, TargetState::kGranted,
          prefill_one_grant_of_two},
    Scene{"prefill-waiting", kP, true, kWait, kNo, TargetState::kGranted, prefill_waiting},
    Scene{"prefill-posting", kP, true, kMove, kNo, TargetState::kPosting, prefill_posting},
    Scene{"prefill-done", kP, true, kMove, kNo, TargetState::kDone, prefill_done},
    Scene{"prefill-consumed", kP, true, kGood, kNo, TargetState::kConsumed, prefill_consumed},
    Scene{"prefill-given-up", kP, true, kFail, kNo, TargetState::kGivenUp, prefill_given_up},
    Scene{"prefill-drained", kP, true, kFail, kNo, TargetState::kDrained, prefill_drained},
    Scene{"prefill-failed-before-grant", kP, true, kFail, kNo, kNo, prefill_failed_before_grant},
    Scene{"prefill-forgotten", kP, true, kNo, kNo, kNo, prefill_forgotten},
    Scene{"prefill-suspended", kP, true, kMove, kNo, TargetState::kPosting, prefill_suspended},
    Scene{"unfenced-one-done", kD, false, kMove, GrantState::kGranted, kNo, unfenced_one_done},
    Scene{"unfenced-consumed", kD, false, kGood, GrantState::kConsumed, kNo, unfenced_consumed},
    Scene{"unfenced-revoking", kD, false, kFail, GrantState::kRevoking, kNo, unfenced_revoking},
    Scene{"unfenced-free", kD, false, kFail, GrantState::kFree, kNo, unfenced_free},
    Scene{"unfenced-posting", kP, false, kMove, kNo, TargetState::kPosting, prefill_posting},
    Scene{"unfenced-given-up", kP, false, kFail, kNo, TargetState::kGivenUp, prefill_given_up},
    Scene{"prefill-sent-before-grant", kP, true, kBoot, kNo, kNo, prefill_sent_before_grant},
};

constexpr std::array kHidden{
    HiddenState{"quiet", "left in the step that enters it: by Success or by the release"},
    HiddenState{"torn-down", "reserved: no transport's teardown is proven yet"},
};

}  // namespace

std::span<const Scene> scenes() { return kScenes; }
std::span<const HiddenState> hidden_states() { return kHidden; }

RoomWorld play(const Scene& scene) {
  RoomWorld world(scene.subject, {scene.local_fence, scene.local_fence});
  scene.play(world);
  return world;
}

}  // namespace kvferry::fuzz
