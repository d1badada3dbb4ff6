// What the demo measured, judged and shown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/chat_client.h"
#include "cli/demo_cluster.h"
#include "cli/report.h"

namespace kvferry::cli {

// One prompt, answered by the reference and by the pair.
struct DemoRow {
  ChatAnswer reference;
  ChatAnswer answer;
  std::int64_t pages = 0;
  std::int64_t bytes = 0;
  std::int64_t landed_bytes_at_prefill_end = 0;
  std::int64_t prefill_chunks = 0;
  bool first_page_before_prefill_end = false;

  bool identical() const;
  double overlap() const;       // share of the bytes that had landed when the prompt was computed
  double tokens_per_s() const;  // of the answer, after its first token
};

struct DemoResult {
  std::vector<DemoRow> rows;
  std::uint32_t cancelled = 0;        // requests closed by the client
  std::uint32_t cancelled_early = 0;  // of these, before their transfer was complete
  double pages_granted = -1;          // counters of decode and prefill at the end; -1: not read
  double pages_returned = -1;
  double pages_held = -1;
  double pages_released = -1;
  double quarantined_pages = -1;
  std::string path;  // "shm", or "tcp" with the reason
  double seconds = 0;
  std::string problem;  // the first thing that failed; empty: none

  std::int64_t prompt_tokens() const;
  std::uint32_t identical() const;
  bool pages_balance() const;
};

// Empty when everything that the demo claims is true, else what is not.
std::string judge(const DemoOptions& options, const DemoResult& result);

std::string demo_table(const DemoOptions& options, const DemoResult& result);
Report demo_report(const DemoOptions& options, const DemoResult& result,
                   const std::string& verdict);

}  // namespace kvferry::cli
