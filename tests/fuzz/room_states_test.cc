// Every state of the protocol's tables has a scene from which the fuzzer starts, and each scene
// ends in the state that it names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "room_scenes.h"

namespace kvferry::fuzz {
namespace {

using ::testing::IsSubsetOf;
using States = std::set<std::string>;

template <typename Table>
States states_of(const Table& table) {
  States states;
  for (const auto& row : table) {
    states.emplace(to_string(row.from));
    states.emplace(to_string(row.to));
  }
  return states;
}

States hidden() {
  States states;
  for (const HiddenState& state : hidden_states()) {
    states.emplace(state.state);
  }
  return states;
}

TEST(FuzzScenes, EveryStateOfTheTablesHasOne) {
  States decode_rooms = hidden();
  States prefill_rooms = hidden();
  States grants = hidden();
  States targets = hidden();
  for (const Scene& scene : scenes()) {
    if (scene.room) {
      (scene.subject == Role::kDecode ? decode_rooms : prefill_rooms)
          .emplace(to_string(*scene.room));
    }
    if (scene.grant) {
      grants.emplace(to_string(*scene.grant));
    }
    if (scene.target) {
      targets.emplace(to_string(*scene.target));
    }
  }
  EXPECT_THAT(states_of(core::room_transitions()), IsSubsetOf(decode_rooms));
  EXPECT_THAT(states_of(core::room_transitions()), IsSubsetOf(prefill_rooms));
  EXPECT_THAT(states_of(core::grant_transitions()), IsSubsetOf(grants));
  EXPECT_THAT(states_of(core::target_transitions()), IsSubsetOf(targets));
}

class FuzzScene : public ::testing::TestWithParam<Scene> {};

TEST_P(FuzzScene, EndsInItsState) {
  const Scene& scene = GetParam();
  RoomWorld world = play(scene);
  const core::Snapshot snapshot = world.subject().snapshot(world.now());
  ASSERT_EQ(snapshot.rooms.size(), scene.room ? 1U : 0U);
  if (!scene.room) {
    return;
  }
  const core::RoomView& room = snapshot.rooms.front();
  EXPECT_EQ(room.state, to_string(*scene.room));
  const std::string_view expected = scene.grant    ? to_string(*scene.grant)
                                    : scene.target ? to_string(*scene.target)
                                                   : std::string_view();
  EXPECT_EQ(room.grant_state, expected);
}

INSTANTIATE_TEST_SUITE_P(Each, FuzzScene, ::testing::ValuesIn(scenes().begin(), scenes().end()),
                         [](const auto& param_info) {
                           std::string name(param_info.param.name);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace kvferry::fuzz
