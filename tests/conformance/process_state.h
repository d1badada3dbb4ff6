// What this process holds, from /proc: for tests that leave nothing behind.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMemoryIsKnown = false;  // sanitizers keep what was freed
#else
inline constexpr bool kMemoryIsKnown = true;
#endif

// What this process held when it was made, to be compared with what it holds later.
class ProcessState {
 public:
  // Memory that is taken once and kept is taken by the first rounds: those before this.
  void warmed_up() { memory_ = resident_bytes(); }

  // What there is more or less of now; empty when all is as it was, memory but for what an
  // allocator may keep, however many rounds there were.
  std::string difference() const {
    std::string out;
    if (open_files() != files_) out += "descriptors ";
    if (threads() != threads_) out += "threads ";
    if (kMemoryIsKnown && resident_bytes() > memory_ + kKeptBytes) out += "memory ";
    return out;
  }
  // Waits for it: a transport's threads close what a session had in their own time, and threads
  // that were joined leave /proc in theirs.
  void expect_unchanged() const;

 private:
  static constexpr std::uint64_t kKeptBytes = 8U << 20;

  std::size_t files_ = open_files();
  std::size_t threads_ = threads();
  std::uint64_t memory_ = resident_bytes();
};

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

inline void ProcessState::expect_unchanged() const {
  std::string last;
  EXPECT_TRUE(comes_to([&] { return (last = difference()).empty(); }, true)) << last;
  std::printf("descriptors %zu, threads %zu, resident %llu KiB; before: %zu, %zu, %llu KiB\n",
              open_files(), threads(), static_cast<unsigned long long>(resident_bytes() >> 10),
              files_, threads_, static_cast<unsigned long long>(memory_ >> 10));
}

}  // namespace kvferry::data_plane
