// Makes a prefill rank known at a registry that speaks SGLang's bootstrap routes (sglang_routes.h,
// or SGLang's own server), and sees to it that it stays known. SGLang's ranks say so once; a
// registry that was started anew has forgotten them.
//
// A rank says who it is until it has been heard, then it asks for itself from time to time, and
// says it again only when the registry has lost it: SGLang's own server counts registrations, and
// takes a rank that says it twice for two. While that server waits for other ranks (503) it does
// not tell whom it knows, so a repetition then comes only after it was complete once.
//
// One thread of its own; the methods may be called from any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/instant.h"
#include "dialect/sglang/sglang_registry.h"
#include "kvferry/status.h"
#include "net/http_client.h"

namespace kvferry::sglang {

struct RouteRegistrationConfig {
  std::string registry;  // host:port
  RankRow row;
  Duration retry_min = milliseconds(100);  // doubled with each failure
  Duration retry_max = std::chrono::seconds(5);
  Duration check_interval = std::chrono::seconds(5);
  std::uint32_t http_timeout_ms = 2'000;  // of one request
};

class RouteRegistration {
 public:
  explicit RouteRegistration(RouteRegistrationConfig config);
  ~RouteRegistration();  // waits for a request under way, at most http_timeout_ms
  RouteRegistration(const RouteRegistration&) = delete;
  RouteRegistration& operator=(const RouteRegistration&) = delete;

  // Whether the registry's last answer was that it knows this rank, as far as it tells.
  bool is_registered() const { return registered_.load(std::memory_order_acquire); }
  // Waits until it does. False: not within the time.
  bool wait_registered(Duration timeout);
  // How often the rank was taken in.
  std::uint64_t registrations() const { return registrations_.load(std::memory_order_relaxed); }

 private:
  enum class Known : std::uint8_t { kYes, kNo, kNotTold };
  void run();
  bool sleep(Duration duration);  // false: stop
  Status say();
  Result<Known> ask();
  Result<net::HttpResponse> fetch(net::HttpRequest request);
  void set_registered(bool registered);

  const RouteRegistrationConfig config_;
  const std::unique_ptr<net::HttpClient> client_;
  std::atomic<bool> registered_{false};
  std::atomic<std::uint64_t> registrations_{0};
  bool was_complete_ = false;  // the registry, since this rank was taken in; of the thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvferry::sglang
