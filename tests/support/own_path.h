// Where a test may write: ctest runs tests of one fixture side by side, each in a process of its
// own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace kvferry::test {

// In the folder for temporary files; not made, and no other process is given the same.
inline std::string own_path(const std::string& name) {
  return ::testing::TempDir() + "kvferry-" + std::to_string(::getpid()) + "-" + name;
}

}  // namespace kvferry::test
