// Who sends what a listener of kvferry can't read: bare connections, and a peer whose key the
// registry lists.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvferry/status.h"

namespace kvferry::lab {

// A rank by its row in the registry and by its CURVE key; what it sends is anything but frames of
// the protocol. One thread uses it.
class ListedStranger {
 public:
  // Registers at the registry as a decode rank of that name, whom nobody dials.
  static Result<std::unique_ptr<ListedStranger>> join(const std::string& registry,
                                                      const std::string& instance);
  virtual ~ListedStranger() = default;

  // Connects anew to the rank of that name at its registry. A rank that does not know the
  // stranger's key yet refuses it, once and for all (the metric known_keys says when it does).
  virtual Status dial(const std::string& instance) = 0;
  // One message of so many parts; false when it did not leave within five seconds.
  virtual bool send(const std::vector<std::vector<std::uint8_t>>& parts) = 0;
};

}  // namespace kvferry::lab
