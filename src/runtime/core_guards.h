// Which of the core's guards stand in this process: in the product all.
#pragma once

#include "core/guards.h"

#ifdef KVFERRY_LAB
#include <atomic>
#endif

namespace kvferry::runtime {

#ifdef KVFERRY_LAB
// Of the whole process; set before the first manager is made.
inline std::atomic<core::Guard> missing_core_guard{core::Guard::kNone};
inline core::Guards core_guards() { return core::Guards(missing_core_guard.load()); }
#else
inline core::Guards core_guards() { return {}; }
#endif

}  // namespace kvferry::runtime
