// Status of one room on one rank. Words and numbers are the field's (SGLang's KVPoll), so that a
// scheduler can take the minimum over its ranks as the room's verdict.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvferry {

// Failed, though numbered 0, is an end: a status never leaves Failed or Success (rule 11).
enum class KvPoll : std::uint8_t {
  kFailed = 0,
  kBootstrapping = 1,    // peers are being resolved and sessions opened
  kWaitingForInput = 2,  // decode: pages may be granted; prefill: the first send may come
  kTransferring = 3,
  kSuccess = 4,
};

constexpr bool is_terminal(KvPoll status) {
  return status == KvPoll::kFailed || status == KvPoll::kSuccess;
}

std::string_view to_string(KvPoll status);

}  // namespace kvferry
