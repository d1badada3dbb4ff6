// What ThreadSanitizer does not look at, for as long as one of these lives: what its thread writes.
//
// For source pages alone. Fenced from the peer frees them although a frame of theirs may be half
// sent: what that frame still reads is discarded over there (data_plane/transport.h, post()). The
// engine that writes to its page then races with that read, on purpose.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace kvferry::lab {

class UnwatchedWrites {
 public:
  explicit UnwatchedWrites(bool is_source) : is_source_(is_source) {
#if defined(__SANITIZE_THREAD__)
    if (is_source_) AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~UnwatchedWrites() {
#if defined(__SANITIZE_THREAD__)
    if (is_source_) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
#endif
  }
  UnwatchedWrites(const UnwatchedWrites&) = delete;
  UnwatchedWrites& operator=(const UnwatchedWrites&) = delete;

 private:
  [[maybe_unused]] const bool is_source_;
};

}  // namespace kvferry::lab
