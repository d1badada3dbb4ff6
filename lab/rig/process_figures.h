// What the kernel says of one process of this host, for drills that ask whether something stays
// behind in it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kvferry/status.h"
#include "lab/rig/checker.h"

namespace kvferry::lab {

struct ProcessFigures {
  std::int64_t threads = 0;
  std::int64_t descriptors = 0;
  std::int64_t resident_kib = 0;
};

// Of a process that lives and is the caller's to look at.
Result<ProcessFigures> figures_of(pid_t pid);

// I4: empty when after is as before. Threads and descriptors may be fewer; resident memory may be
// larger by so many KiB, since an allocator keeps what it once had.
std::vector<Finding> compare(const std::string& process, const ProcessFigures& before,
                             const ProcessFigures& after, std::int64_t growth_kib);

// Whether resident memory of this build's processes tells what stays behind in them: the allocators
// of sanitizers keep back what was freed, up to hundreds of MiB.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMemoryTells = false;
#else
inline constexpr bool kMemoryTells = true;
#endif

std::string to_string(const ProcessFigures& figures);

}  // namespace kvferry::lab
