// What this process holds, from /proc: for tests that leave nothing behind.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>

#include "recording_sink.h"

namespace kvferry::data_plane {

inline std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  DIR* dir = ::opendir(folder);
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}
inline std::size_t open_files() { return entries_of("/proc/self/fd"); }
inline std::size_t threads() { return entries_of("/proc/self/task"); }

inline std::uint64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long total = 0;
  unsigned long resident = 0;
  const int fields = std::fscanf(file, "%lu %lu", &total, &resident);
  std::fclose(file);
  return fields == 2 ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

// Waits for a count that falls in its own time, as threads that were joined leave /proc.
template <typename Count>
bool comes_to(Count&& count, std::size_t wanted) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (count() != wanted) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace kvferry::data_plane
