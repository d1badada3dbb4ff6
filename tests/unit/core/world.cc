#include "world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace kvferry::core::fake {
namespace {

// More turns than this without the clock moving is a livelock.
constexpr std::uint32_t kMaxTurnsAtOneInstant = 20'000;

}  // namespace

Process& World::add(const std::string& name, ProcessSetup setup) {
  const std::uint32_t life = ++lives_[name];
  auto& place = processes_[name];
  place = std::make_unique<Process>(*this, name, life, std::move(setup));
  return *place;
}

void World::add_engines(std::uint32_t prefill_tp, std::uint32_t decode_tp, const Options& options,
                        TransportClass transport_class) {
  const auto add_ranks = [&](Role role, std::uint32_t tp_size) {
    for (std::uint32_t rank = 0; rank < tp_size; ++rank) {
      add(fmt::format("{}{}", role == Role::kPrefill ? "p" : "d", rank),
          ProcessSetup{role, rank, tp_size, 32, options, transport_class, {}});
    }
  };
  add_ranks(Role::kPrefill, prefill_tp);
  add_ranks(Role::kDecode, decode_tp);
}

void World::kill(const std::string& name) {
  Process& process = *processes_.at(name);
  process.die();
  links_.close_all_of(process);
  dead_.push_back(std::move(processes_.at(name)));
  processes_.erase(name);
}

Process& World::restart(const std::string& name) {
  ProcessSetup setup = processes_.at(name)->setup();
  kill(name);
  return add(name, std::move(setup));
}

Process* World::process_at(const std::string& endpoint) {
  for (const auto& [name, process] : processes_) {
    if (process->address().endpoint == endpoint) {
      return process.get();
    }
  }
  return nullptr;
}

std::vector<PeerRow> World::prefill_rows(const std::string& instance) const {
  std::vector<PeerRow> rows;
  for (const auto& [name, process] : processes_) {
    if (process->setup().role == Role::kPrefill && process->self().instance == instance) {
      rows.push_back(process->row());
    }
  }
  return rows;
}

std::vector<Process*> World::living() {
  std::vector<Process*> all;
  for (const auto& [name, process] : processes_) {
    all.push_back(process.get());
  }
  return all;
}

void World::after(Duration delay, std::function<void()> happening) {
  happenings_.emplace(std::pair{now_ + delay, next_happening_++}, std::move(happening));
}

void World::run_for(std::int64_t ms) { advance(now_ + milliseconds(ms), nullptr); }

bool World::run_until(const std::function<bool()>& condition, std::int64_t limit_ms) {
  advance(now_ + milliseconds(limit_ms), condition);
  return condition();
}

void World::sleep(Process& process, std::int64_t ms) {
  process.set_paused(true);
  run_for(ms);
  process.set_paused(false);
}

void World::advance(Instant until, const std::function<bool()>& condition) {
  std::uint32_t turns = 0;
  for (;;) {
    bool stepped = false;
    Instant next = until;
    for (const auto& [name, process] : processes_) {
      if (process->has_work(now_)) {
        process->step(now_);
        stepped = true;
      }
      if (process->is_running()) {
        next = std::min(next, process->next_deadline());
      }
    }
    if (condition && condition()) {
      return;
    }
    if (stepped) {
      if (++turns > kMaxTurnsAtOneInstant) {
        throw std::runtime_error("the world takes turns and its clock stands still");
      }
      continue;
    }
    if (!happenings_.empty()) {
      next = std::min(next, happenings_.begin()->first.first);
    }
    if (next >= until && (happenings_.empty() || happenings_.begin()->first.first > until)) {
      now_ = until;
      return;
    }
    if (next > now_) {
      now_ = next;
      turns = 0;
    }
    while (!happenings_.empty() && happenings_.begin()->first.first <= now_) {
      auto happening = std::move(happenings_.begin()->second);
      happenings_.erase(happenings_.begin());
      happening();
    }
  }
}

}  // namespace kvferry::core::fake
