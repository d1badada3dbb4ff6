#include "serve/decode_scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "serve/elapsed.h"

namespace kvferry::serve {

struct DecodeScheduler::Job {
  explicit Job(std::unique_ptr<Answer> to) : answer(std::move(to)) {}

  const Submission& submission() const { return answer->submission(); }
  const RoomFields& fields() const { return *submission().request.room; }
  std::uint32_t prompt_tokens() const {
    return static_cast<std::uint32_t>(submission().tokens.size());
  }

  std::unique_ptr<Answer> answer;
  std::unique_ptr<DecodeRoom> room;
  // Owned here only while waiting_ and importing_; in between they belong to the room.
  std::vector<PageIndex> pages;
  std::uint32_t aux_slot = 0;
  std::optional<SequenceId> sequence;
  std::uint32_t imported = 0;  // pages
  Token first_token = 0;
  Instant granted_at;
  RoomStats stats;
};

DecodeScheduler::DecodeScheduler(Engine& engine, PagePool& pool, Transfer& transfer, RoomLog& rooms,
                                 ServeMetrics& metrics, SchedulerLimits limits)
    : Scheduler("kv-decode", limits, metrics),
      engine_(engine),
      pool_(pool),
      transfer_(transfer),
      rooms_(rooms),
      running_(engine, metrics, rooms) {}

DecodeScheduler::~DecodeScheduler() { stop(); }

void DecodeScheduler::accept(Submission submission) {
  auto answer = std::make_unique<Answer>(std::move(submission), engine_, metrics(), wake());
  auto& job = *waiting_.emplace_back(std::make_unique<Job>(std::move(answer)));
  job.stats.role = Role::kDecode;
  job.stats.room = job.fields().room;
  job.stats.binding = job.fields().binding;
  job.stats.prompt_tokens = job.prompt_tokens();
  job.stats.pages = pool_.pages_for(job.prompt_tokens());
}

bool DecodeScheduler::turn(Instant now) {
  transfer_.drain_event_fd();
  take_back();
  follow_rooms(now);
  admit(now);
  const bool importing = import_some();
  const std::size_t ended = running_.step();
  for (std::size_t count = 0; count < ended; ++count) {
    request_done();
  }
  return importing || !running_.empty();
}

void DecodeScheduler::take_back() {
  for (const auto& released : transfer_.take_released()) {
    pool_.give_back(released.pages);
    if (released.aux_slot >= 0) {
      pool_.give_back_aux(static_cast<std::uint32_t>(released.aux_slot));
    }
  }
}

void DecodeScheduler::admit(Instant now) {
  std::erase_if(waiting_, [&](const std::unique_ptr<Job>& job) {
    const Submission& submission = job->submission();
    if (job->answer->client_gone()) {
      end_waiting(*job, {FailureCode::kAborted, FailureWhere::kLocal, "the client left", {}, -1});
      return true;
    }
    if (elapsed_ms(submission.arrived, now) > limits().queue_timeout_ms) {
      end_waiting(
          *job,
          {FailureCode::kQueueFull,
           FailureWhere::kLocal,
           fmt::format("no pages became free within {} ms ({} of {} are free, the prompt needs {})",
                       limits().queue_timeout_ms, pool_.free_pages(), pool_.page_count(),
                       job->stats.pages),
           {},
           -1});
      return true;
    }
    return false;
  });
  // In order of arrival: a small request does not overtake, or a large one would never get its
  // pages.
  while (!waiting_.empty() && pool_.free_aux() > 0) {
    Job& job = *waiting_.front();
    auto pages = pool_.take_pages(job.stats.pages);
    if (!pages) {
      return;
    }
    const Status status = grant(job, std::move(*pages), *pool_.take_aux(), now);
    if (status) {
      granted_.push_back(std::move(waiting_.front()));
    } else {
      end(job, status.error());
    }
    waiting_.pop_front();
  }
}

Status DecodeScheduler::grant(Job& job, std::vector<PageIndex> pages, std::uint32_t aux_slot,
                              Instant now) {
  job.room = transfer_.open_decode(job.fields().room, job.fields().binding);
  job.pages = std::move(pages);
  job.aux_slot = aux_slot;
  job.granted_at = now;
  job.stats.queued_ms = elapsed_ms(job.submission().arrived, now);
  Status status = job.room->init(job.fields().bootstrap_address(), job.fields().prefill_instance);
  if (status) {
    status = job.room->send_metadata(job.pages, aux_slot);
  }
  if (!status) {
    give_back(job);
  }
  return status;
}

void DecodeScheduler::follow_rooms(Instant now) {
  std::vector<std::uint64_t> ids;
  for (const auto& job : granted_) {
    ids.push_back(job->room->id());
  }
  std::vector<KvPoll> statuses(ids.size());
  transfer_.poll_many(ids, statuses);
  std::size_t index = 0;
  std::vector<std::unique_ptr<Job>> still;
  for (auto& job : granted_) {
    const KvPoll status = statuses[index++];
    if (status == KvPoll::kSuccess && job->room->poll() == KvPoll::kSuccess) {
      if (begin_import(*job, now)) {
        importing_.push_back(std::move(job));
      }
    } else if (status == KvPoll::kFailed) {
      end(*job, job->room->failure().value_or(Failure{
                    FailureCode::kUnspecified, FailureWhere::kLocal, "the room failed", {}, -1}));
    } else if (job->answer->client_gone()) {
      job->room->abort("the client left decode");
      end(*job, {FailureCode::kAborted, FailureWhere::kLocal, "the client left decode", {}, -1});
    } else {
      still.push_back(std::move(job));
    }
  }
  granted_ = std::move(still);
}

bool DecodeScheduler::begin_import(Job& job, Instant now) {
  job.stats.transfer_ms = elapsed_ms(job.granted_at, now);
  std::uint64_t page_bytes = 0;
  for (const auto& region : pool_.regions()) {
    page_bytes += region.kind == RegionKind::kAux ? 0 : region.item_bytes;
  }
  job.stats.bytes = page_bytes * job.pages.size();
  const auto aux = transfer_.read_aux(job.aux_slot, job.fields().room, job.fields().binding);
  job.room.reset();
  if (!aux || aux->prompt_tokens != job.prompt_tokens()) {
    const Failure cause = aux ? Failure{FailureCode::kAuxInvalid,
                                        FailureWhere::kPeer,
                                        fmt::format("prefill counted {} prompt tokens, decode {}",
                                                    aux->prompt_tokens, job.prompt_tokens()),
                                        {},
                                        -1}
                              : aux.error();
    give_back(job);
    end(job, cause);
    return false;
  }
  job.first_token = aux->first_token;
  job.stats.outcome = "success";
  job.stats.first_token_ms = elapsed_ms(job.submission().arrived, monotonic_now());
  // The first token needs none of the pages, so the client gets it before they are imported.
  if (job.answer->add(job.first_token)) {
    job.stats.answer_tokens = job.answer->next_index();
    rooms_.put(job.stats);
    give_back(job);
    request_done();
    return false;
  }
  rooms_.put(job.stats);
  return true;
}

bool DecodeScheduler::import_some() {
  for (std::uint32_t count = 0; count < limits().import_pages_per_turn && !importing_.empty();
       ++count) {
    Job& job = *importing_.front();
    if (job.answer->client_gone()) {
      give_back(job);
      end(job, {FailureCode::kAborted, FailureWhere::kLocal, "the client left", {}, -1});
      importing_.pop_front();
      continue;
    }
    if (!job.sequence) {
      auto sequence = engine_.open_sequence();
      if (!sequence) {
        return false;  // Until a running sequence ends.
      }
      job.sequence = *sequence;
    }
    if (auto status = import_page(job); !status) {
      give_back(job);
      end(job, status.error());
      importing_.pop_front();
      continue;
    }
    if (job.imported == job.pages.size()) {
      give_back(job);
      running_.add({std::move(job.answer), *job.sequence, job.stats.prompt_tokens, job.first_token,
                    job.stats});
      importing_.pop_front();
    }
  }
  return !importing_.empty();
}

Status DecodeScheduler::import_page(Job& job) {
  const std::uint32_t size = engine_.info().page_size_tokens;
  const std::uint32_t first = job.imported * size;
  const std::uint32_t count = std::min(size, job.prompt_tokens() - first);
  const Instant start = monotonic_now();
  auto status =
      engine_.import_page(*job.sequence, first, count, pool_.page(job.pages[job.imported]));
  const Instant done = monotonic_now();
  job.stats.import_ms += elapsed_ms(start, done);
  metrics().page_imported(elapsed_seconds(start, done));
  ++job.imported;
  return status;
}

void DecodeScheduler::give_back(Job& job) {
  pool_.give_back(job.pages);
  pool_.give_back_aux(job.aux_slot);
  job.pages.clear();
}

void DecodeScheduler::end(Job& job, const Failure& failure) {
  if (job.sequence) {
    engine_.close_sequence(*job.sequence);
  }
  job.room.reset();
  log_failure(job.fields().room, job.fields().binding, failure);
  job.stats.outcome = "failed";
  job.stats.failure = failure.what;
  job.stats.failure_code = to_string(failure.code);
  rooms_.put(job.stats);
  job.answer->fail(to_api_error(failure));
  request_done();
}

void DecodeScheduler::end_waiting(Job& job, const Failure& failure) {
  transfer_.refuse(job.fields(), failure.what);
  end(job, failure);
}

void DecodeScheduler::fail_all(const Failure& cause) {
  for (const auto& job : waiting_) {
    end_waiting(*job, cause);
  }
  waiting_.clear();
  for (const auto& job : granted_) {
    job->room->abort(cause.what);
    end(*job, cause);
  }
  granted_.clear();
  for (const auto& job : importing_) {
    give_back(*job);
    end(*job, cause);
  }
  importing_.clear();
  const std::size_t ended = running_.fail_all(cause);
  for (std::size_t count = 0; count < ended; ++count) {
    request_done();
  }
}

}  // namespace kvferry::serve
