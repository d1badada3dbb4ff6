#include "serve/prefill_scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "serve/elapsed.h"

namespace kvferry::serve {

struct PrefillScheduler::Job {
  Job(Submission from, std::shared_ptr<WakeFd> wake)
      : submission(std::move(from)), watch(*submission.responder, std::move(wake)) {}

  const RoomFields& fields() const { return *submission.request.room; }
  std::uint32_t prompt_tokens() const {
    return static_cast<std::uint32_t>(submission.tokens.size());
  }
  bool computed() const { return position == prompt_tokens(); }

  Submission submission;
  ClientWatch watch;
  std::unique_ptr<PrefillRoom> room;
  std::optional<std::uint32_t> aux_slot;
  std::vector<PageIndex> pages;  // reserved, in prompt order
  std::uint32_t exported = 0;    // of pages: filled
  std::uint32_t sent = 0;        // of pages: given to the room
  std::optional<SequenceId> sequence;
  std::uint32_t position = 0;  // prompt tokens evaluated
  Token first_token = 0;       // of the answer
  Instant computing_since;
  Instant computed_at;
  RoomStats stats;
};

PrefillScheduler::PrefillScheduler(Engine& engine, PagePool& pool, Transfer& transfer,
                                   RoomLog& rooms, ServeMetrics& metrics, SchedulerLimits limits)
    : Scheduler("kv-prefill", limits, metrics),
      engine_(engine),
      pool_(pool),
      transfer_(transfer),
      rooms_(rooms) {}

PrefillScheduler::~PrefillScheduler() { stop(); }

void PrefillScheduler::accept(Submission submission) {
  auto& job = *jobs_.emplace_back(std::make_unique<Job>(std::move(submission), wake()));
  job.stats.role = Role::kPrefill;
  job.stats.room = job.fields().room;
  job.stats.binding = job.fields().binding;
  job.stats.prompt_tokens = job.prompt_tokens();
  job.stats.pages = pool_.pages_for(job.prompt_tokens());
  // Opened before its turn comes, so that decode's grant finds it however long the queue is.
  job.room = transfer_.open_prefill(job.fields().room, job.fields().binding);
  job.aux_slot = pool_.take_aux();
  Status status = job.aux_slot
                      ? job.room->init(job.stats.pages, *job.aux_slot)
                      : fail(FailureCode::kTableFull, "no aux slot is free on this server");
  if (status) {
    held_[job.room->id()].aux_slot = *job.aux_slot;
    return;
  }
  if (job.aux_slot) {
    pool_.give_back_aux(*job.aux_slot);
  }
  end(job, &status.error());
  jobs_.pop_back();
}

bool PrefillScheduler::turn(Instant now) {
  transfer_.drain_event_fd();
  take_back();
  std::vector<std::uint64_t> ids;
  for (const auto& job : jobs_) {
    ids.push_back(job->room->id());
  }
  std::vector<KvPoll> statuses(ids.size());
  transfer_.poll_many(ids, statuses);
  std::size_t index = 0;
  std::erase_if(jobs_, [&](const std::unique_ptr<Job>& job) {
    return !follow_room(*job, statuses[index++], now);
  });
  return compute(now);
}

bool PrefillScheduler::follow_room(Job& job, KvPoll status, Instant now) {
  if (job.watch.gone()) {
    const Failure left{
        FailureCode::kAborted, FailureWhere::kLocal, "the client left prefill", {}, -1};
    job.room->abort(left.what);
    end(job, &left);
    return false;
  }
  if (status == KvPoll::kSuccess) {
    job.stats.transfer_after_prefill_ms = elapsed_ms(job.computed_at, now);
    end(job, nullptr);
    return false;
  }
  Status outcome;
  if (status == KvPoll::kFailed) {
    outcome = tl::unexpected(job.room->failure().value_or(
        Failure{FailureCode::kUnspecified, FailureWhere::kLocal, "the room failed", {}, -1}));
  } else if (status != KvPoll::kBootstrapping && job.room->decode_prefix_pages() != 0) {
    outcome =
        fail(FailureCode::kInvalidArgument,
             fmt::format("decode holds {} pages of this prompt; this server sends whole prompts",
                         job.room->decode_prefix_pages()));
  } else if (status != KvPoll::kBootstrapping) {
    outcome = send_ready(job);
  }
  if (outcome && job.pages.empty() &&
      elapsed_ms(job.submission.arrived, now) > limits().queue_timeout_ms) {
    outcome =
        fail(FailureCode::kQueueFull,
             fmt::format("the prompt's turn did not come within {} ms ({} requests are here; it "
                         "needs {} pages, {} of {} are free)",
                         limits().queue_timeout_ms, requests(), job.stats.pages, pool_.free_pages(),
                         pool_.page_count()));
  }
  if (!outcome) {
    job.room->abort(outcome.error().what);
    end(job, &outcome.error());
    return false;
  }
  return true;
}

bool PrefillScheduler::compute(Instant now) {
  const auto next =
      std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) { return !job->computed(); });
  if (next == jobs_.end() || !reserve(**next, now)) {
    return false;
  }
  Job& job = **next;
  const Status status = compute_chunk(job);
  if (!status) {
    job.room->abort(status.error().what);
    end(job, &status.error());
    jobs_.erase(next);
  }
  return true;
}

bool PrefillScheduler::reserve(Job& job, Instant now) {
  if (job.sequence) {
    return true;
  }
  if (job.pages.empty()) {
    auto pages = pool_.take_pages(job.stats.pages);
    if (!pages) {
      return false;
    }
    job.pages = std::move(*pages);
  }
  auto sequence = engine_.open_sequence();
  if (!sequence) {
    return false;
  }
  job.sequence = *sequence;
  job.computing_since = now;
  job.stats.queued_ms = elapsed_ms(job.submission.arrived, now);
  return true;
}

Status PrefillScheduler::compute_chunk(Job& job) {
  const std::uint32_t count =
      std::min(engine_.info().numerics.prefill_chunk_tokens, job.prompt_tokens() - job.position);
  const bool last = job.position + count == job.prompt_tokens();
  const Instant start = monotonic_now();
  if (auto status = engine_.prefill(*job.sequence,
                                    std::span(job.submission.tokens).subspan(job.position, count),
                                    job.position, last);
      !status) {
    return status;
  }
  metrics().prefill_chunk(count, elapsed_seconds(start, monotonic_now()));
  job.position += count;
  if (last) {
    if (auto status = end_of_prompt(job); !status) {
      return status;
    }
  }
  if (auto status = export_pages(job); !status) {
    return status;
  }
  if (last) {
    close_sequence(job);
  }
  // Pages leave at once; the grant may not be there yet, then the next turns try again.
  const KvPoll status = job.room->poll();
  const bool granted = status == KvPoll::kWaitingForInput || status == KvPoll::kTransferring;
  return granted && job.room->decode_prefix_pages() == 0 ? send_ready(job) : Status{};
}

Status PrefillScheduler::end_of_prompt(Job& job) {
  const Sampled first = sample(engine_.logits(0), job.submission.request.sampling, 0);
  if (first.token < 0) {
    return fail(FailureCode::kUnspecified, "the engine gave no logits for the last prompt token");
  }
  job.first_token = first.token;
  job.computed_at = monotonic_now();
  metrics().first_token(elapsed_seconds(job.submission.arrived, job.computed_at));
  job.stats.prefill_ms = elapsed_ms(job.computing_since, job.computed_at);
  job.stats.landed_bytes_at_prefill_end = job.room->landed_bytes();
  std::uint64_t page_bytes = 0;
  for (const auto& region : pool_.regions()) {
    page_bytes += region.kind == RegionKind::kAux ? 0 : region.item_bytes;
  }
  job.stats.bytes = page_bytes * job.pages.size();
  job.stats.first_page_before_prefill_end = job.stats.landed_bytes_at_prefill_end >= page_bytes;
  return transfer_.write_aux(*job.aux_slot, job.fields().room, job.fields().binding,
                             {first.token, first.logprob, job.prompt_tokens(), 0});
}

Status PrefillScheduler::export_pages(Job& job) {
  const std::uint32_t size = engine_.info().page_size_tokens;
  while (job.exported < job.pages.size()) {
    const std::uint32_t first = job.exported * size;
    const std::uint32_t count = std::min(size, job.prompt_tokens() - first);
    if (first + count > job.position) {
      break;
    }
    const auto page = pool_.page(job.pages[job.exported]);
    if (auto status = engine_.export_page(*job.sequence, first, count, page); !status) {
      return status;
    }
    ++job.exported;
  }
  return {};
}

Status PrefillScheduler::send_ready(Job& job) {
  if (job.exported == job.sent) {
    return {};
  }
  const auto chunk = std::span(job.pages).subspan(job.sent, job.exported - job.sent);
  if (auto status = job.room->send(chunk); !status) {
    return status;
  }
  held_[job.room->id()].pages += chunk.size();
  job.sent = job.exported;
  return {};
}

void PrefillScheduler::close_sequence(Job& job) {
  if (job.sequence) {
    engine_.close_sequence(*job.sequence);
    job.sequence.reset();
  }
}

void PrefillScheduler::end(Job& job, const Failure* failure) {
  close_sequence(job);
  // What the room never got is free now; the rest comes back through take_released().
  pool_.give_back(std::span(job.pages).subspan(job.sent));
  job.room.reset();
  if (failure != nullptr) {
    log_failure(job.fields().room, job.fields().binding, *failure);
    job.stats.outcome = "failed";
    job.stats.failure = failure->what;
    job.stats.failure_code = to_string(failure->code);
  } else {
    job.stats.outcome = "success";
  }
  rooms_.put(job.stats);
  const double seconds = elapsed_seconds(job.submission.arrived, monotonic_now());
  if (failure != nullptr) {
    const ApiError error = to_api_error(*failure);
    respond_error(*job.submission.responder, error);
    metrics().request_ended(error.status, seconds);
  } else {
    job.submission.responder->respond(success_answer(job));
    metrics().request_ended(200, seconds);
  }
  request_done();
}

net::HttpResponse PrefillScheduler::success_answer(const Job& job) const {
  const GenerationRequest& request = job.submission.request;
  net::HttpResponse response;
  std::string type = "application/json";
  if (request.kind != RequestKind::kGenerate) {
    response.body = prefill_json(job.submission.head, job.stats);
  } else {
    const std::string text =
        engine_.ends_answer(job.first_token) ? std::string() : engine_.piece(job.first_token);
    response.body =
        generate_prefill_json(job.submission.head, text, job.first_token, job.prompt_tokens());
    if (request.stream) {
      type = "text/event-stream";
      response.body = fmt::format("data: {}\n\ndata: [DONE]\n\n", response.body);
    }
  }
  response.headers.fields.emplace_back("Content-Type", std::move(type));
  return response;
}

void PrefillScheduler::take_back() {
  for (const auto& released : transfer_.take_released()) {
    pool_.give_back(released.pages);
    const auto held = held_.find(released.owner);
    if (held == held_.end()) {
      continue;
    }
    held->second.pages -= std::min(held->second.pages, released.pages.size());
    if (released.aux_slot >= 0 && held->second.aux_slot == released.aux_slot) {
      pool_.give_back_aux(static_cast<std::uint32_t>(released.aux_slot));
      held->second.aux_slot = -1;
    }
    if (held->second.pages == 0 && held->second.aux_slot < 0) {
      held_.erase(held);
    }
  }
}

void PrefillScheduler::fail_all(const Failure& cause) {
  for (const auto& job : jobs_) {
    job->room->abort(cause.what);
    end(*job, &cause);
  }
  jobs_.clear();
}

}  // namespace kvferry::serve
