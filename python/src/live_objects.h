// What owns threads of the library, so that the interpreter's exit and a fork find it.
#pragma once

#include <memory>
#include <vector>

namespace kvferry::python {

// Something with threads. Everything but stop() needs the GIL.
class LiveObject {
 public:
  LiveObject() = default;
  LiveObject(const LiveObject&) = delete;
  LiveObject& operator=(const LiveObject&) = delete;
  virtual ~LiveObject() = default;

  // Joins the threads. Idempotent; from any thread, without the GIL.
  virtual void stop() = 0;
  // In a forked child, which has this object's memory and none of its threads: whoever joined them
  // or took a lock that one of them held would wait for ever, so nothing may be called any more,
  // nor destroyed.
  bool forked() const { return forked_; }
  void mark_forked() { forked_ = true; }

 private:
  bool forked_ = false;
};

class LiveObjects {
 public:
  void add(const std::shared_ptr<LiveObject>& object);
  // At the interpreter's exit, while it can still run: later, destructors of statics (the log's
  // among them) would run while our threads use them.
  void stop_all();
  void mark_forked();

 private:
  std::vector<std::weak_ptr<LiveObject>> objects_;
};

}  // namespace kvferry::python
