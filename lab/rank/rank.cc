#include "lab/rank/rank.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "data_plane/lanes/frame.h"
#include "lab/missing.h"
#include "lab/rank/field_link.h"
#include "lab/rank/watched_transport.h"
#include "net/endpoint.h"
#include "runtime/manager_state.h"

namespace kvferry::lab {
namespace {

constexpr auto kTick = std::chrono::milliseconds(1);

}  // namespace

Result<std::unique_ptr<Rank>> Rank::make(const RankSettings& settings) {
  if (const Status without = run_without(settings.missing); !without) {
    return tl::unexpected(without.error());
  }
  auto journal = Journal::open(settings.journal);
  if (!journal) return tl::unexpected(journal.error());
  auto pages =
      RankPages::make(settings.pages, settings.page_bytes, settings.aux_slots, settings.part());
  if (!pages) return tl::unexpected(pages.error());
  std::unique_ptr<Rank> rank(new Rank(settings, std::move(*journal), std::move(*pages)));
  if (const Status started = rank->start(); !started) return tl::unexpected(started.error());
  return rank;
}

Rank::Rank(const RankSettings& settings, Journal journal, RankPages pages)
    : settings_(settings),
      journal_(std::move(journal)),
      pages_(std::move(pages)),
      writes_(journal_),
      calls_(journal_) {}

Rank::~Rank() = default;

Status Rank::start() {
  KvArgs args = pages_.args();
  args.instance = settings_.instance;
  args.engine_epoch = EngineEpoch(settings_.engine_epoch);
  journal_.append(Journal::line("start")
                      .text("role", settings_.role)
                      .text("instance", settings_.instance)
                      .integer("components", pages_.components())
                      .integer("source_hold_ms", settings_.options.source_hold_timeout_ms)
                      .boolean("messages", settings_.messages));
  auto manager = runtime::ManagerState::create_manager(
      std::move(args), field_options(settings_.options),
      [this](const data_plane::TransportConfig& config, data_plane::CompletionSink& sink) {
        auto made = make_watched_transport(settings_.options.transport, config, sink, journal_,
                                           routes_, writes_);
        const auto blob = made ? data_plane::parse_blob((*made)->local_blob()) : std::nullopt;
        if (blob && !blob->host.empty()) {
          data_endpoint_ = net::format_endpoint(blob->host, blob->port);
        }
        return made;
      },
      [this](std::unique_ptr<net::ControlLink> link) {
        return make_faulty_link(make_field_link(std::move(link)), faults_, routes_,
                                settings_.messages ? &journal_ : nullptr);
      });
  if (!manager) return tl::unexpected(manager.error());
  manager_ = std::move(*manager);
  rooms_ = std::make_unique<RankRooms>(*manager_, pages_, calls_, journal_, output_);
  return {};
}

void Rank::tell_ready() {
  router::JsonObject line;
  output_.write(line.text("event", "ready")
                    .text("control", manager_->control_endpoint())
                    .text("data", data_endpoint_));
}

int Rank::run() {
  tell_ready();
  std::thread reader([this] { read_commands(); });
  auto next = std::chrono::steady_clock::now();
  while (!stopping_.load(std::memory_order_acquire)) {
    std::vector<Command> commands;
    {
      std::lock_guard lock(mutex_);
      commands.swap(commands_);
    }
    for (const Command& command : commands) carry_out(command->root());
    turn_churn();
    rooms_->tick();
    live_rooms_.store(rooms_->live(), std::memory_order_relaxed);
    ++ticks_;
    next = std::max(next + kTick, std::chrono::steady_clock::now() - kTick);
    std::this_thread::sleep_until(next);
  }
  reader.join();
  rooms_.reset();
  manager_->stop();
  return 0;
}

// The order of rooms that are opened here is their number; their bindings tell lives apart.
void Rank::turn_churn() {
  if (!churn_ || ticks_ % churn_->every_ticks != 0) return;
  Churn& churn = *churn_;
  for (const std::string& prefill : churn.prefills) {
    constexpr std::uint64_t kFirst = 1'000'000;
    RoomOrder order;
    order.name = {kFirst + churn.next++, ticks_};
    order.pages = churn.pages;
    order.stride = 2;
    order.registry = churn.registry;
    order.prefill = prefill;
    order.quiet = true;
    churn.aborts.emplace_back(ticks_ + churn.life_ticks, order.name);
    rooms_->open(std::move(order));
  }
  std::erase_if(churn.aborts, [&](const auto& due) {
    if (due.first > ticks_) return false;
    rooms_->abort(due.second);
    return true;
  });
}

}  // namespace kvferry::lab
