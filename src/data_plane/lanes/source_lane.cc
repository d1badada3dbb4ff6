#include "data_plane/lanes/source_lane.h"

#include <algorithm>

namespace kvferry::data_plane {
namespace {

constexpr milliseconds kBackoffMin{20};
constexpr milliseconds kBackoffMax{2'000};

}  // namespace

void append_question(std::vector<std::uint8_t>& out, std::uint64_t request,
                     std::uint32_t lost_serial, const OutFrame& frame) {
  FrameHeader header;
  header.type = FrameType::kResolve;
  header.count = static_cast<std::uint16_t>(frame.writes.size());
  header.slot = lost_serial;
  header.sequence = request;
  append_header(out, header);
  for (const layout::Write& write : frame.writes) {
    append_resolve_entry(out, ResolveEntry{write.ticket, write.slot, write.generation});
  }
}

Duration lane_backoff(std::uint32_t failures) {
  const std::uint32_t doublings = std::min(failures, 8U);
  return std::min<Duration>(kBackoffMin * (1U << doublings), kBackoffMax);
}

Result<std::vector<std::uint8_t>> LaneProof::respond(std::span<const std::uint8_t> challenge) {
  std::optional<Nonce> nonce;
  if (challenge.size() == kChallengeBytes) {
    nonce = parse_challenge(challenge.first<kChallengeBytes>());
  }
  if (!nonce) {
    return fail(FailureCode::kMalformed,
                "the target's challenge is not of this lane protocol version", FailureWhere::kPeer);
  }
  target_nonce_ = *nonce;
  fill_random(nonce_);
  LaneResponse response;
  response.epoch = settings_.epoch;
  response.serial = serial_;
  response.nonce = nonce_;
  response.proof = lane_proof(settings_.secret, Prover::kSource, target_nonce_, nonce_,
                              settings_.epoch, serial_);
  return encode_response(response);
}

Status LaneProof::check_welcome(std::span<const std::uint8_t> welcome) const {
  std::optional<Digest> proof;
  if (welcome.size() == kWelcomeBytes) proof = parse_welcome(welcome.first<kWelcomeBytes>());
  const Digest expected = lane_proof(settings_.secret, Prover::kTarget, target_nonce_, nonce_,
                                     settings_.epoch, serial_);
  if (!proof || !equal_digests(*proof, expected)) {
    return fail(FailureCode::kUnauthorized,
                "the target did not prove that it knows the session's secret", FailureWhere::kPeer);
  }
  return {};
}

OutFramePtr UnansweredFrames::take(std::uint64_t sequence, std::size_t writes) {
  const auto found = std::find_if(frames_.begin(), frames_.end(), [&](const OutFramePtr& frame) {
    return frame->sequence == sequence;
  });
  if (found == frames_.end() || (*found)->writes.size() != writes) return nullptr;
  OutFramePtr frame = std::move(*found);
  frames_.erase(found);
  return frame;
}

std::vector<OutFramePtr> UnansweredFrames::take_all() {
  std::vector<OutFramePtr> all(std::make_move_iterator(frames_.begin()),
                               std::make_move_iterator(frames_.end()));
  frames_.clear();
  return all;
}

void UnansweredFrames::expire(Instant now, const std::function<void(const OutFrame&)>& call) {
  for (const OutFramePtr& frame : frames_) expire_frame(*frame, now, call);
}

bool UnansweredFrames::has_overdue(Instant now, Duration grace) const {
  return std::any_of(frames_.begin(), frames_.end(),
                     [&](const OutFramePtr& frame) { return is_overdue(*frame, now, grace); });
}

void expire_frame(OutFrame& frame, Instant now, const std::function<void(const OutFrame&)>& call) {
  if (frame.is_expired || now < frame.deadline) return;
  frame.is_expired = true;
  frame.expired_at = now;
  call(frame);
}

bool is_overdue(const OutFrame& frame, Instant now, Duration grace) {
  return frame.is_expired && now - frame.expired_at >= grace;
}

}  // namespace kvferry::data_plane
