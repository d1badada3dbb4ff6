// What a rank tells the rig: a JSON object a line on stdout.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>

#include "router/json.h"

namespace kvferry::lab {

// Threads: any.
class Output {
 public:
  void write(const router::JsonObject& line) {
    const std::string text = line.str() + "\n";
    std::lock_guard lock(mutex_);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

 private:
  std::mutex mutex_;
};

}  // namespace kvferry::lab
