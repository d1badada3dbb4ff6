#include "serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <set>
#include <vector>

namespace kvferry::serve {
namespace {

const prometheus::Histogram::BucketBoundaries kSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                       0.25,  0.5,    1,     2.5,  5,     10,   30};

prometheus::Histogram& histogram(prometheus::Registry& registry, const std::string& name,
                                 const std::string& help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, kSeconds);
}
prometheus::Counter& counter(prometheus::Registry& registry, const std::string& name,
                             const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

// name="value" pairs separated by commas; values may hold escaped quotes.
std::vector<prometheus::ClientMetric::Label> parse_labels(const std::string& text) {
  std::vector<prometheus::ClientMetric::Label> labels;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t equals = text.find("=\"", at);
    if (equals == std::string::npos) {
      break;
    }
    prometheus::ClientMetric::Label label;
    label.name = text.substr(at, equals - at);
    at = equals + 2;
    while (at < text.size() && text[at] != '"') {
      if (text[at] == '\\' && at + 1 < text.size()) {
        ++at;
      }
      label.value += text[at++];
    }
    labels.push_back(std::move(label));
    at += 1;
    while (at < text.size() && (text[at] == ',' || text[at] == ' ')) {
      ++at;
    }
  }
  return labels;
}

}  // namespace

struct ServeMetrics::Families {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter()
          .Name("kvferry_requests_total")
          .Help("Generation requests that ended, by HTTP code")
          .Register(registry);
  prometheus::Histogram& request_seconds = histogram(
      registry, "kvferry_request_seconds", "From a request's arrival to the end of its answer");
  prometheus::Histogram& ttft_seconds =
      histogram(registry, "kvferry_ttft_seconds", "From a request's arrival to its first token");
  prometheus::Histogram& chunk_seconds =
      histogram(registry, "kvferry_prefill_chunk_seconds", "Evaluation of one prompt chunk");
  prometheus::Histogram& step_seconds =
      histogram(registry, "kvferry_step_seconds", "One token of each running sequence");
  prometheus::Histogram& import_seconds =
      histogram(registry, "kvferry_page_import_seconds", "Import of one page into the engine");
  prometheus::Counter& prompt_tokens =
      counter(registry, "kvferry_prompt_tokens_total", "Prompt tokens evaluated here");
  prometheus::Counter& answer_tokens =
      counter(registry, "kvferry_answer_tokens_total", "Answer tokens sent to clients");
};

ServeMetrics::ServeMetrics() : families_(std::make_unique<Families>()) {}
ServeMetrics::~ServeMetrics() = default;

void ServeMetrics::request_ended(int http_status, double seconds) {
  families_->requests.Add({{"code", std::to_string(http_status)}}).Increment();
  families_->request_seconds.Observe(seconds);
}
void ServeMetrics::first_token(double seconds) { families_->ttft_seconds.Observe(seconds); }
void ServeMetrics::prefill_chunk(std::uint32_t tokens, double seconds) {
  families_->prompt_tokens.Increment(tokens);
  families_->chunk_seconds.Observe(seconds);
}
void ServeMetrics::step(std::uint32_t, double seconds) { families_->step_seconds.Observe(seconds); }
void ServeMetrics::page_imported(double seconds) { families_->import_seconds.Observe(seconds); }
void ServeMetrics::answer_tokens(std::uint64_t count) {
  families_->answer_tokens.Increment(static_cast<double>(count));
}

std::string ServeMetrics::render(std::span<const MetricSample> samples) const {
  auto collected = families_->registry.Collect();
  std::map<std::string, prometheus::MetricFamily> others;
  std::set<std::string> seen;
  for (const auto& sample : samples) {
    if (!seen.insert(sample.name + "{" + sample.labels).second) {
      continue;
    }
    auto& family = others[sample.name];
    family.name = "kvferry_" + sample.name;
    family.help =
        sample.is_counter ? "Counter of the library or server" : "Gauge of the library or server";
    family.type =
        sample.is_counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    prometheus::ClientMetric metric;
    metric.label = parse_labels(sample.labels);
    if (sample.is_counter) {
      metric.counter.value = sample.value;
    } else {
      metric.gauge.value = sample.value;
    }
    family.metric.push_back(std::move(metric));
  }
  for (auto& [name, family] : others) {
    collected.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(collected);
}

}  // namespace kvferry::serve
