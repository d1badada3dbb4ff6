// Turns the bytes of an answer's tokens into text that may be shown: whole UTF-8 characters only,
// and never a part of what may become a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvferry::serve {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Text that became final with these bytes. After a stop string all further bytes are dropped.
  std::string push(std::string_view bytes);
  // The rest, at the answer's end; an unfinished character becomes U+FFFD.
  std::string flush();
  bool stopped() const { return stopped_; }
  // The stop string that ended the text; empty when none did.
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
  bool stopped_ = false;
};

// Replaces every byte that is not part of valid UTF-8 by U+FFFD.
std::string valid_utf8(std::string_view bytes);

}  // namespace kvferry::serve
