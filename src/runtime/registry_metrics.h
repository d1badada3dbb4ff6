// Counters of the bootstrap server, and the text of its GET /metrics. Prometheus stays in
// registry_metrics.cc.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace kvferry::runtime {

class RegistryMetrics {
 public:
  RegistryMetrics();
  ~RegistryMetrics();
  RegistryMetrics(const RegistryMetrics&) = delete;
  RegistryMetrics& operator=(const RegistryMetrics&) = delete;

  void request_arrived();
  void unauthorized();
  void replayed();  // counts besides unauthorized()
  void conflicted();
  void malformed();

  std::string to_text(std::uint64_t rows) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace kvferry::runtime
