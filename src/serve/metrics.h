// Counters and histograms of one server, and the text of GET /metrics. Prometheus stays in
// metrics.cc.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvferry/kv_manager.h"

namespace kvferry::serve {

class ServeMetrics {
 public:
  ServeMetrics();
  ~ServeMetrics();
  ServeMetrics(const ServeMetrics&) = delete;
  ServeMetrics& operator=(const ServeMetrics&) = delete;

  void request_ended(int http_status, double seconds);
  void first_token(double seconds);
  void prefill_chunk(std::uint32_t tokens, double seconds);
  void step(std::uint32_t sequences, double seconds);
  void page_imported(double seconds);
  void answer_tokens(std::uint64_t count);

  // samples: gauges and counters that others keep, names without the "kvferry_" prefix. Of two
  // samples with one name and labels the first counts.
  std::string render(std::span<const MetricSample> samples) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace kvferry::serve
