#include "lab/mutants.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/prng.h"

namespace kvferry::lab {
namespace {

using core::Guard;
using sim::ModelGuard;

struct Words {
  std::string_view name;
  std::string_view without;
};

// A switch and no array: the compiler refuses it when an enum has a guard without a mutant.
std::optional<Words> words_of(Guard missing) {
  switch (missing) {
    case Guard::kNone:
      return std::nullopt;
    // --- prefill ---
    case Guard::kDrainedAfterSettled:
      return Words{"ack-early", "Drained is said while tickets are outstanding."};
    case Guard::kTombstone:
      return Words{"no-tombstone", "A grant that comes after its Abort starts writes."};
    case Guard::kRememberSucceeded:
      return Words{"forget-succeeded", "Attempts that ended well are not remembered."};
    case Guard::kEndedSender:
      return Words{"forget-ended-sender", "A grant after its sender's end waits for a new one."};
    case Guard::kDecodeEngineEpoch:
      return Words{"mixed-decode-launches", "One sender serves grants of two decode launches."};
    case Guard::kAllGrants:
      return Words{"late-sibling-grant", "Posting begins before every expected grant is here."};
    case Guard::kDoneAfterLanded:
      return Words{"done-at-post", "Done is sent when the last write is posted, not landed."};
    case Guard::kNoDoneAfterEnd:
      return Words{"late-done", "Done is sent after the room failed or gave its source up."};
    case Guard::kSuccessOnConsumed:
      return Words{"success-at-own-done", "A sender succeeds at its own Done."};
    case Guard::kSourceHeld:
      return Words{"source-freed-early", "Source pages go while tickets still read them."};
    case Guard::kOwedAfterClear:
      return Words{"forgotten-at-clear", "A sender is forgotten when its caller clears it."};
    case Guard::kUnknownNotReposted:
      return Words{"unknown-reposted", "An unknown ticket's range is posted again."};
    case Guard::kUnknownUntilQuiet:
      return Words{"unknown-is-over", "An unknown ticket counts as settled at once."};
    case Guard::kPrefix:
      return Words{"prefix-ignored", "The sender is not told which prefix decode has."};
    case Guard::kLowWaterMark:
      return Words{"no-low-water-mark", "What lies below the mark is processed."};
    case Guard::kGrantFitsSender:
      return Words{"grant-of-any-size", "A grant of another size than announced is taken."};
    case Guard::kGrantsAlike:
      return Words{"unlike-grants", "Grants of one sender may differ in number and size."};
    // --- decode ---
    case Guard::kPagesLeaveLate:
      return Words{"pages-leave-at-once", "Pages of an aborted room are free at once."};
    case Guard::kEveryWriterDrained:
      return Words{"any-writer-release", "One drained writer releases the pages of all."};
    case Guard::kTeardownOfItsSession:
      return Words{"any-teardown", "One session's teardown settles another one's writers."};
    case Guard::kNoReleaseByTimeout:
      return Words{"timeout-release", "An overdue fence releases its pages."};
    case Guard::kFenceBeforeRelease:
      return Words{"drained-frees", "Drained releases pages although there is a fence."};
    case Guard::kFenceBeforeSuccess:
      return Words{"open-success", "Success is published without a fence."};
    case Guard::kLandingGeneration:
      return Words{"slot-credit", "A landing counts for the slot, whatever its generation."};
    case Guard::kFreshGeneration:
      return Words{"same-generation", "A slot that is used again keeps its generation."};
    case Guard::kWriterGeneration:
      return Words{"writer-by-slot", "A writer's word counts for the slot alone."};
    case Guard::kDoneNamesRoom:
      return Words{"done-of-any-room", "A Done counts whatever room it names."};
    case Guard::kPrefillEngineEpoch:
      return Words{"mixed-prefill-launches", "Writers of two prefill launches fill one grant."};
    case Guard::kEveryWriterDone:
      return Words{"any-writer-done", "The first writer's Done stands for all."};
    case Guard::kDoneNeeded:
      return Words{"coverage-without-done", "Full coverage alone is success."};
    case Guard::kDoneCounts:
      return Words{"done-count-ignored", "A Done with another count is believed."};
    case Guard::kDoneOnce:
      return Words{"duplicate-done-counted", "A writer's second Done counts as another's."};
    case Guard::kCoverageNeeded:
      return Words{"done-without-coverage", "Done alone is success."};
    case Guard::kCoverageSet:
      return Words{"coverage-by-count", "Coverage is a count of bytes, not a set."};
    case Guard::kAuxChecked:
      return Words{"aux-unchecked", "Success is published without a look at aux."};
    case Guard::kMarkBelowOpenAttempts:
      return Words{"mark-off-by-one", "The mark passes the oldest attempt that is open."};
    case Guard::kGrantedPagesExclusive:
      return Words{"page-granted-twice", "A page of one grant is granted again."};
    case Guard::kQuarantineCap:
      return Words{"no-quarantine-cap", "Rooms are admitted with the quarantine at its cap."};
    case Guard::kAbortUntilAcknowledged:
      return Words{"abort-stops-at-fence", "Abort is not repeated once the fence is done."};
    case Guard::kCellDecides:
      return Words{"success-past-cell", "Success goes on though the caller's cell failed."};
    // --- both ---
    case Guard::kEveryStateHasADeadline:
      return Words{"no-bootstrap-deadline", "A room may be Bootstrapping for ever."};
    case Guard::kBinding:
      return Words{"no-binding", "The room's number alone names a request."};
    case Guard::kTimerCancelled:
      return Words{"stale-timer", "A deadline that was replaced fires all the same."};
    case Guard::kPauseRule:
      return Words{"no-pause-rule", "Timers run before the inbox after a pause."};
    // --- sessions ---
    case Guard::kSessionEpoch:
      return Words{"no-session-epoch", "What was said in another session is believed."};
    case Guard::kPeerIncarnation:
      return Words{"no-incarnation", "The address alone names a peer."};
    case Guard::kAcknowledgedByCore:
      return Words{"acknowledged-by-link", "A message is forgotten when the link has it."};
    case Guard::kReceivedOnce:
      return Words{"received-twice", "A message that comes twice is processed twice."};
    case Guard::kHelloNonce:
      return Words{"old-hello", "A hello that is replayed replaces a session."};
    case Guard::kResumeNeedsState:
      return Words{"resume-without-state", "A session is resumed where its state is gone."};
    case Guard::kEndedNotResumed:
      return Words{"resume-of-ended", "A session that one side has ended is resumed."};
    case Guard::kEndedSessionFailsRooms:
      return Words{"rooms-outlive-session", "Rooms of a session that is over go on."};
  }
  return std::nullopt;
}

std::optional<Words> words_of(ModelGuard missing) {
  switch (missing) {
    case ModelGuard::kNone:
      return std::nullopt;
    case ModelGuard::kMarkBeforeCheck:
      return Words{"check-before-mark", "The generation is read before the mark goes up."};
    case ModelGuard::kMarkPerThread:
      return Words{"one-busy-flag", "All receiving threads share one busy flag."};
    case ModelGuard::kGenerationChecked:
      return Words{"generation-unchecked", "The slot is looked up, its generation is not."};
    case ModelGuard::kClaim:
      return Words{"no-claim", "Ranges are copied without a claim."};
    case ModelGuard::kSecondCopyAnswered:
      return Words{"second-copy-refused", "A ticket's second copy is answered refused."};
    case ModelGuard::kNoMarkWhileWaiting:
      return Words{"mark-held-while-waiting", "The mark stays up while bytes are awaited."};
    case ModelGuard::kFenceWaitsForMarks:
      return Words{"fence-without-waiting", "The fence is done at once, whatever is marked."};
    case ModelGuard::kFenceAfterRestart:
      return Words{"no-fence-after-restart", "Writes go on into a dead process's memory."};
    case ModelGuard::kLandedAfterCopy:
      return Words{"landed-before-copy", "Landed is said when the frame came."};
    case ModelGuard::kExtentChecked:
      return Words{"extent-unchecked", "A write outside its writer's slice is copied."};
  }
  return std::nullopt;
}

template <typename EnumOfGuards, typename MakeMissing>
void append(std::string_view where, MakeMissing missing_of, std::vector<Mutant>& out) {
  // Numbers past the enum's last have no words.
  for (std::uint32_t number = 1; number <= 0xFF; ++number) {
    const auto guard = static_cast<EnumOfGuards>(number);
    if (const auto words = words_of(guard)) {
      out.push_back(Mutant{words->name, words->without, where, missing_of(guard)});
    }
  }
}

Result<std::vector<Mutant>> sample(std::string_view count, std::uint64_t seed) {
  std::vector<Mutant> mutants = all_mutants();
  std::size_t wanted = 0;
  const char* end = count.data() + count.size();
  const auto [stop, error] = std::from_chars(count.data(), end, wanted);
  if (error != std::errc{} || stop != end || wanted == 0 || wanted > mutants.size()) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("'sample:{}' is not sample:1 to sample:{}", count, mutants.size()));
  }
  Prng prng(seed);
  for (std::size_t i = 0; i < wanted; ++i) {
    std::swap(mutants[i], mutants[i + prng.below(mutants.size() - i)]);
  }
  mutants.resize(wanted);
  return mutants;
}

}  // namespace

std::vector<Mutant> all_mutants() {
  std::vector<Mutant> out;
  append<Guard>(
      "core",
      [](Guard guard) {
        return sim::Missing{guard, ModelGuard::kNone};
      },
      out);
  append<ModelGuard>(
      "model of the transport",
      [](ModelGuard guard) {
        return sim::Missing{Guard::kNone, guard};
      },
      out);
  return out;
}

Result<std::vector<Mutant>> select_mutants(std::string_view list, std::uint64_t seed) {
  constexpr std::string_view kSample = "sample:";
  const std::vector<Mutant> mutants = all_mutants();
  if (list == "all") return mutants;
  if (list.starts_with(kSample)) return sample(list.substr(kSample.size()), seed);
  std::vector<Mutant> out;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view name = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const auto found = std::find_if(mutants.begin(), mutants.end(),
                                    [&](const Mutant& mutant) { return mutant.name == name; });
    if (found == mutants.end()) {
      std::string names;
      for (const Mutant& mutant : mutants) {
        names += (names.empty() ? "" : ", ") + std::string(mutant.name);
      }
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("'{}' is no mutant; there are {}", name, names));
    }
    out.push_back(*found);
  }
  return out;
}

}  // namespace kvferry::lab
