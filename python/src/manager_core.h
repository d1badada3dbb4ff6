// The manager behind the Python objects KvManager, KvSender and KvReceiver: they share it, so that
// none outlives it, nor the memory of its regions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvferry/kv_manager.h"
#include "live_objects.h"
#include "memory.h"

namespace kvferry::python {

class ManagerCore final : public LiveObject {
 public:
  ManagerCore(std::unique_ptr<KvManager> manager, std::vector<BoundRegion> regions);
  // Stops the manager, without the GIL, before the regions' lenders are dropped.
  ~ManagerCore() override;
  void stop() override { manager_->stop(); }

  // For one call. Raises KvferryError in a forked child.
  KvManager& use() const;
  const std::vector<BoundRegion>& regions() const { return regions_; }

  // What a list of pages, or of state slots, may name: all numbers below a count.
  struct Allowed {
    std::uint32_t count = 0;
    std::string text;  // for to_numbers()
  };
  const Allowed& pages() const { return pages_; }
  const Allowed& state_slots() const { return state_slots_; }

 private:
  std::unique_ptr<KvManager> manager_;
  std::vector<BoundRegion> regions_;
  Allowed pages_;
  Allowed state_slots_;
};

// Raises what every call on an object of the parent process gets in a forked child.
[[noreturn]] void refuse_forked(const char* what);

}  // namespace kvferry::python
