#include "abort_scene.h"

#include <algorithm>

namespace kvferry::sim::scene {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint32_t kPagesOfA = 31;
constexpr std::uint32_t kPagesOfB = 32;
constexpr std::uint32_t kPagesOfC = 14;

Profile profile_of(const AbortCase& chosen) {
  Profile profile = calm_profile(chosen.transport);
  profile.seed = chosen.seed;
  profile.prefill.tp_size = 2;
  profile.decode.pp_size = 2;
  // Room A's 31 pages take about 600 ms: two writes a page and writer, each alone in its frame.
  profile.frame_writes = 1;
  profile.write_latency = microseconds(7'000);
  if (chosen.missing.core == core::Guard::kNoReleaseByTimeout) {
    profile.options.fence_timeout_ms = 1;  // the deadline that then frees pages
  }
  if (chosen.variant == Variant::kSourceWanted) {
    profile.prefill.pages = kPagesOfA + kPagesOfB - 1;
  }
  // The one fault that a script switches on, for one frame.
  profile.rate[static_cast<std::size_t>(Fault::kErrorLanded)] = 1'000;
  return profile;
}

}  // namespace

const char* name_of(Variant variant) {
  switch (variant) {
    case Variant::kAsIs:
      return "AsIs";
    case Variant::kLateDrained:
      return "LateDrained";
    case Variant::kOneWriteFails:
      return "OneWriteFails";
    case Variant::kSenderCleared:
      return "SenderCleared";
    case Variant::kSourceWanted:
      return "SourceWanted";
  }
  return "?";
}

AbortScene::AbortScene(const AbortCase& chosen)
    : chosen_(chosen), stage_(profile_of(chosen), chosen.missing) {
  c_ = &stage_.transfer(3, kPagesOfC);
  for (const std::string& place : stage_.prefill_names(0)) {
    stage_.clear(*c_, place);  // its receivers' callers read on until the end
  }
  stage_.run_for(milliseconds(50));
  a_ = &stage_.room(1, kPagesOfA);
  b_ = &stage_.room(2, kPagesOfB);
  stage_.take_trace();
  stage_.start_clock();
}

void AbortScene::run() {
  const Duration abort_at = chosen_.abort_at;
  stage_.open_decode(*a_);
  stage_.open_prefill(*a_);
  stage_.at(abort_at, [this] {
    stage_.take_trace();
    stage_.abort_decode(*a_);
    clear_if_succeeded();
  });
  stage_.at(abort_at + milliseconds(5), [this] {
    stage_.open_decode(*b_);
    stage_.open_prefill(*b_);
  });
  plan_variant();
  stage_.run_until(abort_at + milliseconds(5));
  stage_.await([this] { return stage_.has_ended(*a_) && stage_.has_ended(*b_); });
}

Duration AbortScene::run_without_abort() {
  stage_.open_decode(*a_);
  stage_.open_prefill(*a_);
  stage_.await([this] { return stage_.has_ended(*a_); });
  return stage_.now();
}

void AbortScene::plan_variant() {
  const Duration abort_at = chosen_.abort_at;
  switch (chosen_.variant) {
    case Variant::kAsIs:
    case Variant::kSourceWanted:
      return;
    case Variant::kLateDrained:
      stage_.at(abort_at, [this, abort_at] {
        pause("p0.0", abort_at + milliseconds(50));
        pause("p0.1", abort_at + milliseconds(350));
      });
      return;
    case Variant::kOneWriteFails:
      stage_.at(std::max(abort_at - milliseconds(50), Duration{}), [this] { fail_one_write(); });
      return;
    case Variant::kSenderCleared:
      stage_.at(abort_at + milliseconds(10), [this] { stage_.clear(*a_, "p0.0"); });
      return;
  }
}

// The process stands still with its callers; what has left for the wire goes on.
void AbortScene::pause(const std::string& place, Duration until) {
  Node& node = stage_[place];
  node.pause();
  stage_.world().fabric.process_paused(node);
  resumed_[place] = until;
  stage_.at(until, [this, &node] {
    node.resume();
    stage_.world().fabric.process_resumed(node);
  });
}

// On for frames that are launched from here on, off once it struck.
void AbortScene::fail_one_write() {
  World& world = stage_.world();
  const bool strikes = world.faults.fired()[static_cast<std::size_t>(Fault::kErrorLanded)] > 0;
  if (strikes || stage_.has_ended(*a_)) {
    world.faults.disable_all();
    return;
  }
  if (!world.faults.may(Fault::kErrorLanded)) {
    world.faults = Faults(FaultSet{}.set(static_cast<std::size_t>(Fault::kErrorLanded)));
  }
  stage_.at(stage_.now() + microseconds(100), [this] { fail_one_write(); });
}

void AbortScene::clear_if_succeeded() {
  for (const std::string& place : stage_.decode_names()) {
    if (stage_.cell(*a_, place).status == KvPoll::kSuccess) {
      stage_.clear(*a_, place);
    }
  }
}

std::map<std::string, int> AbortScene::drained() const {
  std::map<std::string, int> counts;
  for (const Delivery& each : stage_.deliveries_of<wire::Drained>()) {
    const AttemptId attempt = std::get<wire::Drained>(each.message).attempt;
    if (attempt == stage_.cell(*a_, each.to).attempt) {
      ++counts[each.from + " > " + each.to];
    }
  }
  return counts;
}

Duration AbortScene::last_drained_at(const std::string& decode) const {
  Duration last{};
  for (const Delivery& each : stage_.deliveries_of<wire::Drained>()) {
    if (each.to == decode) {
      last = std::max(last, each.at);
    }
  }
  return last;
}

Duration AbortScene::seen_after(const std::string& place) const {
  const auto resumed = resumed_.find(place);
  const Duration from = resumed == resumed_.end() ? chosen_.abort_at : resumed->second;
  return stage_.since_start(stage_.cell(*a_, place).ended) - from;
}

}  // namespace kvferry::sim::scene
