// CPU time of this process so far, all threads.
#pragma once

#include <sys/resource.h>

#include <chrono>

#include "base/instant.h"

namespace kvferry::bench {

inline Duration cpu_used() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

}  // namespace kvferry::bench
