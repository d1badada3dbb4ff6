#include "serve/local_scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "serve/elapsed.h"

namespace kvferry::serve {

LocalScheduler::LocalScheduler(Engine& engine, RoomLog& rooms, ServeMetrics& metrics,
                               SchedulerLimits limits)
    : Scheduler("kv-both", limits, metrics), engine_(engine), running_(engine, metrics, rooms) {}

LocalScheduler::~LocalScheduler() { stop(); }

void LocalScheduler::accept(Submission submission) {
  jobs_.push_back(
      {std::make_unique<Answer>(std::move(submission), engine_, metrics(), wake()), {}, 0});
}

bool LocalScheduler::turn(Instant now) {
  std::erase_if(jobs_, [&](Job& job) {
    if (job.answer->client_gone()) {
      end(job, {FailureCode::kAborted, FailureWhere::kLocal, "the client left", {}, -1});
      return true;
    }
    if (!job.sequence &&
        elapsed_ms(job.answer->submission().arrived, now) > limits().queue_timeout_ms) {
      end(job,
          {FailureCode::kQueueFull,
           FailureWhere::kLocal,
           fmt::format("the prompt's turn did not come within {} ms", limits().queue_timeout_ms),
           {},
           -1});
      return true;
    }
    return false;
  });
  const bool computed = compute(now);
  const std::size_t ended = running_.step();
  for (std::size_t count = 0; count < ended; ++count) {
    request_done();
  }
  return computed || !running_.empty();
}

bool LocalScheduler::compute(Instant) {
  if (jobs_.empty()) {
    return false;
  }
  Job& job = jobs_.front();
  if (!job.sequence) {
    auto sequence = engine_.open_sequence();
    if (!sequence) {
      return false;
    }
    job.sequence = *sequence;
  }
  const auto& submission = job.answer->submission();
  Status status = compute_chunk(job);
  if (status && job.position == submission.tokens.size()) {
    const Sampled first = sample(engine_.logits(0), submission.request.sampling, 0);
    if (first.token < 0) {
      status =
          fail(FailureCode::kUnspecified, "the engine gave no logits for the last prompt token");
    } else if (job.answer->add(first.token)) {
      engine_.close_sequence(*job.sequence);
      request_done();
      jobs_.pop_front();
    } else {
      running_.add({std::move(job.answer), *job.sequence, job.position, first.token, std::nullopt});
      jobs_.pop_front();
    }
  }
  if (!status) {
    end(job, status.error());
    jobs_.pop_front();
  }
  return true;
}

Status LocalScheduler::compute_chunk(Job& job) {
  const auto& tokens = job.answer->submission().tokens;
  const auto size = static_cast<std::uint32_t>(tokens.size());
  const std::uint32_t count =
      std::min(engine_.info().numerics.prefill_chunk_tokens, size - job.position);
  const Instant start = monotonic_now();
  auto status = engine_.prefill(*job.sequence, std::span(tokens).subspan(job.position, count),
                                job.position, job.position + count == size);
  metrics().prefill_chunk(count, elapsed_seconds(start, monotonic_now()));
  job.position += count;
  return status;
}

void LocalScheduler::end(Job& job, const Failure& failure) {
  if (job.sequence) {
    engine_.close_sequence(*job.sequence);
  }
  job.answer->fail(to_api_error(failure));
  request_done();
}

void LocalScheduler::fail_all(const Failure& cause) {
  for (auto& job : jobs_) {
    end(job, cause);
  }
  jobs_.clear();
  const std::size_t ended = running_.fail_all(cause);
  for (std::size_t count = 0; count < ended; ++count) {
    request_done();
  }
}

}  // namespace kvferry::serve
