#include "runtime/registry_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace kvferry::runtime {
namespace {

prometheus::Counter& counter(prometheus::Registry& registry, const std::string& name,
                             const std::string& help) {
  return prometheus::BuildCounter()
      .Name("kvferry_registry_" + name)
      .Help(help)
      .Register(registry)
      .Add({});
}

}  // namespace

struct RegistryMetrics::Families {
  prometheus::Registry registry;
  prometheus::Counter& requests = counter(registry, "requests_total", "Requests of any kind.");
  prometheus::Counter& unauthorized = counter(
      registry, "unauthorized_total", "Requests refused for their signature, time or nonce.");
  prometheus::Counter& replays =
      counter(registry, "replays_total", "Of those, requests that came a second time.");
  prometheus::Counter& conflicts =
      counter(registry, "conflicts_total",
              "Registrations of a rank with another owner or of a superseded incarnation.");
  prometheus::Counter& malformed =
      counter(registry, "malformed_total", "Bodies that do not parse.");
  prometheus::Gauge& rows = prometheus::BuildGauge()
                                .Name("kvferry_registry_rows")
                                .Help("Ranks under a live lease.")
                                .Register(registry)
                                .Add({});
};

RegistryMetrics::RegistryMetrics() : families_(std::make_unique<Families>()) {}
RegistryMetrics::~RegistryMetrics() = default;

void RegistryMetrics::request_arrived() { families_->requests.Increment(); }
void RegistryMetrics::unauthorized() { families_->unauthorized.Increment(); }
void RegistryMetrics::replayed() { families_->replays.Increment(); }
void RegistryMetrics::conflicted() { families_->conflicts.Increment(); }
void RegistryMetrics::malformed() { families_->malformed.Increment(); }

std::string RegistryMetrics::to_text(std::uint64_t rows) const {
  families_->rows.Set(static_cast<double>(rows));
  return prometheus::TextSerializer().Serialize(families_->registry.Collect());
}

}  // namespace kvferry::runtime
