// What a manager and its handles refuse, and what they say about it.
#include "pair_fixture.h"

namespace kvferry {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class KvManagerCallsTest : public test::PairTest {
 protected:
  Failure create_failure(KvArgs args, Options options) {
    auto manager = KvManager::create(std::move(args), std::move(options));
    EXPECT_FALSE(manager);
    return manager ? Failure{} : manager.error();
  }
};

TEST_F(KvManagerCallsTest, CreateSaysWhatIsWrong) {
  Options bad = options_;
  bad.transport = "pigeon";
  EXPECT_THAT(create_failure(test::engine_args(Role::kDecode, decode_pools_), bad).what,
              HasSubstr("pigeon"));
  KvArgs args = test::engine_args(Role::kDecode, decode_pools_);
  args.regions[1].base = nullptr;
  EXPECT_THAT(create_failure(args, options_).what, HasSubstr("region 1"));
  args = test::engine_args(Role::kDecode, decode_pools_);
  args.rank.tp_size = 2;
  EXPECT_THAT(create_failure(args, options_).what, HasSubstr("engine_epoch"));
  args = test::engine_args(Role::kDecode, decode_pools_);
  args.heads = {0, 3};
  EXPECT_EQ(create_failure(args, options_).code, FailureCode::kInvalidArgument);
  bad = options_;
  bad.cluster_token_file = "/nonexistent/token";
  EXPECT_THAT(create_failure(test::engine_args(Role::kDecode, decode_pools_), bad).what,
              HasSubstr("/nonexistent/token"));
}

TEST_F(KvManagerCallsTest, SenderArgumentsAreCheckedAtTheCall) {
  start_prefill();
  const auto refused = [&](auto&& call) {
    KvSender sender(*prefill_, RoomId(1), Binding{1, ++bindings_});
    const Status status = call(sender);
    EXPECT_FALSE(status);
    EXPECT_EQ(sender.poll(), KvPoll::kFailed);
    EXPECT_EQ(sender.failure(), status.error());
    return status.error();
  };
  EXPECT_THAT(refused([](KvSender& s) { return s.init(1, test::kAuxSlots); }).what,
              HasSubstr("aux slot 256"));
  EXPECT_EQ(refused([](KvSender& s) { return s.send({}); }).code, FailureCode::kWrongState);
  EXPECT_EQ(refused([](KvSender& s) {
              EXPECT_TRUE(s.init(1, -1));
              return s.init(1, -1);
            }).code,
            FailureCode::kWrongState);
  EXPECT_THAT(refused([](KvSender& s) {
                EXPECT_TRUE(s.init(2, -1));
                return s.send(test::page_run(0, 3));
              }).what,
              AllOf(HasSubstr("3 pages"), HasSubstr("0 of 2")));
  EXPECT_THAT(refused([](KvSender& s) {
                EXPECT_TRUE(s.init(2, -1));
                return s.send(std::vector{PageIndex(5), PageIndex(5)});
              }).what,
              HasSubstr("page 5 is named twice"));
  EXPECT_THAT(refused([](KvSender& s) {
                EXPECT_TRUE(s.init(2, -1));
                return s.send(std::vector{PageIndex(test::kPages)});
              }).what,
              HasSubstr("page 1024"));
  EXPECT_THAT(refused([](KvSender& s) {
                EXPECT_TRUE(s.init(1, -1));
                return s.send(test::page_run(0, 1), std::vector{0U});
              }).what,
              HasSubstr("state slot 0"));
  EXPECT_EQ(refused([](KvSender& s) {
              EXPECT_TRUE(s.init(1, -1));
              EXPECT_TRUE(s.send(test::page_run(0, 1)));
              return s.send(test::page_run(1, 1));
            }).code,
            FailureCode::kWrongState);
}

TEST_F(KvManagerCallsTest, ReceiverArgumentsAreCheckedAtTheCall) {
  start_decode();
  const auto refused = [&](auto&& call) {
    KvReceiver receiver(*decode_, RoomId(1), Binding{1, ++bindings_});
    const Status status = call(receiver);
    EXPECT_FALSE(status);
    EXPECT_EQ(receiver.poll(), KvPoll::kFailed);
    EXPECT_EQ(receiver.failure(), status.error());
    return status.error();
  };
  const auto metadata = [&](std::vector<PageIndex> pages, std::int64_t aux, std::uint32_t prefix,
                            std::uint32_t grants) {
    return refused([&](KvReceiver& r) {
      EXPECT_TRUE(r.init(registry_->address(), "p"));
      return r.send_metadata(pages, aux, {}, prefix, grants);
    });
  };
  EXPECT_EQ(refused([](KvReceiver& r) { return r.send_metadata({}, -1); }).code,
            FailureCode::kWrongState);
  EXPECT_THAT(metadata({PageIndex(1), PageIndex(1)}, -1, 0, 1).what, HasSubstr("page 1 is named"));
  EXPECT_THAT(metadata({PageIndex(test::kPages)}, -1, 0, 1).what, HasSubstr("page 1024"));
  EXPECT_THAT(metadata({}, -2, 0, 1).what, HasSubstr("aux slot -2"));
  EXPECT_THAT(metadata({}, -1, 3, 1).what, HasSubstr("page size of 4 tokens"));
  EXPECT_THAT(metadata({}, -1, 0, 0).what, HasSubstr("expected_grants"));
}

TEST_F(KvManagerCallsTest, AHandleOfTheOtherRoleIsBornFailed) {
  start_pair();
  KvReceiver receiver(*prefill_, RoomId(1), Binding{});
  EXPECT_EQ(receiver.poll(), KvPoll::kFailed);
  EXPECT_EQ(receiver.failure()->code, FailureCode::kWrongState);
  KvSender sender(*decode_, RoomId(1), Binding{});
  EXPECT_EQ(sender.poll(), KvPoll::kFailed);
  EXPECT_FALSE(prefill_->keep_paired(registry_->address()));
  EXPECT_FALSE(decode_->write_aux(0, RoomId(1), Binding{}, {}));
  EXPECT_FALSE(prefill_->read_aux(0, RoomId(1), Binding{}));
  EXPECT_FALSE(prefill_->write_aux(test::kAuxSlots, RoomId(1), Binding{}, {}));
}

TEST_F(KvManagerCallsTest, HandlesHaveALimitAndItIsNamed) {
  options_.max_rooms = 2;
  start_prefill();
  std::vector<std::unique_ptr<KvSender>> senders;
  for (std::uint64_t i = 0; i < 5; ++i) {
    senders.push_back(std::make_unique<KvSender>(*prefill_, RoomId(i), Binding{1, i}));
  }
  EXPECT_EQ(senders.back()->poll(), KvPoll::kFailed);
  EXPECT_EQ(senders.back()->failure()->code, FailureCode::kTableFull);
  senders.clear();
  EXPECT_TRUE(await_metric(*prefill_, "open_handles", 0));
  KvSender next(*prefill_, RoomId(9), Binding{1, 9});
  EXPECT_EQ(next.poll(), KvPoll::kBootstrapping) << test::text_of(next.failure());
}

TEST_F(KvManagerCallsTest, ARegistryThatIsNotAllowedIsRefused) {
  start_decode();
  KvReceiver receiver(*decode_, RoomId(1), Binding{});
  ASSERT_TRUE(receiver.init("127.0.0.1:1", "p"));
  ASSERT_TRUE(test::await([&] { return receiver.poll() == KvPoll::kFailed; }));
  EXPECT_EQ(receiver.failure()->code, FailureCode::kUnauthorized);
  EXPECT_EQ(decode_->keep_paired("127.0.0.1:1").error().code, FailureCode::kUnauthorized);
}

TEST_F(KvManagerCallsTest, TellsAboutItself) {
  start_pair();
  EXPECT_TRUE(test::await([&] { return prefill_->readiness_problems().empty(); }));
  ASSERT_TRUE(decode_->keep_paired(registry_->address()));
  ASSERT_TRUE(test::await([&] {
    const auto pairs = decode_->pairs();
    return pairs.size() == 1 && pairs.front().ready;
  })) << decode_->dump_status();
  EXPECT_EQ(decode_->pairs().front().peer, prefill_->control_endpoint());
  EXPECT_EQ(decode_->pairs().front().instance, "p");
  EXPECT_TRUE(await_metric(*decode_, "peers_live", 1));
  EXPECT_THAT(decode_->dump_status(),
              AllOf(HasSubstr(R"("role":"decode")"), HasSubstr(prefill_->control_endpoint()),
                    HasSubstr(R"("readiness_problems":[])")));
  EXPECT_EQ(decode_->args().instance, "d");
  EXPECT_NE(decode_->args().engine_epoch, EngineEpoch{});
  EXPECT_EQ(decode_->options().bootstrap_addresses.front(), registry_->address());
}

}  // namespace
}  // namespace kvferry
