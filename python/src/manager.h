// What Python's KvManager holds.
#pragma once

#include <memory>

#include "manager_core.h"

namespace kvferry::python {

struct BoundManager {
  std::shared_ptr<ManagerCore> core;
};

}  // namespace kvferry::python
