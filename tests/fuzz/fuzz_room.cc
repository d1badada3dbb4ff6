// A room of either role, played to one of the scenes of room_scenes.h and then fed what the input
// says. Nothing may crash, hang, break an invariant that the core or the node around it checks, or
// keep a room or a page for ever. The input: scene, then happenings.
#include "hostile.h"
#include "room_scenes.h"
#include "target.h"

namespace kvferry::fuzz {
namespace {

constexpr int kMostHappenings = 64;

void run(Input input) {
  const Scene& scene = scenes()[input.byte() % scenes().size()];
  RoomWorld world = play(scene);
  for (int happening = 0; happening < kMostHappenings && !input.is_empty(); ++happening) {
    act(input, world);
  }
  check_end(world, scene.local_fence);
}

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvferry::fuzz::run(kvferry::fuzz::Input({data, size}));
  return 0;
}
