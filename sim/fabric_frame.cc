#include "sim/fabric_frame.h"

#include <memory>
#include <utility>

#include "sim/draw.h"
#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {

FabricContext::FabricContext(World& the_world, Prng prng, ModelGuard missing_guard)
    : world(the_world),
      missing(missing_guard),
      kind(the_world.profile.transport),
      fates(prng.fork()),
      latency(prng.fork()),
      threads(prng.fork()) {}

Node* FabricContext::alive(ProcessKey process) const {
  if (process == kNobody) {
    return nullptr;
  }
  Node* node = world.node_at(process.place);
  return node != nullptr && node->is_alive() && node->life() == process.life ? node : nullptr;
}

bool FabricContext::is_running(ProcessKey process) const {
  const Node* node = alive(process);
  return node != nullptr && node->is_running();
}

Frame* FabricContext::find(std::uint64_t number) {
  const auto found = frames.find(number);
  return found == frames.end() ? nullptr : found->second.get();
}

Frame& FabricContext::add() {
  auto frame = std::make_unique<Frame>();
  frame->number = next_frame++;
  return *frames.emplace(frame->number, std::move(frame)).first->second;
}

bool FabricContext::strikes(Fault fault, Prng& prng) {
  return world.faults.strikes(fault, prng, world.profile.rate_of(fault));
}

void FabricContext::trace(const Frame& frame, std::string_view what) {
  world.trace.mix(frame.number, frame.name.session.value(), frame.taken, what.size(),
                  static_cast<std::uint64_t>(what.front()));
  world.trace.line(LogLevel::kFull, world.agenda.now(),
                   "frame {} (slot {} generation {}, tickets {} to {}, lane {}): {}", frame.number,
                   frame.name.slot.value(), frame.name.generation.value(),
                   frame.items.front().write.ticket.value(),
                   frame.items.back().write.ticket.value(), frame.lane, what);
}

void FabricContext::tell(ProcessKey process, core::Event event) {
  Node* node = alive(process);
  if (node == nullptr) {
    return;
  }
  if (watch) {
    watch(*node, event);
  }
  node->receive(std::move(event));
}

void FabricContext::tell_after(ProcessKey process, Duration delay, core::Event event) {
  // A happening must be copyable, and an event need not be cheap to copy.
  world.agenda.after(delay,
                     [this, process, held = std::make_shared<core::Event>(std::move(event))] {
                       tell(process, std::move(*held));
                     });
}

Duration FabricContext::around(Duration mean, Prng& prng) {
  return exponential(prng, mean) + Duration{1};
}

}  // namespace kvferry::sim
