// Orders from the protocols and the nemesis, handed to the two ends.
#include "sim/fabric.h"

#include <utility>

#include "sim/fabric_frame.h"
#include "sim/fabric_one_sided.h"
#include "sim/fabric_source.h"
#include "sim/fabric_target.h"
#include "sim/node.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

ProcessKey key_of(const Node& node) { return {node.place().index, node.life()}; }

std::unique_ptr<FrameReceiver> make_receiver(FabricContext& context, FrameListener& listener) {
  if (context.kind == TransportKind::kOneSided) {
    return std::make_unique<OneSidedTarget>(context, listener);
  }
  return std::make_unique<FabricTarget>(context, listener);
}

}  // namespace

struct Fabric::Impl {
  Impl(World& world, Prng prng, ModelGuard missing)
      : context(world, prng, missing), source(context), receiver(make_receiver(context, source)) {
    source.connect(*receiver);
  }

  FabricContext context;
  FabricSource source;
  std::unique_ptr<FrameReceiver> receiver;
};

Fabric::Fabric(World& world, Prng prng, ModelGuard missing)
    : impl_(std::make_unique<Impl>(world, prng, missing)) {}

Fabric::~Fabric() = default;

Status Fabric::open_session(Node& node, const core::OpenDataSession& open) {
  if (impl_->context.strikes(Fault::kBadKey, impl_->context.fates)) {
    return fail(FailureCode::kUnauthorized, "the peer's transport key is not valid",
                FailureWhere::kPeer);
  }
  const ProcessKey key = key_of(node);
  const bool is_source = open.local_role == Role::kPrefill;
  const bool opened = is_source ? impl_->source.open_source(key, open.epoch)
                                : impl_->receiver->open_session(key, open.epoch);
  if (!opened) {
    return fail(FailureCode::kWrongState, "a session of this epoch is open already");
  }
  if (!is_source) {
    impl_->source.open_target(key, open.epoch);
  }
  return {};
}

void Fabric::close_session(Node& node, SessionEpoch epoch) {
  const ProcessKey key = key_of(node);
  impl_->source.close_source(key, epoch);
  impl_->receiver->close_session(key, epoch);
  impl_->source.target_gone(key, epoch);
}

void Fabric::open_grant(Node& target, const core::OpenGrant& open) {
  impl_->receiver->open_grant(key_of(target), open);
}

void Fabric::fence(Node& target, GrantId grant) { impl_->receiver->fence(key_of(target), grant); }

void Fabric::post(Node& source, const core::PostWrites& post) {
  impl_->source.post(key_of(source), post);
}

void Fabric::give_up(Node& source, const core::GiveUpWrites& order) {
  impl_->source.give_up(key_of(source), order);
}

void Fabric::process_died(Node& node) {
  impl_->receiver->process_died(key_of(node));
  impl_->source.process_died(key_of(node));
}

// What stands still asks when it would go on (FabricContext::is_running).
void Fabric::process_paused(Node&) {}

void Fabric::process_resumed(Node& node) {
  impl_->receiver->process_resumed(key_of(node));
  impl_->source.process_resumed(key_of(node));
}

void Fabric::reset_some_lane(Prng& prng) { impl_->source.reset_some_lane(prng); }

void Fabric::flush_some_session(Prng& prng) { impl_->source.flush_some_session(prng); }

void Fabric::heal(bool leave_stalled) {
  impl_->source.heal(leave_stalled);
  impl_->receiver->heal();
}

void Fabric::watch(std::function<void(const Node&, const core::Event&)> watch) {
  impl_->context.watch = std::move(watch);
}

bool Fabric::reads_source(const WriteName& name) const { return impl_->source.reads_source(name); }

std::uint64_t Fabric::writes_under_way() const { return impl_->source.writes_under_way(); }

}  // namespace kvferry::sim
