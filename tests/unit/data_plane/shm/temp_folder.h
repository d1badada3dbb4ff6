// A folder of the test's own, gone with it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace kvferry::data_plane::shm {

class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/kvferry-test-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvferry::data_plane::shm
