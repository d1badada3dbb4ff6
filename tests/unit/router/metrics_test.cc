#include "router/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace kvferry::router {
namespace {

using testing::Contains;
using testing::UnorderedElementsAre;

// The lines that are no comments.
std::multiset<std::string> samples(const std::string& text) {
  std::multiset<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#')) out.insert(line);
  }
  return out;
}

TEST(MetricsTest, EverySeriesShowsFromTheStart) {
  EXPECT_THAT(
      samples(Metrics().to_text(3)),
      UnorderedElementsAre("kvferry_router_in_flight 3", "kvferry_router_requests_total 0",
                           "kvferry_router_client_gone_total 0", "kvferry_router_retries_total 0",
                           "kvferry_router_broken_streams_total 0",
                           "kvferry_router_answers_total{class=\"2xx\"} 0",
                           "kvferry_router_answers_total{class=\"4xx\"} 0",
                           "kvferry_router_answers_total{class=\"5xx\"} 0",
                           "kvferry_router_refused_total{reason=\"busy\"} 0",
                           "kvferry_router_refused_total{reason=\"draining\"} 0",
                           "kvferry_router_refused_total{reason=\"no_pair\"} 0"));
}

TEST(MetricsTest, EachCallCountsInItsOwnSeries) {
  Metrics metrics;
  metrics.request_arrived();
  metrics.client_gone();
  metrics.client_gone();
  for (int i = 0; i < 3; ++i) metrics.retried();
  for (int i = 0; i < 4; ++i) metrics.stream_broken();
  for (const int status : {200, 399, 400, 499, 499, 500, 502, 503, 504}) metrics.answered(status);
  for (int i = 0; i < 5; ++i) metrics.refused(Refusal::kBusy);
  for (int i = 0; i < 6; ++i) metrics.refused(Refusal::kDraining);
  for (int i = 0; i < 7; ++i) metrics.refused(Refusal::kNoPair);
  EXPECT_THAT(
      samples(metrics.to_text(0)),
      UnorderedElementsAre("kvferry_router_in_flight 0", "kvferry_router_requests_total 1",
                           "kvferry_router_client_gone_total 2", "kvferry_router_retries_total 3",
                           "kvferry_router_broken_streams_total 4",
                           "kvferry_router_answers_total{class=\"2xx\"} 2",
                           "kvferry_router_answers_total{class=\"4xx\"} 3",
                           "kvferry_router_answers_total{class=\"5xx\"} 4",
                           "kvferry_router_refused_total{reason=\"busy\"} 5",
                           "kvferry_router_refused_total{reason=\"draining\"} 6",
                           "kvferry_router_refused_total{reason=\"no_pair\"} 7"));
}

TEST(MetricsTest, CountsOfSeveralThreadsAreNotLost) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 10'000;
  Metrics metrics;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) {
          metrics.request_arrived();
          metrics.answered(200);
        }
      });
    }
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(metrics.to_text(1).empty());
  }
  const auto lines = samples(metrics.to_text(0));
  EXPECT_THAT(lines, Contains("kvferry_router_requests_total 40000"));
  EXPECT_THAT(lines, Contains("kvferry_router_answers_total{class=\"2xx\"} 40000"));
}

TEST(MetricsTest, EachServerOfTheFleetHasItsSeries) {
  const std::vector<ServerSample> servers{{Role::kPrefill, "p0:1", true, 2},
                                          {Role::kDecode, "d0:1", false, 0}};
  EXPECT_THAT(
      samples(fleet_metrics_text(1, servers)),
      UnorderedElementsAre("kvferry_router_ready_pairs 1",
                           "kvferry_router_server_ready{address=\"p0:1\",role=\"prefill\"} 1",
                           "kvferry_router_server_ready{address=\"d0:1\",role=\"decode\"} 0",
                           "kvferry_router_server_in_flight{address=\"p0:1\",role=\"prefill\"} 2",
                           "kvferry_router_server_in_flight{address=\"d0:1\",role=\"decode\"} 0"));
}

// A series that comes twice makes Prometheus refuse the whole answer.
TEST(MetricsTest, AnAddressThatIsListedTwiceIsOneSeries) {
  const std::vector<ServerSample> servers{{Role::kDecode, "d0:1", true, 1},
                                          {Role::kDecode, "d0:1", true, 2}};
  EXPECT_THAT(
      samples(fleet_metrics_text(0, servers)),
      UnorderedElementsAre("kvferry_router_ready_pairs 0",
                           "kvferry_router_server_ready{address=\"d0:1\",role=\"decode\"} 1",
                           "kvferry_router_server_in_flight{address=\"d0:1\",role=\"decode\"} 3"));
}

}  // namespace
}  // namespace kvferry::router
