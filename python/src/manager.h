// What Python's KvManager holds.
#pragma once

#include <memory>

#include "gil.h"
#include "manager_core.h"

namespace kvferry::python {

struct BoundManager {
  std::shared_ptr<ManagerCore> core;

  void stop() const {
    KvManager& manager = core->use();
    without_gil([&] { manager.stop(); });
  }
};

}  // namespace kvferry::python
