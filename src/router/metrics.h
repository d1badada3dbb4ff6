// Counters of the router, each incremented from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace kvferry::router {

struct Metrics {
  using Counter = std::atomic<std::uint64_t>;

  Counter requests{0};  // that reached the routing routes
  Counter answered_2xx{0};
  Counter answered_4xx{0};
  Counter answered_5xx{0};
  Counter client_gone{0};     // the client closed its connection first; counts against nobody
  Counter retries{0};         // second tries on another pair after a failed connection
  Counter broken_streams{0};  // decode's answer ended early
  Counter refused_busy{0};    // over the limit of requests in flight
  Counter refused_draining{0};
  Counter refused_no_pair{0};

  void count_answer(int status) {
    (status < 400 ? answered_2xx : status < 500 ? answered_4xx : answered_5xx).fetch_add(1);
  }
  // Prometheus lines.
  std::string to_text(std::uint64_t in_flight) const;
};

}  // namespace kvferry::router
