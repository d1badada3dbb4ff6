// One way into a target: a listening socket and the kind of lane that comes through it.
#pragma once

#include <memory>
#include <string>

#include "data_plane/lanes/frame.h"
#include "data_plane/lanes/target_lane.h"

namespace kvferry::data_plane {

class LaneDoor {
 public:
  struct Arrival {
    Fd fd;                   // non-blocking; not open when nobody waits, then errno says why
    std::string peer;        // for messages
    bool is_welcome = true;  // false: who it is already rules it out
  };

  virtual ~LaneDoor() = default;
  virtual int listener() const = 0;
  virtual Arrival accept() = 0;
  virtual std::unique_ptr<TargetLane> make_lane(TargetLaneParts&& parts) const = 0;
  // Adds how to find this door.
  virtual void describe(TargetBlob& blob) const = 0;
};

}  // namespace kvferry::data_plane
