#include "router/metrics.h"

#include <fmt/format.h>

namespace kvferry::router {

std::string Metrics::to_text(std::uint64_t in_flight) const {
  std::string out = fmt::format(
      "# TYPE kvferry_router_in_flight gauge\nkvferry_router_in_flight {}\n", in_flight);
  const auto counter = [&](const char* name, const Counter& value) {
    out += fmt::format("# TYPE kvferry_router_{0} counter\nkvferry_router_{0} {1}\n", name,
                       value.load());
  };
  counter("requests_total", requests);
  counter("client_gone_total", client_gone);
  counter("retries_total", retries);
  counter("broken_streams_total", broken_streams);
  out += "# TYPE kvferry_router_answers_total counter\n";
  const auto answers = [&](const char* status, const Counter& value) {
    out += fmt::format("kvferry_router_answers_total{{class=\"{}\"}} {}\n", status, value.load());
  };
  answers("2xx", answered_2xx);
  answers("4xx", answered_4xx);
  answers("5xx", answered_5xx);
  out += "# TYPE kvferry_router_refused_total counter\n";
  const auto refused = [&](const char* reason, const Counter& value) {
    out += fmt::format("kvferry_router_refused_total{{reason=\"{}\"}} {}\n", reason, value.load());
  };
  refused("busy", refused_busy);
  refused("draining", refused_draining);
  refused("no_pair", refused_no_pair);
  return out;
}

}  // namespace kvferry::router
