// The target side of the one-sided kind: bytes land when they arrive, in memory that this process
// life has registered. Nothing is checked, nobody is told, nothing can be fenced; what ends it is
// the session's teardown or the process's end.
#pragma once

#include <map>

#include "core/action.h"
#include "sim/fabric_frame.h"

namespace kvferry::sim {

class OneSidedTarget final : public FrameReceiver {
 public:
  OneSidedTarget(FabricContext& context, FrameListener& listener)
      : context_(context), listener_(listener) {}

  bool open_session(ProcessKey target, SessionEpoch epoch) override;
  void close_session(ProcessKey target, SessionEpoch epoch) override;
  void open_grant(ProcessKey, const core::OpenGrant&) override {}
  void fence(ProcessKey, GrantId) override {}
  void part_arrived(Frame& frame) override;
  void lane_lost(Frame& frame) override;
  void ended_at_source(ProcessKey target, SessionEpoch epoch) override {
    tear_down_if_quiet(target, epoch);
  }
  void process_died(ProcessKey) override {}
  void process_resumed(ProcessKey) override {}
  void heal() override {}

 private:
  struct Session {
    bool is_open = false;
    bool is_torn_down = false;
  };
  using Key = std::pair<ProcessKey, SessionEpoch>;

  bool may_land(const Frame& frame) const;
  void end(Frame& frame);
  void tear_down_if_quiet(ProcessKey target, SessionEpoch epoch);

  FabricContext& context_;
  FrameListener& listener_;
  std::map<Key, Session> sessions_;
};

}  // namespace kvferry::sim
