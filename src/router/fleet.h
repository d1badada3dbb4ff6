// What the router knows of its servers and pairs, and the choice of a pair. Thread-safe; does no
// I/O: the poller reports what the servers said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::router {

// One server's answer to /readyz, or why there was none.
struct ServerReport {
  bool ready = false;
  std::string instance;  // empty when the server did not name one
  std::string reason;    // when not ready
};

// One row of a decode server's table of pairs.
struct PairReport {
  std::string instance;  // empty while the peer has not said its name, as before a refused hello
  bool ready = false;
  std::string reason;
};

struct Choice {
  std::size_t prefill = 0;  // positions in the configured lists
  std::size_t decode = 0;
  std::string prefill_address;
  std::string decode_address;
  std::string prefill_instance;
};

// A pair to avoid: where the first try of a request could not connect.
struct Avoid {
  std::optional<std::size_t> prefill;
  std::optional<std::size_t> decode;
};

class Fleet {
 public:
  Fleet(std::vector<std::string> prefill, std::vector<std::string> decode);

  void server_answered(Role role, std::size_t index, ServerReport report);
  // A failure leaves the server without a ready pair, with that reason.
  void pairs_answered(std::size_t decode, Result<std::vector<PairReport>> pairs);
  // Not ready until the next answer, so that the next request does not run into the same wall.
  void connection_failed(Role role, std::size_t index, std::string reason);

  // The ready pair with the fewest requests in flight, counted as in flight from now on. The
  // failure says which role is missing, or why no pair is ready, with each server's last reason.
  Result<Choice> choose(const Avoid& avoid = {});
  void release(const Choice& choice);

  // A server that answers questions about the model, decode first.
  std::optional<std::string> any_ready_server() const;

  std::size_t ready_pairs() const;
  // {"ready_pairs", "servers":[...], "pairs":[...]}.
  std::string to_json() const;
  // Prometheus lines.
  std::string metrics() const;

 private:
  struct Server {
    std::string address;
    ServerReport last{false, "", "not asked yet"};
    std::uint64_t in_flight = 0;
    std::uint64_t last_chosen = 0;  // order of choices; ties go to the one that waited longest
    std::vector<PairReport> pairs;  // decode only
    std::string pairs_problem = "its table of pairs was not read yet";  // empty: pairs holds
  };
  struct Verdict {
    bool ready = false;
    std::string reason;
  };

  std::vector<Server>& servers(Role role) { return role == Role::kPrefill ? prefill_ : decode_; }
  // Ready on its own side: with a name that no other prefill server has.
  bool can_prefill(const Server& prefill) const;
  // For a prefill that can_prefill().
  static bool is_paired(const Server& prefill, const Server& decode);
  Verdict verdict(const Server& prefill, const Server& decode) const;
  bool instance_is_unique(const std::string& instance) const;
  std::string why_none(Role role) const;
  Failure why_no_pair() const;

  mutable std::mutex mutex_;
  std::vector<Server> prefill_;
  std::vector<Server> decode_;
  std::uint64_t choices_ = 0;
};

}  // namespace kvferry::router
