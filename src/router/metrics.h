// Counters of the router, and the text of GET /metrics. Prometheus stays in metrics.cc.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvferry/kv_args.h"

namespace kvferry::router {

enum class Refusal {
  kBusy,  // over the limit of requests in flight
  kDraining,
  kNoPair,
};

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void request_arrived();  // at one of the routes that need a pair
  void answered(int http_status);
  void refused(Refusal reason);
  void client_gone();    // the client closed its connection first; counts against nobody
  void retried();        // on another pair after a failed connection
  void stream_broken();  // decode's answer ended early

  std::string to_text(std::uint64_t in_flight) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

struct ServerSample {
  Role role = Role::kPrefill;
  std::string address;
  bool ready = false;
  std::uint64_t in_flight = 0;
};

// The text of what the fleet knows; its names differ from those of Metrics, so the two texts can
// follow each other. An address that is listed twice is one server.
std::string fleet_metrics_text(std::uint64_t ready_pairs, std::span<const ServerSample> servers);

}  // namespace kvferry::router
