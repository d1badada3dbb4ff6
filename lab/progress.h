// One line on stderr that says how far it is, when a person looks (stderr is a terminal).
#pragma once

#include <chrono>
#include <string>

namespace kvferry::lab {

class Progress {
 public:
  Progress();
  ~Progress();  // takes the line away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shown a few times a second at most.
  void show(const std::string& text);

 private:
  const bool is_shown_;
  bool is_dirty_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace kvferry::lab
