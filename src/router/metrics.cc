#include "router/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace kvferry::router {
namespace {

using CounterFamily = prometheus::Family<prometheus::Counter>;
using GaugeFamily = prometheus::Family<prometheus::Gauge>;

CounterFamily& counters(prometheus::Registry& registry, const std::string& name,
                        const std::string& help) {
  return prometheus::BuildCounter().Name("kvferry_router_" + name).Help(help).Register(registry);
}
GaugeFamily& gauges(prometheus::Registry& registry, const std::string& name,
                    const std::string& help) {
  return prometheus::BuildGauge().Name("kvferry_router_" + name).Help(help).Register(registry);
}

}  // namespace

// Every series is made here, so that each shows from the start with 0 and counting looks up
// nothing.
struct Metrics::Families {
  prometheus::Registry registry;
  prometheus::Gauge& in_flight =
      gauges(registry, "in_flight", "Requests that are being forwarded").Add({});
  prometheus::Counter& requests =
      counters(registry, "requests_total", "Requests that need a pair").Add({});
  prometheus::Counter& client_gone =
      counters(registry, "client_gone_total", "Requests whose client closed its connection first")
          .Add({});
  prometheus::Counter& retries =
      counters(registry, "retries_total", "Second tries on another pair after a failed connection")
          .Add({});
  prometheus::Counter& broken_streams =
      counters(registry, "broken_streams_total", "Streams that decode ended early").Add({});

  CounterFamily& answers =
      counters(registry, "answers_total", "Answers to clients, by class of HTTP status");
  prometheus::Counter& answered_2xx = answers.Add({{"class", "2xx"}});
  prometheus::Counter& answered_4xx = answers.Add({{"class", "4xx"}});
  prometheus::Counter& answered_5xx = answers.Add({{"class", "5xx"}});

  CounterFamily& refusals =
      counters(registry, "refused_total", "Requests the router refused itself, by reason");
  prometheus::Counter& refused_busy = refusals.Add({{"reason", "busy"}});
  prometheus::Counter& refused_draining = refusals.Add({{"reason", "draining"}});
  prometheus::Counter& refused_no_pair = refusals.Add({{"reason", "no_pair"}});
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::request_arrived() { families_->requests.Increment(); }
void Metrics::client_gone() { families_->client_gone.Increment(); }
void Metrics::retried() { families_->retries.Increment(); }
void Metrics::stream_broken() { families_->broken_streams.Increment(); }

void Metrics::answered(int http_status) {
  (http_status < 400   ? families_->answered_2xx
   : http_status < 500 ? families_->answered_4xx
                       : families_->answered_5xx)
      .Increment();
}

void Metrics::refused(Refusal reason) {
  switch (reason) {
    case Refusal::kBusy:
      return families_->refused_busy.Increment();
    case Refusal::kDraining:
      return families_->refused_draining.Increment();
    case Refusal::kNoPair:
      return families_->refused_no_pair.Increment();
  }
}

std::string Metrics::to_text(std::uint64_t in_flight) const {
  families_->in_flight.Set(static_cast<double>(in_flight));
  return prometheus::TextSerializer().Serialize(families_->registry.Collect());
}

std::string fleet_metrics_text(std::uint64_t ready_pairs, std::span<const ServerSample> servers) {
  // The fleet keeps these numbers for its choices; a registry of one scrape can't go stale.
  prometheus::Registry registry;
  gauges(registry, "ready_pairs", "Pairs that can take a request")
      .Add({})
      .Set(static_cast<double>(ready_pairs));
  GaugeFamily& ready = gauges(registry, "server_ready", "1 when the server said it is ready");
  GaugeFamily& in_flight =
      gauges(registry, "server_in_flight", "Requests that the server is part of");
  for (const ServerSample& server : servers) {
    const prometheus::Labels labels{{"role", std::string(to_string(server.role))},
                                    {"address", server.address}};
    ready.Add(labels).Set(server.ready ? 1 : 0);
    in_flight.Add(labels).Increment(static_cast<double>(server.in_flight));
  }
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

}  // namespace kvferry::router
