#include "net/name_lookup.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/socket.h>

#include <csignal>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/log.h"

namespace kvferry::net {
namespace {

struct Lookup {
  std::string host;
  std::function<void(NameAnswer)> done;
};

struct Queue {
  std::mutex mutex;
  std::deque<std::weak_ptr<Lookup>> waiting;
  unsigned threads = 0;
};

// Never destroyed: its threads may be in getaddrinfo when the process exits.
Queue& queue() {
  static auto* const only = new Queue;
  return *only;
}

std::string literal_of(const addrinfo& entry) {
  char text[NI_MAXHOST];
  const int failed =
      getnameinfo(entry.ai_addr, entry.ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? text : std::string();
}

NameAnswer resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  NameAnswer answer;
  answer.error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (answer.error != 0) {
    return answer;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (std::string literal = literal_of(*entry); !literal.empty()) {
      answer.addresses.push_back(std::move(literal));
    }
  }
  return answer;
}

// Null when nothing waits any more; the thread is then no longer counted.
std::shared_ptr<Lookup> take_next() {
  Queue& all = queue();
  std::lock_guard lock(all.mutex);
  while (!all.waiting.empty()) {
    std::shared_ptr<Lookup> next = all.waiting.front().lock();
    all.waiting.pop_front();
    if (next) {
      return next;
    }
  }
  --all.threads;
  return nullptr;
}

void run_lookups() {
  pthread_setname_np(pthread_self(), "kvf-lookup");
  while (const std::shared_ptr<Lookup> lookup = take_next()) {
    try {
      lookup->done(resolve(lookup->host));
    } catch (const std::exception& error) {
      log::error("looking up {}: {}", lookup->host, error.what());
    }
  }
}

// The new thread inherits the mask: signals belong to the program's own threads.
bool start_thread() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread(run_lookups).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

std::string NameAnswer::message() const { return gai_strerror(error); }

bool NameAnswer::is_local() const { return error == EAI_MEMORY || error == EAI_SYSTEM; }

std::shared_ptr<const void> look_up_name(std::string host, std::function<void(NameAnswer)> done) {
  auto lookup = std::make_shared<Lookup>(Lookup{std::move(host), std::move(done)});
  Queue& all = queue();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.waiting, [](const auto& waiting) { return waiting.expired(); });
  all.waiting.push_back(lookup);
  if (all.threads < kMaxLookups) {
    if (start_thread()) {
      ++all.threads;  // it waits for the mutex
    } else if (all.threads == 0) {
      all.waiting.pop_back();
      return nullptr;
    }
  }
  return lookup;
}

}  // namespace kvferry::net
