// getaddrinfo without anybody having to wait for it. A lookup can't be interrupted and takes the
// better part of a minute when no name server answers, so that it runs on a detached thread which
// shares nothing with the caller but the function given here.
//
// At most kMaxLookups run in this process at once, each for one name; others queue behind them in
// order, and those whose ticket went away meanwhile are skipped. A process may exit while lookups
// run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::net {

inline constexpr unsigned kMaxLookups = 4;

struct NameAnswer {
  int error = 0;                       // of getaddrinfo
  std::vector<std::string> addresses;  // literals, an IPv6 one with its scope; none on error

  std::string message() const;
  bool is_local() const;  // this machine lacks something, rather than the name servers
};

// done: called on a thread of the lookups, once, or not at all when the ticket went away before. It
// may run even while or after the ticket goes, so that it owns what it touches; it must not block.
// Null, and done is never called, when the system refuses a thread.
std::shared_ptr<const void> look_up_name(std::string host, std::function<void(NameAnswer)> done);

}  // namespace kvferry::net
