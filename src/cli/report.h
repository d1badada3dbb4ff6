// The one JSON object that a command writes for machines (design section 10).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvferry/status.h"
#include "router/json.h"

namespace kvferry::cli {

struct Report {
  std::string command;
  bool ok = false;
  router::JsonObject summary;
  std::vector<std::string> rows;  // JSON objects

  std::string str() const;
  // "-" is stdout. The file appears under its name only when it is complete.
  Status write(const std::string& path) const;
};

}  // namespace kvferry::cli
