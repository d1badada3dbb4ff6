// The processes of a drill on loopback: a registry, ranks, and byte relays between pairs where a
// drill asks for one. Ports are free ones, and a rank that is started again gets those it had.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.h"
#include "kvferry/kv_args.h"
#include "lab/rig/child.h"
#include "support/relay.h"

namespace kvferry::lab {

struct RankPlan {
  std::string name;  // "p0"
  Role role = Role::kPrefill;
  std::vector<std::string> options;  // of `kvferry-lab rank`, for example "--pages=64"
  std::string missing;               // guard that it runs without
  std::string instance = {};         // in the registry; empty: as its name
};

// A room as both ends see it.
struct RoomPlan {
  std::uint64_t number = 0;
  std::uint64_t binding = 1;
  std::uint32_t pages = 1;
  bool keep = false;         // decode keeps its pages
  bool hold = false;         // prefill sends nothing by itself
  std::uint32_t chunks = 1;  // in which prefill sends its pages
  std::uint32_t grants = 1;  // that each sender gets, one of each decode rank that it writes to
};

// How a room ended at one end.
struct RoomEnd {
  bool success = false;
  std::string code;
  std::string what;
  std::string peer;
  double after_ms = 0;
  std::int64_t wrong_bytes = 0;
  Instant at;  // on the clock of the host
};

class LabRank {
 public:
  Child& child() { return *child_; }
  const std::string& name() const { return plan_.name; }
  const std::string& instance() const {
    return plan_.instance.empty() ? plan_.name : plan_.instance;
  }
  const std::string& control() const { return control_; }
  const std::string& data() const { return data_; }

  Result<RoomEnd> await_end(std::uint64_t room, std::uint64_t binding, milliseconds patience);
  // Its answer to "status".
  Result<Told> status();

 private:
  friend class Cluster;
  RankPlan plan_;
  std::string control_;
  std::string data_;
  int life_ = 0;
  std::unique_ptr<Child> child_;
};

class Cluster {
 public:
  // Everything that processes write lies in the folder.
  explicit Cluster(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // One more. Ranks that start from then on are told of all there are; rooms name the first.
  Status start_registry();
  // The same again at its address: it knows nobody.
  Status restart_registry(std::size_t number = 0);
  Child& registry(std::size_t number = 0) { return *registries_[number].child; }
  const std::string& registry_address(std::size_t number = 0) const {
    return registries_[number].address;
  }

  // Returns when the process answers; registered it is a little later (await_pair).
  Result<LabRank*> start(const RankPlan& plan);
  // The same rank again, at the same address: a new life.
  Status restart(LabRank& rank);

  // The bytes between two ranks go through a relay from here on; data flows from prefill to decode
  // over connections that prefill makes. Before the two have a session.
  Result<support::Relay*> relay_control(LabRank& from, LabRank& to);
  Result<support::Relay*> relay_data(LabRank& prefill, LabRank& decode);

  // Until decode has a session with the prefill rank in its present life.
  Status await_pair(LabRank& decode, LabRank& prefill, milliseconds patience);
  // Opens the room at both ends; one that spans engines of several ranks: engine_pair.h.
  Status open(LabRank& prefill, LabRank& decode, const RoomPlan& room);
  Status open_decode(LabRank& decode, const std::string& prefill, const RoomPlan& room);
  Status open_prefill(LabRank& prefill, const RoomPlan& room);

  const std::filesystem::path& folder() const { return folder_; }
  // Of all lives, for the checker: name of the life ("p0#1") and the file.
  const std::map<std::string, std::filesystem::path>& journals() const { return journals_; }

 private:
  struct Registry {
    std::unique_ptr<Child> child;
    std::string address;
  };

  Status launch(LabRank& rank);
  Status launch(Registry& registry, std::size_t number);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<support::Relay>> relays_;
  std::vector<Registry> registries_;
  std::vector<std::unique_ptr<LabRank>> ranks_;
  std::map<std::string, std::filesystem::path> journals_;
};

}  // namespace kvferry::lab
