#include "cli/demo_result.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::cli {
namespace {

// Bounds of the demo's prompts with its model, so that a change of texts can't make it trivial or
// slow.
constexpr std::int64_t kMinPromptTokens = 100;
constexpr std::int64_t kMaxPromptTokens = 900;
constexpr std::int64_t kMaxPromptTokensTogether = 10'000;

std::string judge_lengths(const DemoResult& result) {
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const std::int64_t tokens = result.rows[i].answer.prompt_tokens;
    if (tokens < kMinPromptTokens || tokens > kMaxPromptTokens) {
      return fmt::format("prompt {} has {} tokens, not {} to {}", i + 1, tokens, kMinPromptTokens,
                         kMaxPromptTokens);
    }
  }
  if (result.prompt_tokens() > kMaxPromptTokensTogether) {
    return fmt::format("the prompts have {} tokens together, more than {}", result.prompt_tokens(),
                       kMaxPromptTokensTogether);
  }
  return "";
}

std::string judge_row(const DemoRow& row, std::size_t number) {
  if (!row.reference.problem.empty()) {
    return fmt::format("prompt {}: reference: {}", number, row.reference.problem);
  }
  if (!row.answer.problem.empty()) return fmt::format("prompt {}: {}", number, row.answer.problem);
  if (row.answer.text != row.reference.text) {
    return fmt::format("prompt {}: the answer differs from the reference's: \"{}\" and \"{}\"",
                       number, row.answer.text, row.reference.text);
  }
  if (!row.identical()) {
    return fmt::format("prompt {}: finish_reason or usage differs from the reference's", number);
  }
  if (row.prefill_chunks >= 2 && !row.first_page_before_prefill_end) {
    return fmt::format("prompt {}: no page had arrived when its {} chunks were computed", number,
                       row.prefill_chunks);
  }
  return "";
}

std::string counters(const DemoResult& result) {
  return fmt::format(
      "pages granted {:.0f}, returned {:.0f}; source pages held {:.0f}, released {:.0f}; "
      "quarantine {:.0f}",
      result.pages_granted, result.pages_returned, result.pages_held, result.pages_released,
      result.quarantined_pages);
}

}  // namespace

bool DemoRow::identical() const {
  return reference.problem.empty() && answer.problem.empty() && answer.text == reference.text &&
         answer.finish_reason == reference.finish_reason &&
         answer.prompt_tokens == reference.prompt_tokens &&
         answer.completion_tokens == reference.completion_tokens;
}

double DemoRow::overlap() const {
  return bytes > 0 ? static_cast<double>(landed_bytes_at_prefill_end) / static_cast<double>(bytes)
                   : 0;
}

double DemoRow::tokens_per_s() const {
  const double ms = answer.total_ms - answer.ttft_ms;
  if (answer.completion_tokens < 2 || ms <= 0) return 0;
  return static_cast<double>(answer.completion_tokens - 1) * 1000.0 / ms;
}

std::int64_t DemoResult::prompt_tokens() const {
  std::int64_t sum = 0;
  for (const DemoRow& row : rows) sum += row.answer.prompt_tokens;
  return sum;
}

std::uint32_t DemoResult::identical() const {
  return static_cast<std::uint32_t>(
      std::count_if(rows.begin(), rows.end(), [](const DemoRow& row) { return row.identical(); }));
}

bool DemoResult::pages_balance() const {
  return pages_granted > 0 && pages_granted == pages_returned && pages_held > 0 &&
         pages_held == pages_released && quarantined_pages == 0;
}

std::string judge(const DemoOptions& options, const DemoResult& result) {
  if (!result.problem.empty()) return result.problem;
  if (result.rows.size() != options.prompts) {
    return fmt::format("{} of {} prompts were sent", result.rows.size(), options.prompts);
  }
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    if (std::string problem = judge_row(result.rows[i], i + 1); !problem.empty()) return problem;
  }
  if (options.engine == "llama") {
    if (std::string problem = judge_lengths(result); !problem.empty()) return problem;
  }
  if (result.cancelled != options.cancelled) {
    return fmt::format("{} of {} requests were cancelled", result.cancelled, options.cancelled);
  }
  if (result.cancelled_early != result.cancelled) {
    return fmt::format("only {} of {} cancelled requests were in mid-transfer",
                       result.cancelled_early, result.cancelled);
  }
  if (!result.pages_balance()) return "the pages do not balance: " + counters(result);
  return "";
}

std::string demo_table(const DemoOptions& options, const DemoResult& result) {
  std::string out = fmt::format("{:>6} {:>6} {:>5} {:>10} {:>8} {:>8} {:>10} {:>7} {:>8} {}\n",
                                "prompt", "tokens", "pages", "bytes", "ttft_ms", "ref_ms",
                                "first_page", "overlap", "tokens/s", "identical");
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const DemoRow& row = result.rows[i];
    out +=
        fmt::format("{:>6} {:>6} {:>5} {:>10} {:>8.0f} {:>8.0f} {:>10} {:>6.0f}% {:>8.1f} {}\n",
                    i + 1, row.answer.prompt_tokens, row.pages, row.bytes, row.answer.ttft_ms,
                    row.reference.ttft_ms, row.first_page_before_prefill_end ? "during" : "after",
                    100 * row.overlap(), row.tokens_per_s(), row.identical() ? "yes" : "NO");
  }
  out += fmt::format(
      "\nttft_ms: time to first token through the router, some requests at once; ref_ms: of the\n"
      "reference (one process, both roles, one request at a time). first_page: the first page "
      "reached\n"
      "decode during or after prefill. overlap: share of the bytes that was there when prefill "
      "ended.\n\n"
      "identical answers   {} of {}\ncancelled requests  {}, of these in mid-transfer {}\n{}\n"
      "prompt tokens {}, transport {} over {}, engine {}, {:.1f} s in all\n",
      result.identical(), result.rows.size(), result.cancelled, result.cancelled_early,
      counters(result), result.prompt_tokens(), options.transport,
      result.path.empty() ? "an unknown path" : result.path, options.engine, result.seconds);
  return out;
}

Report demo_report(const DemoOptions& options, const DemoResult& result,
                   const std::string& verdict) {
  using router::JsonObject;
  Report report;
  report.command = "demo";
  report.ok = verdict.empty();
  report.summary.text("reason", verdict)
      .text("engine", options.engine)
      .text("transport", options.transport)
      .text("path", result.path)
      .integer("prompts", static_cast<std::int64_t>(result.rows.size()))
      .integer("identical", result.identical())
      .integer("prompt_tokens", result.prompt_tokens())
      .integer("cancelled", result.cancelled)
      .integer("cancelled_in_mid_transfer", result.cancelled_early)
      .number("pages_granted", result.pages_granted)
      .number("pages_returned", result.pages_returned)
      .number("pages_held", result.pages_held)
      .number("pages_released", result.pages_released)
      .number("quarantined_pages", result.quarantined_pages)
      .number("seconds", result.seconds);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const DemoRow& row = result.rows[i];
    report.rows.push_back(
        JsonObject()
            .integer("prompt", static_cast<std::int64_t>(i + 1))
            .integer("tokens", row.answer.prompt_tokens)
            .integer("answer_tokens", row.answer.completion_tokens)
            .integer("pages", row.pages)
            .integer("bytes", row.bytes)
            .number("ttft_ms", row.answer.ttft_ms)
            .number("ttft_reference_ms", row.reference.ttft_ms)
            .integer("prefill_chunks", row.prefill_chunks)
            .boolean("first_page_before_prefill_end", row.first_page_before_prefill_end)
            .number("overlap", row.overlap())
            .number("tokens_per_s", row.tokens_per_s())
            .boolean("identical", row.identical())
            .text("binding", row.answer.binding)
            .text("problem", row.answer.problem)
            .str());
  }
  return report;
}

}  // namespace kvferry::cli
