#include "kvferry/kv_manager.h"

#include <utility>

#include "runtime/manager_state.h"

namespace kvferry {

Result<std::unique_ptr<KvManager>> KvManager::create(KvArgs args, Options options) {
  return runtime::ManagerState::create_manager(std::move(args), std::move(options), {});
}

KvManager::KvManager(std::shared_ptr<runtime::ManagerState> state) : state_(std::move(state)) {}

KvManager::~KvManager() { stop(); }

void KvManager::poll_many(std::span<const std::uint64_t> ids, std::span<KvPoll> statuses) const {
  state_->table().read_many(ids, statuses);
}

std::optional<std::vector<std::uint64_t>> KvManager::take_changed() {
  return state_->table().changes().take();
}

std::vector<ReleasedPages> KvManager::take_released() { return state_->releases().take(); }

int KvManager::event_fd() const { return state_->releases().fd(); }

void KvManager::drain_event_fd() { state_->releases().lower(); }

Status KvManager::keep_paired(const std::string& bootstrap_address) {
  return state_->keep_paired(bootstrap_address);
}

std::vector<PairState> KvManager::pairs() const { return state_->pairs(); }

std::vector<MetricSample> KvManager::metrics() const { return state_->metrics(); }

std::string KvManager::dump_status() const { return state_->dump_status(); }

std::vector<ReadinessCheck> KvManager::readiness() const { return state_->readiness(); }

std::vector<std::string> KvManager::readiness_problems() const {
  std::vector<std::string> problems;
  for (ReadinessCheck& check : state_->readiness()) {
    if (!check.ok) {
      problems.push_back(std::move(check.detail));
    }
  }
  return problems;
}

const KvArgs& KvManager::args() const { return state_->args(); }

const Options& KvManager::options() const { return state_->options(); }

std::string KvManager::control_endpoint() const { return state_->control_endpoint(); }

Status KvManager::write_aux(std::uint32_t aux_slot, RoomId room, Binding binding,
                            const AuxRecord& record) {
  if (args().role != Role::kPrefill) {
    return fail(FailureCode::kWrongState, "write_aux is for prefill");
  }
  return state_->aux().write(aux_slot, room, binding, record);
}

Result<AuxRecord> KvManager::read_aux(std::uint32_t aux_slot, RoomId room, Binding binding) const {
  if (args().role != Role::kDecode) {
    return fail(FailureCode::kWrongState, "read_aux is for decode");
  }
  return state_->aux().read(aux_slot, room, binding);
}

void KvManager::stop() { state_->stop(); }

}  // namespace kvferry
