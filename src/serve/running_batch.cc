#include "serve/running_batch.h"

#include "base/clock.h"
#include "base/log.h"
#include "serve/elapsed.h"

namespace kvferry::serve {

std::size_t RunningBatch::step() {
  std::size_t ended = 0;
  for (auto& each : running_) {
    if (each.answer->client_gone()) {
      each.answer->drop();
    }
  }
  ended += remove_complete();
  if (running_.empty()) {
    return ended;
  }
  std::vector<StepItem> items;
  items.reserve(running_.size());
  for (const auto& each : running_) {
    items.push_back({each.sequence, each.next, each.position});
  }
  const Instant start = monotonic_now();
  if (auto status = engine_.step(items); !status) {
    log::error("a step of {} sequences failed: {}", items.size(), to_string(status.error()));
    return ended + fail_all(status.error());
  }
  metrics_.step(static_cast<std::uint32_t>(items.size()), elapsed_seconds(start, monotonic_now()));
  for (std::size_t index = 0; index < running_.size(); ++index) {
    Running& each = running_[index];
    ++each.position;
    const Sampled sampled =
        sample(engine_.logits(index), each.answer->submission().request.sampling,
               each.answer->next_index());
    if (sampled.token < 0) {
      each.answer->fail({500, "the engine gave no logits", "server_error", "", "unspecified"});
      continue;
    }
    each.next = sampled.token;
    each.answer->add(sampled.token);
  }
  return ended + remove_complete();
}

std::size_t RunningBatch::remove_complete() {
  return std::erase_if(running_, [&](Running& each) {
    if (!each.answer->complete()) {
      return false;
    }
    engine_.close_sequence(each.sequence);
    if (each.stats) {
      each.stats->answer_tokens = each.answer->next_index();
      rooms_.put(*each.stats);
    }
    return true;
  });
}

std::size_t RunningBatch::fail_all(const Failure& cause) {
  for (auto& each : running_) {
    each.answer->fail(to_api_error(cause));
  }
  return remove_complete();
}

}  // namespace kvferry::serve
