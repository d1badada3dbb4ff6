#include "kvferry/kv_receiver.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/call_text.h"
#include "runtime/manager_state.h"

namespace kvferry {

using runtime::HandleKind;

KvReceiver::KvReceiver(KvManager& manager, RoomId room, Binding binding)
    : state_(manager.state_), cell_(state_->open(HandleKind::kReceiver, room, binding)) {}

KvReceiver::~KvReceiver() { clear(); }

Status KvReceiver::init(std::string bootstrap_address, std::string prefill_instance,
                        std::uint32_t prefill_dp_rank) {
  if (Status live = state_->check_live(*cell_, "init"); !live) {
    return live;
  }
  if (cell_->calls.initialized) {
    return state_->refuse(*cell_, FailureCode::kWrongState, "init was called twice");
  }
  Status queued =
      state_->submit(core::PrefillNamed{core::ReceiverId(id()), std::move(bootstrap_address),
                                        std::move(prefill_instance), prefill_dp_rank});
  cell_->calls.initialized = queued.has_value();
  return queued;
}

Status KvReceiver::send_metadata(std::span<const PageIndex> pages, std::int64_t aux_slot,
                                 std::span<const std::uint32_t> state_slots,
                                 std::uint32_t decode_prefix_tokens,
                                 std::uint32_t expected_grants) {
  if (Status live = state_->check_live(*cell_, "send_metadata"); !live) {
    return live;
  }
  runtime::CallState& calls = cell_->calls;
  if (!calls.initialized || calls.metadata_given) {
    return state_->refuse(
        *cell_, FailureCode::kWrongState,
        calls.initialized ? "send_metadata was called twice" : "send_metadata before init");
  }
  const runtime::ArgumentChecks& checks = state_->checks();
  for (const Status& valid :
       {checks.pages(pages), checks.aux_slot(aux_slot), checks.state_slots(state_slots)}) {
    if (!valid) {
      return state_->refuse(*cell_, valid.error());
    }
  }
  const Result<std::uint32_t> prefix_pages = checks.prefix_pages(decode_prefix_tokens);
  if (!prefix_pages) {
    return state_->refuse(*cell_, prefix_pages.error());
  }
  if (expected_grants == 0) {
    return state_->refuse(*cell_, FailureCode::kInvalidArgument, "expected_grants is 0");
  }
  Status queued = state_->submit(core::MetadataGiven{core::ReceiverId(id()),
                                                     {pages.begin(), pages.end()},
                                                     aux_slot,
                                                     {state_slots.begin(), state_slots.end()},
                                                     *prefix_pages,
                                                     expected_grants});
  calls.metadata_given = queued.has_value();
  return queued;
}

KvPoll KvReceiver::poll() { return cell_->read(); }

void KvReceiver::abort(std::string_view reason) {
  state_->abort(*cell_, state_->failure(FailureCode::kAborted, runtime::one_line(reason)));
}

void KvReceiver::clear() { state_->clear(*cell_); }

std::optional<Failure> KvReceiver::failure() const { return cell_->failure(); }

std::uint64_t KvReceiver::id() const { return cell_->id; }

AttemptId KvReceiver::attempt() const {
  return AttemptId(cell_->attempt.load(std::memory_order_acquire));
}

}  // namespace kvferry
