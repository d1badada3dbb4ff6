#include "lab/rig/own_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "data_plane/factory.h"
#include "runtime/manager_state.h"

namespace kvferry::lab {
namespace {

constexpr auto kTick = std::chrono::milliseconds(1);
constexpr auto kDumpEvery = std::chrono::milliseconds(100);
constexpr std::uint32_t kPages = 4'096;
constexpr std::uint32_t kPageBytes = 256;
constexpr std::uint32_t kAuxSlots = 1'024;
constexpr std::uint32_t kPagesOfRoom = 4;
// A room to each of the prefills in so many ticks; with five of them, some hundred live at a time.
constexpr std::uint64_t kOpenEveryTicks = 10;
constexpr std::uint64_t kLifeTicks = 200;

double ms_since(Instant began) {
  return std::chrono::duration<double, std::milli>(monotonic_now() - began).count();
}

}  // namespace

Result<std::unique_ptr<OwnEngine>> OwnEngine::start(OwnEnginePlan plan) {
  auto pages = RankPages::make(kPages, kPageBytes, kAuxSlots);
  if (!pages) return tl::unexpected(pages.error());
  auto journal = Journal::open({});
  if (!journal) return tl::unexpected(journal.error());
  std::unique_ptr<OwnEngine> engine(
      new OwnEngine(std::move(plan), std::move(*pages), std::move(*journal)));
  KvArgs args = engine->pages_.args();
  args.instance = engine->plan_.instance;
  Options options;
  options.transport = "tcp";
  options.bootstrap_addresses = {engine->plan_.registry};
  // As ranks make theirs: a transport that is brought is not tested by a hello, on neither side.
  auto manager = runtime::ManagerState::create_manager(
      std::move(args), std::move(options),
      [](const data_plane::TransportConfig& config, data_plane::CompletionSink& sink) {
        return data_plane::make_transport("tcp", config, sink);
      },
      {});
  if (!manager) return tl::unexpected(manager.error());
  engine->manager_ = std::move(*manager);
  if (Status paired = engine->manager_->keep_paired(engine->plan_.registry); !paired) {
    return tl::unexpected(paired.error());
  }
  engine->scheduler_ = std::thread([made = engine.get()] { made->schedule(); });
  engine->dumper_ = std::thread([made = engine.get()] { made->ask_for_dumps(); });
  return engine;
}

OwnEngine::OwnEngine(OwnEnginePlan plan, RankPages pages, Journal journal)
    : plan_(std::move(plan)),
      pages_(std::move(pages)),
      journal_(std::move(journal)),
      calls_(journal_),
      dumps_(journal_) {}

OwnEngine::~OwnEngine() {
  join();
  rooms_.clear();
}

std::size_t OwnEngine::ready_pairs() const {
  const std::vector<PairState> pairs = manager_->pairs();
  return static_cast<std::size_t>(std::ranges::count_if(pairs, &PairState::ready));
}

std::string OwnEngine::pairs_text() const {
  std::string text;
  for (const PairState& pair : manager_->pairs()) {
    text += fmt::format("{}{} ({}): {}", text.empty() ? "" : "; ", pair.instance, pair.peer,
                        pair.ready ? "ready" : pair.reason);
  }
  return text;
}

void OwnEngine::schedule() {
  auto next = std::chrono::steady_clock::now();
  for (; !stopping_.load(std::memory_order_acquire); ++ticks_) {
    if (ticks_ % kOpenEveryTicks == 0) open_room();
    poll_rooms();
    give_up_rooms();
    take_back();
    next = std::max(next + kTick, std::chrono::steady_clock::now() - kTick);
    std::this_thread::sleep_until(next);
  }
}

void OwnEngine::open_room() {
  const auto aux = pages_.take_aux();
  const auto pages = aux ? pages_.take(kPagesOfRoom, 1, true) : std::nullopt;
  if (!pages) {
    pages_.give_back_aux(aux ? std::int64_t{*aux} : -1);
    return;
  }
  const std::uint64_t number = opened_.fetch_add(1, std::memory_order_relaxed);
  Room room;
  room.due = ticks_ + kLifeTicks;
  room.receiver = calls_.measure("open", [&] {
    constexpr std::uint64_t kBindingHigh = 11;
    return std::make_unique<KvReceiver>(*manager_, RoomId(number), Binding{kBindingHigh, number});
  });
  // What these refuse the room's status tells, and it keeps its pages then: they are given back.
  const std::string& prefill = plan_.prefills[number % plan_.prefills.size()];
  Status given =
      calls_.measure("init", [&] { return room.receiver->init(plan_.registry, prefill); });
  if (given) {
    given =
        calls_.measure("send_metadata", [&] { return room.receiver->send_metadata(*pages, *aux); });
  }
  if (!given) {
    pages_.give_back(*pages, true);
    pages_.give_back_aux(*aux);
  }
  rooms_.push_back(std::move(room));
}

void OwnEngine::poll_rooms() {
  std::vector<std::uint64_t> ids;
  for (const Room& room : rooms_) {
    calls_.measure("poll", [&] { return room.receiver->poll(); });
    ids.push_back(room.receiver->id());
  }
  std::vector<KvPoll> statuses(ids.size());
  calls_.measure("poll_many", [&] { manager_->poll_many(ids, statuses); });
}

// Nobody sends to them, so that each is aborted in whatever state it is.
void OwnEngine::give_up_rooms() {
  std::erase_if(rooms_, [&](Room& room) {
    if (room.due > ticks_) return false;
    calls_.measure("abort", [&] { room.receiver->abort("given up by the drill"); });
    calls_.measure("clear", [&] { room.receiver->clear(); });
    return true;
  });
}

void OwnEngine::take_back() {
  for (const ReleasedPages& released :
       calls_.measure("take_released", [&] { return manager_->take_released(); })) {
    pages_.give_back(released.pages, true);
    pages_.give_back_aux(released.aux_slot);
  }
}

void OwnEngine::ask_for_dumps() {
  while (!stopping_.load(std::memory_order_acquire)) {
    dumps_.measure("dump_status", [&] { return manager_->dump_status().size(); });
    std::this_thread::sleep_for(kDumpEvery);
  }
}

void OwnEngine::join() {
  stopping_.store(true, std::memory_order_release);
  if (scheduler_.joinable()) scheduler_.join();
  if (dumper_.joinable()) dumper_.join();
}

OwnEngine::EndTimes OwnEngine::end(Way way) {
  join();
  EndTimes times;
  times.open_rooms = rooms_.size();
  if (way == Way::kStopThenDestroy) {
    const Instant began = monotonic_now();
    manager_->stop();
    times.stop_ms = ms_since(began);
  }
  const Instant began = monotonic_now();
  rooms_.clear();
  manager_.reset();
  times.destroy_ms = ms_since(began);
  return times;
}

}  // namespace kvferry::lab
