// A resolver of the caller's own around the manager's.
#include <gmock/gmock.h>

#include <mutex>

#include "pair_fixture.h"
#include "runtime/manager_state.h"

namespace kvferry {
namespace {

using runtime::PrefillResolver;

// Knows an address that the registries' client does not, and leaves the rest to it.
class Elsewhere final : public PrefillResolver {
 public:
  static constexpr const char* kNowhere = "nowhere:1";
  using Answer = std::function<void(core::PrefillResolved)>;

  Elsewhere(std::unique_ptr<PrefillResolver> inner, Answer answer)
      : inner_(std::move(inner)), answer_(std::move(answer)) {}

  Status start() override { return inner_->start(); }
  void resolve(const core::ResolvePrefill& query) override {
    {
      std::lock_guard lock(mutex_);
      rooms_.push_back(query.room);
    }
    if (query.bootstrap_address == kNowhere) {
      answer_({query.receiver, fail(FailureCode::kPrefillUnknown, "there is nobody nowhere")});
    } else {
      inner_->resolve(query);
    }
  }
  Status keep_paired(const std::string& address) override { return inner_->keep_paired(address); }
  void refresh_keys() override { inner_->refresh_keys(); }
  void invalidate(const std::string& endpoint) override { inner_->invalidate(endpoint); }
  std::vector<std::string> readiness_problems() const override {
    return inner_->readiness_problems();
  }
  const runtime::RegistryCounters& counters() const override { return inner_->counters(); }
  void begin_stop() override { inner_->begin_stop(); }
  void stop() override { inner_->stop(); }

  std::vector<RoomId> rooms() const {
    std::lock_guard lock(mutex_);
    return rooms_;
  }

 private:
  const std::unique_ptr<PrefillResolver> inner_;
  const Answer answer_;
  mutable std::mutex mutex_;
  std::vector<RoomId> rooms_;
};

class OwnResolver : public test::PairTest {
 protected:
  OwnResolver() {
    start_prefill();
    auto made = runtime::ManagerState::create_manager(
        test::engine_args(Role::kDecode, decode_pools_), options_, {}, {},
        [this](std::unique_ptr<PrefillResolver> inner, Elsewhere::Answer answer, ThreadRoster&) {
          auto wrapper = std::make_unique<Elsewhere>(std::move(inner), std::move(answer));
          elsewhere_ = wrapper.get();
          return wrapper;
        });
    EXPECT_TRUE(made) << made.error().what;
    decode_ = std::move(*made);
  }
  Elsewhere* elsewhere_ = nullptr;
};

TEST_F(OwnResolver, IsAskedWithTheRoomAndWhatItPassesOnIsAnswered) {
  run_room(7, 4);
  EXPECT_EQ(elsewhere_->rooms(), std::vector{RoomId(7)});
}

TEST_F(OwnResolver, WhatItAnswersReachesTheRoom) {
  KvReceiver receiver(*decode_, RoomId(8), Binding{1, 1});
  EXPECT_TRUE(receiver.init(Elsewhere::kNowhere, ""));
  ASSERT_TRUE(test::await([&] { return is_terminal(receiver.poll()); }));
  EXPECT_THAT(test::text_of(receiver.failure()), testing::HasSubstr("there is nobody nowhere"));
}

}  // namespace
}  // namespace kvferry
