// A file that goes with its owner.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace kvferry::test {

class TempFile {
 public:
  explicit TempFile(const std::string& content) {
    std::string name = "/tmp/kvferry-test-XXXXXX";
    const int fd = ::mkstemp(name.data());
    if (fd < 0) {
      std::abort();
    }
    ::close(fd);
    path_ = name;
    write(content);
  }
  ~TempFile() { ::unlink(path_.c_str()); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  void write(const std::string& content) { std::ofstream(path_, std::ios::trunc) << content; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvferry::test
