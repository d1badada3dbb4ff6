// A client in memory: keeps what it was sent, and can leave.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "net/http_server.h"

namespace kvferry::serve {

class FakeResponder final : public net::Responder {
 public:
  void respond(net::HttpResponse response) override {
    std::lock_guard lock(mutex_);
    answers_ += 1;
    status_ = response.status;
    body_ = std::move(response.body);
    done_ = true;
    changed_.notify_all();
  }
  void begin_stream(net::HttpResponse head) override {
    std::lock_guard lock(mutex_);
    answers_ += 1;
    status_ = head.status;
  }
  void write(std::string data) override {
    std::lock_guard lock(mutex_);
    body_ += data;
    changed_.notify_all();
  }
  void end() override {
    std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  void on_disconnect(std::function<void()> callback) override {
    std::unique_lock lock(mutex_);
    if (left_) {
      lock.unlock();
      callback();
      return;
    }
    on_disconnect_ = std::move(callback);
  }

  void leave() {
    std::unique_lock lock(mutex_);
    left_ = true;
    auto callback = std::exchange(on_disconnect_, nullptr);
    lock.unlock();
    if (callback) {
      callback();
    }
  }
  bool wait(int milliseconds = 10'000) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return done_; });
  }
  bool wait_for_data(int milliseconds = 10'000) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                             [&] { return !body_.empty(); });
  }
  int status() {
    std::lock_guard lock(mutex_);
    return status_;
  }
  std::string body() {
    std::lock_guard lock(mutex_);
    return body_;
  }
  int answers() {
    std::lock_guard lock(mutex_);
    return answers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> on_disconnect_;
  int status_ = 0;
  int answers_ = 0;
  std::string body_;
  bool done_ = false;
  bool left_ = false;
};

}  // namespace kvferry::serve
