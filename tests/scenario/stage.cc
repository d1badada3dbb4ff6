#include "stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvferry::sim::scene {
namespace {

constexpr Duration kRestLimit = std::chrono::seconds(20);

bool is_prefill(const Part& part) { return part.node->place().role == Role::kPrefill; }

}  // namespace

Profile calm_profile(TransportKind transport) {
  Profile profile;
  profile.seed = 1;
  profile.transport = transport;
  profile.prefill.layers = profile.decode.layers = 2;
  profile.prefill.heads = profile.decode.heads = 4;
  profile.prefill.pages = profile.decode.pages = 64;
  profile.prefill.aux_slots = profile.decode.aux_slots = 4;
  profile.rooms = 0;  // the script's callers are the only ones
  profile.link_latency = std::chrono::milliseconds(1);
  profile.write_latency = std::chrono::microseconds(200);
  profile.turn_delay = std::chrono::microseconds(100);
  profile.lanes = 1;
  return profile;
}

Stage::Stage(const Profile& profile, const Missing& missing)
    : world_(profile, missing, LogLevel::kNone), zero_(world_.agenda.now()) {
  for (const auto& place : world_.places()) {
    const EngineShape& shape = place->role == Role::kDecode ? profile.decode : profile.prefill;
    pools_[place->name] = Pools{PagePool(shape.pages), PagePool(shape.aux_slots), {}};
    if (place->role == Role::kDecode) {
      decode_.push_back(place->name);
    }
  }
  if (missing.core != core::Guard::kNone || missing.model != ModelGuard::kNone) {
    // A control is about bytes and callers: what the automata know of a missing guard comes first.
    world_.oracle.overlook("T1");
  }
  world_.trace.capture(LogLevel::kFull, [this](Instant, const std::string& line) { note(line); });
  world_.network.set_gate([this](const Place& from, const Node& to, const wire::Frame& frame) {
    return pass(from, to, frame);
  });
  world_.workload.set_other_callers(
      [this](Node& node, const core::ReleasePages& pages) { released(node, pages); });
}

Node& Stage::operator[](const std::string& place) {
  return *world_.node_at(world_.place_at(place + ":1")->index);
}

std::vector<std::string> Stage::prefill_names(std::uint32_t instance) const {
  std::vector<std::string> names;
  for (const auto& [name, pools] : pools_) {
    if (name.starts_with(fmt::format("p{}.", instance))) {
      names.push_back(name);
    }
  }
  return names;
}

// --- time ---

void Stage::at(Duration when, std::function<void()> what) {
  world_.agenda.at(zero_ + when, std::move(what));
}

bool Stage::step(Instant until) {
  const bool stepped = !world_.oracle.has_failed() && world_.agenda.run_one(until);
  if (stepped) {
    world_.trace.next_event();
  }
  return stepped;
}

void Stage::run_until(Duration when) {
  while (step(zero_ + when)) {
  }
}

bool Stage::await(const std::function<bool()>& condition, Duration limit) {
  const Instant end = world_.agenda.now() + limit;
  while (!condition()) {
    if (!step(end)) {
      return condition();
    }
  }
  return true;
}

// --- callers ---

Room& Stage::room(std::uint64_t number, std::uint32_t pages, std::uint32_t instance) {
  rooms_.push_back(std::make_unique<Room>());
  Room& room = *rooms_.back();
  room.key = {RoomId(number), Binding{number, rooms_.size()}};
  room.instance = instance;
  room.page_count = pages;
  return room;
}

void Stage::open_at(Room& room, const std::string& place) {
  Part& part = room.parts[place];
  part.node = &(*this)[place];
  part.owner = part.node->open(room.key);
  if (!is_prefill(part)) {
    part.node->name_prefill(part.owner, fmt::format("prefill{}", room.instance));
  }
}

void Stage::give_at(Room& room, const std::string& place) {
  Pools& pools = pools_.at(place);
  if (!pools.waiting.empty() || !try_give(room, place)) {
    pools.waiting.push_back(Waiting{&room, place});
  }
}

bool Stage::try_give(Room& room, const std::string& place) {
  Pools& pools = pools_.at(place);
  Part& part = room.parts.at(place);
  if (pools.pages.free() < room.page_count || pools.aux.free() == 0) {
    return false;
  }
  const auto pages = pools.pages.take(room.page_count, room.key.binding.low);
  for (const std::uint32_t page : *pages) {
    part.pages.emplace_back(page);
  }
  const auto aux = pools.aux.take(1, room.key.binding.low);
  part.aux_slot = aux->front();
  give(room, part);
  return true;
}

void Stage::give(const Room& room, Part& part) {
  part.given = true;
  part.given_at = now();
  if (!is_prefill(part)) {
    core::MetadataGiven metadata;
    metadata.pages = part.pages;
    metadata.aux_slot = part.aux_slot;
    metadata.expected_grants = static_cast<std::uint32_t>(decode_.size());
    part.node->give(part.owner, std::move(metadata));
    return;
  }
  const ContentKey content{room.key.binding, part.node->engine_epoch()};
  EngineMemory& memory = part.node->memory();
  for (std::uint32_t i = 0; i < part.pages.size(); ++i) {
    memory.fill_page(part.pages[i], i, content);
  }
  memory.fill_aux(static_cast<std::uint32_t>(part.aux_slot), room.key.room, room.key.binding);
  part.node->init_sender(part.owner, room.page_count, part.aux_slot);
  part.node->send(part.owner, part.pages, {});
}

void Stage::open_decode(Room& room) {
  for (const std::string& place : decode_) {
    open_at(room, place);
    give_at(room, place);
  }
}

void Stage::open_prefill(Room& room) {
  for (const std::string& place : prefill_names(room.instance)) {
    open_at(room, place);
    give_at(room, place);
  }
}

void Stage::abort_decode(Room& room) {
  for (const std::string& place : decode_) {
    room.parts.at(place).node->abort(room.parts.at(place).owner);
  }
}

void Stage::clear(Room& room, const std::string& place) {
  Part& part = room.parts.at(place);
  Pools& pools = pools_.at(place);
  if (std::exchange(part.cleared, true) || !part.node->is_alive()) {
    return;
  }
  std::erase_if(pools.waiting, [&](const Waiting& each) { return each.room == &room; });
  const bool owns = part.node->poll(part.owner) == KvPoll::kSuccess && !is_prefill(part);
  part.node->clear(part.owner);
  if (!owns) {
    return;
  }
  const Place* prefill = world_.prefill_places(room.instance).front();
  const ContentKey content{room.key.binding, world_.node_at(prefill->index)->engine_epoch()};
  for (std::uint32_t i = 0; i < part.pages.size(); ++i) {
    if (!part.node->memory().holds_page(part.pages[i], i, content)) {
      world_.oracle.violate("S1", fmt::format("{}: page {} of room {} changed after its success",
                                              place, part.pages[i].value(), room.key.room.value()));
    }
  }
  bring_home(part, part.pages, part.aux_slot);
}

void Stage::clear(Room& room) {
  for (const auto& [place, part] : room.parts) {
    clear(room, place);
  }
}

Room& Stage::transfer(std::uint64_t number, std::uint32_t pages, std::uint32_t instance) {
  Room& made = room(number, pages, instance);
  open_decode(made);
  open_prefill(made);
  await([&] { return has_ended(made); });
  return made;
}

const Cell& Stage::cell(const Room& room, const std::string& place) const {
  const Part& part = room.parts.at(place);
  return part.node->cell(part.owner);
}

bool Stage::has_ended(const Room& room) const {
  return std::ranges::all_of(
      room.parts, [&](const auto& part) { return is_terminal(cell(room, part.first).status); });
}

bool Stage::has_succeeded(const Room& room) const {
  return std::ranges::all_of(room.parts, [&](const auto& part) {
    return cell(room, part.first).status == KvPoll::kSuccess;
  });
}

// --- the allocators ---

void Stage::bring_home(Part& part, const std::vector<PageIndex>& pages, std::int64_t aux_slot) {
  const std::string& place = part.node->place().name;
  Pools& pools = pools_.at(place);
  EngineMemory& memory = part.node->memory();
  const std::uint64_t holder = part.node->cell(part.owner).key.binding.low;
  for (const PageIndex page : pages) {
    if (!pools.pages.give_back(page.value(), holder)) {
      world_.oracle.violate(
          "R1", fmt::format("{}: page {} comes home, and is not its room's", place, page.value()));
      return;
    }
    memory.paint_page(page, kCanary);
  }
  if (aux_slot >= 0 && pools.aux.give_back(static_cast<std::uint32_t>(aux_slot), holder)) {
    memory.paint_aux(static_cast<std::uint32_t>(aux_slot), kCanary);
  }
  // Not at once: a protocol's step may be under way.
  world_.agenda.after(Duration{}, [this, place] { serve(place); });
}

void Stage::serve(const std::string& place) {
  std::deque<Waiting>& waiting = pools_.at(place).waiting;
  while (!waiting.empty() && try_give(*waiting.front().room, place)) {
    waiting.pop_front();
  }
}

void Stage::released(Node& node, const core::ReleasePages& released) {
  for (const auto& room : rooms_) {
    for (auto& [place, part] : room->parts) {
      if (part.node == &node && part.owner == released.owner) {
        bring_home(part, released.pages, released.aux_slot);
        return;
      }
    }
  }
  world_.oracle.violate("R1", node.name() + ": pages come home for a room that nobody opened");
}

// --- messages ---

bool Stage::pass(const Place& from, const Node& to, const wire::Frame& frame) {
  const std::string& target = to.place().name;
  const bool lost = loses && std::ranges::any_of(frame.messages, [&](const wire::Message& each) {
                      return loses(from.name, target, each);
                    });
  if (lost) {
    return false;
  }
  for (std::size_t i = 0; frame.sequence != 0 && i < frame.messages.size(); ++i) {
    const std::uint64_t number = frame.sequence + i;
    std::vector<bool>& seen = seen_[{frame.session, target}];
    seen.resize(std::max<std::size_t>(seen.size(), number + 1));
    if (!seen[number]) {
      seen[number] = true;
      deliveries_.push_back({now(), from.name, target, frame.session, number, frame.messages[i]});
    }
  }
  return true;
}

void Stage::replay(const Delivery& old, bool numbered) {
  Node& to = (*this)[old.to];
  const wire::Frame frame{old.session, numbered ? old.sequence : 0, 0, {old.message}};
  to.receive(core::FrameArrived{(*this)[old.from].key(), frame});
}

// --- outcome ---

// Sessions and what passes in the fabric are left out, and the number of a process's first life.
void Stage::note(const std::string& line) {
  for (const std::string_view other : {"frame ", "lane ", "chronicle: "}) {
    if (line.starts_with(other)) {
      return;
    }
  }
  for (const std::string_view other : {" dials ", " posts ", " hello", " notes: "}) {
    if (line.find(other) != std::string::npos) {
      return;
    }
  }
  const std::size_t life = line.find("#1");
  trace_ += line.substr(0, life) + (life == std::string::npos ? "" : line.substr(life + 2)) + "\n";
}

std::string Stage::verdict() const {
  const auto& violation = world_.oracle.violation();
  return violation ? violation->invariant + ": " + violation->what : "";
}

bool Stage::is_at_rest() {
  return std::ranges::all_of(world_.places(), [&](const auto& place) {
    const Node* node = world_.node_at(place->index);
    if (node == nullptr) {
      return true;
    }
    const core::Snapshot view = node->snapshot();
    return view.rooms.empty() && view.grants == 0 && view.tickets == 0 &&
           pools_.at(place->name).pages.taken().empty();
  });
}

std::string Stage::finish() {
  for (const auto& room : rooms_) {
    clear(*room);
  }
  const Instant end = world_.agenda.now() + kRestLimit;
  while (!is_at_rest() && !world_.oracle.has_failed() && world_.agenda.now() < end) {
    run_for(std::chrono::milliseconds(50));
  }
  for (const auto& place : world_.places()) {
    const Node* node = world_.node_at(place->index);
    if (node == nullptr) {
      continue;
    }
    world_.oracle.check_quiescence(*world_.node_at(place->index), false);
    if (!pools_.at(place->name).pages.taken().empty()) {
      world_.oracle.violate("R1", fmt::format("{}: {} pages did not come home", node->name(),
                                              pools_.at(place->name).pages.taken().size()));
    }
  }
  return verdict();
}

}  // namespace kvferry::sim::scene
