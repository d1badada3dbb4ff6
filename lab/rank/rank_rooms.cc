#include "lab/rank/rank_rooms.h"

#include <algorithm>
#include <span>
#include <thread>

namespace kvferry::lab {
namespace {

router::JsonObject& add_name(router::JsonObject& line, const RoomName& name) {
  return line.integer("room", static_cast<std::int64_t>(name.first))
      .integer("binding", static_cast<std::int64_t>(name.second));
}

void add_failure(router::JsonObject& line, const Failure& failure) {
  line.text("code", to_string(failure.code))
      .text("where", to_string(failure.where))
      .text("what", failure.what)
      .text("peer", failure.peer)
      .integer("rank", failure.rank);
}

}  // namespace

RankRooms::RankRooms(KvManager& manager, RankPages& pages, CallTimes& calls, Journal& journal,
                     Output& output)
    : manager_(manager),
      pages_(pages),
      calls_(calls),
      journal_(journal),
      output_(output),
      free_pages_(pages.free_pages()) {}

void RankRooms::open(RoomOrder order) {
  const RoomName name = order.name;
  auto owned = std::make_unique<Room>();
  Room& room = *owned;
  room.order = std::move(order);
  room.opened = monotonic_now();
  if (manager_.args().role == Role::kPrefill) {
    room.sender = calls_.measure(
        "open", [&] { return std::make_unique<KvSender>(manager_, room.room(), room.binding()); });
  } else {
    room.receiver = calls_.measure("open", [&] {
      return std::make_unique<KvReceiver>(manager_, room.room(), room.binding());
    });
    [[maybe_unused]] const Status named = calls_.measure(
        "init", [&] { return room.receiver->init(room.order.registry, room.order.prefill); });
  }
  live_[name] = std::move(owned);
  if (!waiting_.empty() || !try_give(room)) waiting_.push_back(name);
}

bool RankRooms::try_give(Room& room) {
  const auto aux = pages_.take_aux();
  auto taken =
      aux ? pages_.take(room.order.pages, room.order.stride, room.order.quiet) : std::nullopt;
  if (!taken) {
    pages_.give_back_aux(aux ? std::int64_t{*aux} : -1);
    return false;
  }
  room.pages = std::move(*taken);
  room.aux = *aux;
  room.has_pages = true;
  if (!room.order.quiet) note_pages("granted", room.order.name, room.pages);
  if (const Status given = give(room); !given) {
    // The call was refused, so the pages are still the caller's.
    take_back(room.order.name, room.pages, room.aux, room.order.quiet);
    room.has_pages = false;
  }
  return true;
}

Status RankRooms::give(Room& room) {
  if (room.receiver) {
    return calls_.measure("send_metadata", [&] {
      return room.receiver->send_metadata(room.pages, room.aux, {}, 0, room.order.grants);
    });
  }
  pages_.fill(room.pages, room.room(), room.binding());
  Status status = manager_.write_aux(static_cast<std::uint32_t>(room.aux), room.room(),
                                     room.binding(), AuxRecord{1, 0, room.order.pages, 0});
  if (status) {
    status = calls_.measure("init", [&] { return room.sender->init(room.order.pages, room.aux); });
  }
  return !status || room.order.hold ? status : send_chunk(room);
}

Status RankRooms::send_chunk(Room& room) {
  const auto left = std::span<const PageIndex>(room.pages).subspan(room.sent);
  const std::size_t chunk = (room.pages.size() + room.order.chunks - 1) / room.order.chunks;
  const auto next = left.first(std::min(chunk, left.size()));
  const Status status = calls_.measure("send", [&] { return room.sender->send(next); });
  room.sent += status ? next.size() : 0;
  room.is_sending = status && room.sent < room.pages.size();
  return status;
}

bool RankRooms::send(const RoomName& name) {
  const auto found = live_.find(name);
  return found != live_.end() && found->second->sender && send_chunk(*found->second).has_value();
}

void RankRooms::abort_handle(Room& room) {
  room.sender ? room.sender->abort("aborted by the drill")
              : room.receiver->abort("aborted by the drill");
}

bool RankRooms::abort(const RoomName& name) {
  const auto found = live_.find(name);
  if (found == live_.end()) return false;
  calls_.measure("abort", [&] { abort_handle(*found->second); });
  return true;
}

bool RankRooms::clear(const RoomName& name) {
  const auto found = live_.find(name);
  if (found == live_.end()) return false;
  Room& room = *found->second;
  if (is_terminal(room.sender ? room.sender->poll() : room.receiver->poll())) {
    return false;  // tick() sees its end, and drops the handle then
  }
  calls_.measure("clear", [&] { room.sender ? room.sender->clear() : room.receiver->clear(); });
  return true;
}

bool RankRooms::drop(const RoomName& name) {
  const auto found = kept_.find(name);
  if (found == kept_.end()) return false;
  take_back(name, found->second->pages, found->second->aux, false);
  kept_.erase(found);
  return true;
}

std::size_t RankRooms::abort_all(const std::vector<RoomName>& names, std::size_t threads) {
  std::vector<Room*> rooms;
  for (const RoomName& name : names) {
    if (const auto found = live_.find(name); found != live_.end()) {
      rooms.push_back(found->second.get());
    }
  }
  std::vector<std::thread> workers;
  for (std::size_t worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&, worker] {
      for (std::size_t i = worker; i < rooms.size(); i += threads) abort_handle(*rooms[i]);
    });
  }
  for (std::thread& worker : workers) worker.join();
  return rooms.size();
}

void RankRooms::tick() {
  ids_.clear();
  std::vector<Room*> polled;
  for (const auto& [name, room] : live_) {
    ids_.push_back(room->id());
    polled.push_back(room.get());
  }
  statuses_.resize(ids_.size());
  calls_.measure("poll_many", [&] { manager_.poll_many(ids_, statuses_); });
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (statuses_[i] != polled[i]->status) advance(*polled[i], statuses_[i]);
  }
  for (const auto& [name, room] : live_) {
    if (room->is_sending) send_chunk(*room);
  }
  for (const ReleasedPages& released :
       calls_.measure("take_released", [&] { return manager_.take_released(); })) {
    const RoomName name{released.room.value(), released.binding.low};
    const auto ended = quiet_.find(name);
    const auto lives = live_.find(name);
    const bool quiet =
        ended != quiet_.end() ? ended->second : lives != live_.end() && lives->second->order.quiet;
    if (ended != quiet_.end()) quiet_.erase(ended);
    const bool looked_at = !quiet && manager_.args().role == Role::kDecode;
    take_back(name, released.pages, released.aux_slot, quiet,
              looked_at ? pages_.foreign(released.pages, released.room, released.binding) : 0);
  }
  while (!waiting_.empty()) {
    const auto first = live_.find(waiting_.front());
    if (first != live_.end() && !is_terminal(first->second->status) && !try_give(*first->second)) {
      break;
    }
    waiting_.pop_front();
  }
  free_pages_.store(pages_.free_pages(), std::memory_order_relaxed);
}

void RankRooms::advance(Room& room, KvPoll status) {
  room.status = status;
  if (!room.order.quiet) {
    router::JsonObject line = Journal::line("status");
    journal_.append(add_name(line, room.order.name).text("status", to_string(status)));
    router::JsonObject told;
    told.text("event", "status");
    output_.write(add_name(told, room.order.name).text("status", to_string(status)));
  }
  if (is_terminal(status)) end(room);
}

// The handle goes at once; what a success left stays with the caller as long as it was told to.
void RankRooms::end(Room& room) {
  const RoomName name = room.order.name;
  const bool success = room.status == KvPoll::kSuccess;
  const auto failure = room.sender ? room.sender->failure() : room.receiver->failure();
  const bool owns = success && room.receiver;
  const bool has_unsent = room.sender && room.has_pages && room.sent < room.pages.size();
  const std::uint64_t wrong = owns ? pages_.wrong(room.pages, room.room(), room.binding()) : 0;
  const auto after = std::chrono::duration<double, std::milli>(monotonic_now() - room.opened);
  (success ? succeeded_ : failed_).fetch_add(1, std::memory_order_relaxed);
  const auto describe = [&](router::JsonObject& line) {
    add_name(line, name).text("status", to_string(room.status)).number("after_ms", after.count());
    if (failure) add_failure(line, *failure);
    if (owns) line.integer("wrong_bytes", static_cast<std::int64_t>(wrong));
  };
  if (!room.order.quiet) {
    router::JsonObject line = Journal::line("end");
    describe(line);
    journal_.append(line);
    router::JsonObject told;
    told.text("event", "end").integer("ns", monotonic_now().since_start().count());
    describe(told);
    output_.write(told);
  }
  if (!owns && room.has_pages) quiet_[name] = room.order.quiet;
  calls_.measure("clear", [&] {
    room.sender.reset();
    room.receiver.reset();
  });
  // The manager gives back what was sent, and the aux slot.
  if (has_unsent) {
    take_back(name, {room.pages.begin() + room.sent, room.pages.end()}, -1, room.order.quiet);
  }
  auto owned = std::move(live_.extract(name).mapped());
  if (!owns) return;
  if (owned->order.keep) {
    kept_[name] = std::move(owned);
  } else {
    take_back(name, owned->pages, owned->aux, owned->order.quiet);
  }
}

void RankRooms::take_back(const RoomName& name, const std::vector<PageIndex>& pages,
                          std::int64_t aux, bool quiet, std::uint64_t foreign) {
  if (!quiet) note_pages("returned", name, pages, foreign);
  pages_.give_back(pages, quiet);
  pages_.give_back_aux(aux);
  free_pages_.store(pages_.free_pages(), std::memory_order_relaxed);
  if (quiet) return;
  router::JsonObject told;
  told.text("event", "returned");
  output_.write(add_name(told, name).integer("pages", static_cast<std::int64_t>(pages.size())));
}

void RankRooms::note_pages(std::string_view at, const RoomName& name,
                           const std::vector<PageIndex>& pages, std::uint64_t foreign) {
  std::vector<std::string> numbers;
  for (const PageIndex page : pages) numbers.push_back(std::to_string(page.value()));
  router::JsonObject line = Journal::line(at);
  add_name(line, name).raw("pages", router::json_array(numbers));
  if (foreign > 0) line.integer("foreign", static_cast<std::int64_t>(foreign));
  journal_.append(line);
}

router::JsonObject RankRooms::inspect() {
  std::vector<std::string> wrong;
  for (const auto& [name, room] : kept_) {
    const std::uint64_t bytes = pages_.wrong(room->pages, room->room(), room->binding());
    if (bytes == 0) continue;
    router::JsonObject row;
    wrong.push_back(add_name(row, name).integer("bytes", static_cast<std::int64_t>(bytes)).str());
  }
  std::vector<std::string> spoiled;
  for (const auto& [page, bytes] : pages_.take_spoiled()) {
    journal_.append(Journal::line("spoiled")
                        .integer("page", page)
                        .integer("bytes", static_cast<std::int64_t>(bytes)));
    router::JsonObject row;
    spoiled.push_back(
        row.integer("page", page).integer("bytes", static_cast<std::int64_t>(bytes)).str());
  }
  router::JsonObject out;
  out.raw("wrong", router::json_array(wrong)).raw("spoiled", router::json_array(spoiled));
  return out;
}

}  // namespace kvferry::lab
