#include "lab/rig/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "net/endpoint.h"

namespace kvferry::lab {
namespace {

using router::JsonObject;
using router::JsonView;

constexpr milliseconds kStartPatience{15'000};

std::string port_of(const std::string& endpoint) {
  return endpoint.substr(endpoint.rfind(':') + 1);
}

Result<Told> await_ready(Child& child) {
  return child.await([](JsonView told) { return told["event"].text() == "ready"; }, "start",
                     kStartPatience);
}

JsonObject of_room(const RoomPlan& room) {
  JsonObject command;
  command.integer("first", static_cast<std::int64_t>(room.number))
      .integer("binding", static_cast<std::int64_t>(room.binding))
      .integer("pages", room.pages)
      .boolean("keep", room.keep)
      .boolean("hold", room.hold)
      .integer("chunks", room.chunks)
      .integer("grants", room.grants);
  return command;
}

Status done(const Result<Told>& answer) {
  if (!answer) return tl::unexpected(answer.error());
  return {};
}

}  // namespace

// --- ranks ---

Result<RoomEnd> LabRank::await_end(std::uint64_t room, std::uint64_t binding,
                                   milliseconds patience) {
  const auto told = child_->await(
      [&](JsonView line) {
        return line["event"].text() == "end" &&
               line["room"].integer() == static_cast<std::int64_t>(room) &&
               line["binding"].integer() == static_cast<std::int64_t>(binding);
      },
      fmt::format("end of room {}", room), patience);
  if (!told) return tl::unexpected(told.error());
  const JsonView line = (*told)->root();
  RoomEnd end;
  end.success = line["status"].text() == "Success";
  end.code = line["code"].text().value_or("");
  end.what = line["what"].text().value_or("");
  end.peer = line["peer"].text().value_or("");
  end.after_ms = line["after_ms"].number().value_or(0);
  end.wrong_bytes = line["wrong_bytes"].integer().value_or(0);
  end.at = Instant(Duration(line["ns"].integer().value_or(0)));
  return end;
}

Result<Told> LabRank::status() { return child_->ask("status", {}); }

// --- processes ---

Status Cluster::start_registry() {
  Registry registry;
  if (Status launched = launch(registry, registries_.size()); !launched) return launched;
  registries_.push_back(std::move(registry));
  return {};
}

Status Cluster::restart_registry(std::size_t number) { return launch(registries_[number], number); }

Status Cluster::launch(Registry& registry, std::size_t number) {
  std::vector<std::string> arguments = {"registry", "--log-level=warning"};
  if (!registry.address.empty()) arguments.push_back("--port=" + port_of(registry.address));
  registry.child.reset();
  const std::string name = fmt::format("registry{}", number);
  auto child = Child::start(name, std::move(arguments), (folder_ / (name + ".log")).string());
  if (!child) return tl::unexpected(child.error());
  registry.child = std::move(*child);
  const auto ready = await_ready(*registry.child);
  if (!ready) return tl::unexpected(ready.error());
  registry.address = (*ready)->root()["control"].text().value_or("");
  return {};
}

Result<LabRank*> Cluster::start(const RankPlan& plan) {
  auto rank = std::make_unique<LabRank>();
  rank->plan_ = plan;
  if (const Status launched = launch(*rank); !launched) return tl::unexpected(launched.error());
  ranks_.push_back(std::move(rank));
  return ranks_.back().get();
}

Status Cluster::restart(LabRank& rank) { return launch(rank); }

Status Cluster::launch(LabRank& rank) {
  const RankPlan& plan = rank.plan_;
  ++rank.life_;
  const std::string life = fmt::format("{}#{}", plan.name, rank.life_);
  const std::filesystem::path journal = folder_ / fmt::format("{}.{}.jsonl", plan.name, rank.life_);
  std::vector<std::string> registry_addresses;
  for (const Registry& registry : registries_) registry_addresses.push_back(registry.address);
  std::vector<std::string> arguments = {
      "rank",
      fmt::format("--role={}", to_string(plan.role)),
      fmt::format("--instance={}", rank.instance()),
      fmt::format("--journal={}", journal.string()),
      fmt::format("--bootstrap-addresses={}", fmt::join(registry_addresses, ",")),
      "--transport=tcp",
      "--log-level=info"};
  if (!rank.control_.empty()) arguments.push_back("--control-port=" + port_of(rank.control_));
  if (!rank.data_.empty()) arguments.push_back("--data-port=" + port_of(rank.data_));
  if (!plan.missing.empty()) arguments.push_back("--missing=" + plan.missing);
  arguments.insert(arguments.end(), plan.options.begin(), plan.options.end());
  rank.child_.reset();
  auto child = Child::start(life, std::move(arguments), (folder_ / (plan.name + ".log")).string());
  if (!child) return tl::unexpected(child.error());
  rank.child_ = std::move(*child);
  journals_[life] = journal;
  const auto ready = await_ready(*rank.child_);
  if (!ready) {
    return fail(ready.error().code, fmt::format("{}; its log is {}", ready.error().what,
                                                (folder_ / (plan.name + ".log")).string()));
  }
  rank.control_ = (*ready)->root()["control"].text().value_or("");
  rank.data_ = (*ready)->root()["data"].text().value_or("");
  return {};
}

// --- relays ---

Result<support::Relay*> Cluster::relay_control(LabRank& from, LabRank& to) {
  const auto target = net::parse_endpoint(to.control_);
  if (!target) return fail(FailureCode::kInvalidArgument, to.name() + " has no control endpoint");
  relays_.push_back(std::make_unique<support::Relay>(target->host, target->port));
  const auto routed = from.child().ask(
      "route", JsonObject()
                   .text("from", to.control_)
                   .text("to", fmt::format("127.0.0.1:{}", relays_.back()->port())));
  if (!routed) return tl::unexpected(routed.error());
  return relays_.back().get();
}

Result<support::Relay*> Cluster::relay_data(LabRank& prefill, LabRank& decode) {
  const auto target = net::parse_endpoint(decode.data_);
  if (!target) return fail(FailureCode::kInvalidArgument, decode.name() + " has no data endpoint");
  relays_.push_back(std::make_unique<support::Relay>(target->host, target->port));
  const auto routed = prefill.child().ask(
      "route", JsonObject()
                   .text("from", decode.data_)
                   .text("to", fmt::format("127.0.0.1:{}", relays_.back()->port())));
  if (!routed) return tl::unexpected(routed.error());
  return relays_.back().get();
}

// --- rooms ---

Status Cluster::await_pair(LabRank& decode, LabRank& prefill, milliseconds patience) {
  if (auto paired =
          done(decode.child().ask("pair", JsonObject().text("registry", registry_address())));
      !paired) {
    return paired;
  }
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::string last = "unknown to decode";
  while (std::chrono::steady_clock::now() < deadline) {
    const auto status = decode.status();
    if (!status) return tl::unexpected(status.error());
    const JsonView pairs = (*status)->root()["pairs"];
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const bool is_it = pairs.at(i)["instance"].text() == prefill.instance() &&
                         pairs.at(i)["peer"].text() == prefill.control();
      if (!is_it) continue;
      if (pairs.at(i)["ready"].boolean().value_or(false)) return {};
      last = pairs.at(i)["reason"].text().value_or("");
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return fail(FailureCode::kPeerUnreachable,
              fmt::format("{} and {} are no pair after {} ms: {}", decode.name(), prefill.name(),
                          patience.count(), last));
}

Status Cluster::open(LabRank& prefill, LabRank& decode, const RoomPlan& room) {
  if (Status opened = open_decode(decode, prefill.instance(), room); !opened) return opened;
  return open_prefill(prefill, room);
}

Status Cluster::open_decode(LabRank& decode, const std::string& prefill, const RoomPlan& room) {
  JsonObject command = of_room(room);
  command.text("registry", registry_address()).text("prefill", prefill);
  return done(decode.child().ask("open", std::move(command)));
}

Status Cluster::open_prefill(LabRank& prefill, const RoomPlan& room) {
  return done(prefill.child().ask("open", of_room(room)));
}

}  // namespace kvferry::lab
