#include "live_objects.h"

#include <algorithm>

#include "gil.h"

namespace kvferry::python {

void LiveObjects::add(const std::shared_ptr<LiveObject>& object) {
  std::erase_if(objects_, [](const auto& weak) { return weak.expired(); });
  objects_.push_back(object);
}

void LiveObjects::stop_all() {
  // Held while the GIL is not, and dropped with it: an object may have Python's to drop.
  std::vector<std::shared_ptr<LiveObject>> live;
  for (const std::weak_ptr<LiveObject>& weak : objects_) {
    if (std::shared_ptr<LiveObject> object = weak.lock(); object && !object->forked()) {
      live.push_back(std::move(object));
    }
  }
  without_gil([&] {
    for (const std::shared_ptr<LiveObject>& object : live) object->stop();
  });
}

void LiveObjects::mark_forked() {
  for (const std::weak_ptr<LiveObject>& weak : objects_) {
    if (const std::shared_ptr<LiveObject> object = weak.lock()) object->mark_forked();
  }
}

}  // namespace kvferry::python
