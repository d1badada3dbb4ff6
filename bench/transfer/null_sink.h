// A sink for one end: each end overrides what it is told.
#pragma once

#include "data_plane/transport.h"

namespace kvferry::bench {

class NullSink : public data_plane::CompletionSink {
 public:
  void writes_completed(std::span<const layout::WriteCompletion>) noexcept override {}
  void writes_quiet(SessionEpoch, std::span<const TicketId>) noexcept override {}
  void writes_landed(std::span<const layout::Landing>) noexcept override {}
  void write_torn(const layout::Landing&, std::string_view) noexcept override {}
  void fence_done(GrantId) noexcept override {}
  void lane_failed(SessionEpoch, Failure) noexcept override {}
  void session_unreachable(SessionEpoch, Failure) noexcept override {}
  void session_torn_down(SessionEpoch) noexcept override {}
  void regions_released() noexcept override {}
};

}  // namespace kvferry::bench
