#include "kvferry/kv_sender.h"

#include <fmt/format.h>

#include "runtime/call_text.h"
#include "runtime/manager_state.h"

namespace kvferry {

using runtime::HandleKind;

KvSender::KvSender(KvManager& manager, RoomId room, Binding binding)
    : state_(manager.state_), cell_(state_->open(HandleKind::kSender, room, binding)) {}

KvSender::~KvSender() { clear(); }

Status KvSender::init(std::uint32_t page_count, std::int64_t aux_slot) {
  if (Status live = state_->check_live(*cell_, "init"); !live) {
    return live;
  }
  if (cell_->calls.initialized) {
    return state_->refuse(*cell_, FailureCode::kWrongState, "init was called twice");
  }
  if (Status valid = state_->checks().aux_slot(aux_slot); !valid) {
    return state_->refuse(*cell_, valid.error());
  }
  Status queued = state_->submit(core::SenderInitialized{SenderId(id()), page_count, aux_slot});
  if (queued) {
    cell_->calls.initialized = true;
    cell_->calls.page_count = page_count;
  }
  return queued;
}

Status KvSender::send(std::span<const PageIndex> pages,
                      std::span<const std::uint32_t> state_slots) {
  if (Status live = state_->check_live(*cell_, "send"); !live) {
    return live;
  }
  runtime::CallState& calls = cell_->calls;
  if (!calls.initialized || calls.last_sent) {
    return state_->refuse(*cell_, FailureCode::kWrongState,
                          calls.initialized ? "send after the last chunk" : "send before init");
  }
  if (pages.size() > calls.page_count - calls.pages_sent ||
      (pages.empty() && calls.page_count > 0)) {
    return state_->refuse(*cell_, FailureCode::kInvalidArgument,
                          fmt::format("a chunk of {} pages after {} of {}", pages.size(),
                                      calls.pages_sent, calls.page_count));
  }
  if (Status valid = state_->checks().pages(pages); !valid) {
    return state_->refuse(*cell_, valid.error());
  }
  if (Status valid = state_->checks().state_slots(state_slots); !valid) {
    return state_->refuse(*cell_, valid.error());
  }
  Status queued = state_->submit(core::ChunkGiven{
      SenderId(id()), {pages.begin(), pages.end()}, {state_slots.begin(), state_slots.end()}});
  if (queued) {
    calls.pages_sent += static_cast<std::uint32_t>(pages.size());
    calls.last_sent = calls.pages_sent == calls.page_count;
  }
  return queued;
}

KvPoll KvSender::poll() const { return cell_->load(); }

std::uint64_t KvSender::landed_bytes() const {
  return cell_->landed_bytes.load(std::memory_order_acquire);
}

std::uint32_t KvSender::decode_prefix_pages() const {
  return cell_->prefix_pages.load(std::memory_order_acquire);
}

void KvSender::abort(std::string_view reason) {
  state_->abort(*cell_, state_->failure(FailureCode::kAborted, runtime::one_line(reason)));
}

void KvSender::clear() { state_->clear(*cell_); }

std::optional<Failure> KvSender::failure() const { return cell_->failure(); }

std::uint64_t KvSender::id() const { return cell_->id; }

}  // namespace kvferry
