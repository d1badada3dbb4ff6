// The guards of the world around the protocol, by name: control link, data plane, runtime. Like the
// core's (core/guards.h, ADR 8) each is asked where it stands, and only code built with KVFERRY_LAB
// can miss one: in the product every question is answered at compile time and nothing of this is
// left (checked by tools/check_lab_symbols.py). The drills show what each is for (docs/drills.md).
//
// kWholeMessages, kFreshSocket and kFullIsAValue are no questions in the control link: they are how
// it is made. A rank of the lab that misses one has a link around it that behaves as those of the
// field did (lab/rank/field_link.h).
//
//   if (has_guard(RuntimeGuard::kReceiveCheck) && fenced) ...
#pragma once

#include <cstdint>

#ifdef KVFERRY_LAB
#include <atomic>
#endif

namespace kvferry {

enum class RuntimeGuard : std::uint8_t {
  kNone,  // nothing is missing
  // --- control link ---
  kWholeMessages,     // one thread owns the sockets and hands each of them whole messages (F1)
  kMalformedDropped,  // a malformed message is counted and dropped; the thread goes on (F1)
  kFreshSocket,       // a lost connection takes its socket and what waits in it along (F2)
  kFullIsAValue,      // a socket without room is a value, nobody waits for it (F4)
  // --- data plane ---
  kReceiveCheck,  // the receiver reads the grant's generation before it copies (F3)
  // --- runtime ---
  kCallsNeverWait,  // a call of the API hands over its event and returns (F4)
  kRegistersAgain,  // a rank registers again at a registry that has lost it
};

// Guards that stand before another one, which would still hide what they are for: missing, they
// take it along. Messages in parts do no harm where a malformed one is dropped, and a socket that
// waits keeps only the control thread as long as no call waits for that.
constexpr bool takes_along(RuntimeGuard missing, RuntimeGuard other) {
  return (missing == RuntimeGuard::kWholeMessages && other == RuntimeGuard::kMalformedDropped) ||
         (missing == RuntimeGuard::kCallsNeverWait && other == RuntimeGuard::kFullIsAValue);
}

#ifdef KVFERRY_LAB
// Of the whole process; set before the first manager is made.
inline std::atomic<RuntimeGuard> missing_runtime_guard{RuntimeGuard::kNone};
inline bool has_guard(RuntimeGuard guard) {
  const RuntimeGuard missing = missing_runtime_guard.load(std::memory_order_relaxed);
  return guard != missing && !takes_along(missing, guard);
}
#elif defined(__clang__)
constexpr bool has_guard(RuntimeGuard) { return true; }
#else
consteval bool has_guard(RuntimeGuard) { return true; }
#endif

}  // namespace kvferry
