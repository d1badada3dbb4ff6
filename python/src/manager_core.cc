#include "manager_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "failures.h"
#include "gil.h"

namespace kvferry::python {
namespace {

ManagerCore::Allowed allowed(const std::vector<BoundRegion>& regions, bool pages,
                             const char* what) {
  std::optional<std::uint32_t> count;
  for (const BoundRegion& bound : regions) {
    const bool counts =
        pages ? holds_pages(bound.region.kind) : bound.region.kind == RegionKind::kState;
    if (counts) count = std::min(count.value_or(bound.region.item_count), bound.region.item_count);
  }
  if (count.value_or(0) == 0) return {0, fmt::format("this rank has no {}s", what)};
  return {*count, fmt::format("this rank has {}s 0 to {}", what, *count - 1)};
}

}  // namespace

ManagerCore::ManagerCore(std::unique_ptr<KvManager> manager, std::vector<BoundRegion> regions)
    : manager_(std::move(manager)),
      regions_(std::move(regions)),
      pages_(allowed(regions_, true, "page")),
      state_slots_(allowed(regions_, false, "state slot")) {}

ManagerCore::~ManagerCore() {
  if (forked()) {
    static_cast<void>(manager_.release());
    return;
  }
  without_gil([this] { manager_.reset(); });
}

KvManager& ManagerCore::use() const {
  if (forked()) refuse_forked("manager");
  return *manager_;
}

void refuse_forked(const char* what) {
  raise(Failure{FailureCode::kWrongState,
                FailureWhere::kLocal,
                fmt::format("this {} belongs to the parent process, whose threads a forked child "
                            "does not have: make one here, or start the child with spawn",
                            what),
                {},
                -1});
}

}  // namespace kvferry::python
