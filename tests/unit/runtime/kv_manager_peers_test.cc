// Strangers, mismatched layouts, restarts and silence.
#include "net/control_link.h"
#include "pair_fixture.h"
#include "registry_client.h"

namespace kvferry {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class KvManagerPeersTest : public test::PairTest {
 protected:
  // As the registry lists it.
  std::string prefill_public_key() {
    test::RegistryClient client(registry_->address(), token_.path());
    const auto answer = client.send(client.request("GET", "/v1/ranks?role=prefill"));
    std::size_t skipped = 0;
    const auto rows = runtime::decode_rows(answer.body, skipped);
    return rows && rows->size() == 1 ? rows->front().public_key : std::string();
  }
};

TEST_F(KvManagerPeersTest, AStrangersKeyGetsNothingButACounter) {
  start_pair();
  run_room(1, 2);
  // It knows where prefill is and prefill's key, but no registry lists its own.
  net::ControlLinkConfig config;
  config.keys = net::CurveKeys::generate();
  auto stranger =
      std::move(*net::ControlLink::open(config, [](const std::string&) { return true; }));
  const auto before = test::metric(*prefill_, "strangers_refused_total");
  ASSERT_TRUE(stranger->dial(PeerId(1), {prefill_->control_endpoint(), prefill_public_key()}));
  bool connected = false;
  ASSERT_TRUE(test::await([&] {
    std::vector<net::LinkEvent> events;
    stranger->wait(milliseconds(10), -1, events);
    for (const net::LinkEvent& event : events) {
      connected = connected || std::holds_alternative<net::LinkConnected>(event);
    }
    return test::metric(*prefill_, "strangers_refused_total") > before;
  }));
  EXPECT_FALSE(connected);
  run_room(2, 2);
}

TEST_F(KvManagerPeersTest, AnotherLayoutIsRefusedWithFieldAndBothValues) {
  start_pair();
  run_room(1, 2);
  test::Pools other_pools(8);
  KvArgs args = test::engine_args(Role::kDecode, other_pools, 8);
  args.instance = "other";
  const auto other = make(std::move(args), options_);
  KvReceiver receiver(*other, RoomId(2), Binding{1, 99});
  ASSERT_TRUE(receiver.init(registry_->address(), "p"));
  ASSERT_TRUE(receiver.send_metadata(test::page_run(0, 2), 0));
  ASSERT_TRUE(test::await([&] { return receiver.poll() == KvPoll::kFailed; }))
      << other->dump_status();
  EXPECT_EQ(receiver.failure()->code, FailureCode::kLayoutMismatch);
  EXPECT_THAT(receiver.failure()->what,
              AllOf(HasSubstr("page_size_tokens"), HasSubstr("4"), HasSubstr("8")));
  ReleasedPages released;
  EXPECT_TRUE(await_released(*other, receiver.id(), released));
  run_room(3, 2);
}

TEST_F(KvManagerPeersTest, APrefillThatRestartsServesLaterRooms) {
  start_pair();
  run_room(1, 4);
  const std::string endpoint = prefill_->control_endpoint();
  Options same_port = options_;
  same_port.control_port =
      static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  Room lost = open_room(2, 4);
  ASSERT_TRUE(test::await([&] { return lost.sender->poll() == KvPoll::kWaitingForInput; }));
  prefill_.reset();
  ASSERT_TRUE(test::await([&] { return lost.receiver->poll() == KvPoll::kFailed; }));
  ReleasedPages released;
  EXPECT_TRUE(await_released(*decode_, lost.receiver->id(), released));
  prefill_ = make(test::engine_args(Role::kPrefill, prefill_pools_), same_port);
  // Rooms may fail while decode still meets the former life; nothing else has to be restarted.
  ASSERT_TRUE(test::await([&] {
    Room room = open_room(3, 4);
    send_all(room);
    return test::await([&] { return is_terminal(room.receiver->poll()); }) &&
           room.receiver->poll() == KvPoll::kSuccess;
  })) << decode_->dump_status();
  for (std::uint64_t number = 4; number < 8; ++number) {
    run_room(number, 4);
  }
}

TEST_F(KvManagerPeersTest, ADecodeThatRestartsIsServed) {
  start_pair();
  run_room(1, 4);
  decode_.reset();
  start_decode();
  run_room(2, 4);
}

TEST_F(KvManagerPeersTest, ARestartAtAnotherPortIsFoundThroughTheRegistry) {
  start_pair();
  run_room(1, 4);
  prefill_.reset();
  start_prefill();
  run_room(2, 4);
}

TEST_F(KvManagerPeersTest, RoomsWaitForAPrefillThatComesLater) {
  start_decode();
  Room room = name_room(1, 4);
  open_receiver(room);
  start_prefill();
  open_sender(room);
  send_all(room);
  expect_success(room);
}

TEST_F(KvManagerPeersTest, AGrantWaitsForItsSender) {
  start_pair();
  Room room = name_room(1, 4);
  open_receiver(room);
  ASSERT_TRUE(test::await([&] { return room.receiver->poll() == KvPoll::kTransferring; }))
      << decode_->dump_status();
  open_sender(room);
  send_all(room);
  expect_success(room);
}

TEST_F(KvManagerPeersTest, AnInstanceThatNobodyListsFailsTheRoom) {
  options_.http_total_timeout_ms = 1'000;
  start_pair();
  Room room = name_room(1, 4);
  room.receiver = std::make_unique<KvReceiver>(*decode_, room.room, room.binding);
  ASSERT_TRUE(room.receiver->init(registry_->address(), "nobody"));
  ASSERT_TRUE(test::await([&] { return room.receiver->poll() == KvPoll::kFailed; }));
  EXPECT_EQ(room.receiver->failure()->code, FailureCode::kPrefillUnknown);
  EXPECT_THAT(room.receiver->failure()->what, AllOf(HasSubstr("nobody"), HasSubstr("(p)")));
}

TEST_F(KvManagerPeersTest, PlainModeWorksOnLoopback) {
  options_.curve = false;
  start_pair();
  run_room(1, 4);
}

TEST_F(KvManagerPeersTest, SeveralThreadsShareAManager) {
  start_pair();
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([this, t] {
      for (std::uint64_t i = 0; i < 8; ++i) {
        // Each room has pages of its own, since the former ones may not have come back yet.
        Room room;
        room.room = RoomId(t * 100 + i);
        room.binding = Binding{t + 1, i + 1};
        room.aux = static_cast<std::uint32_t>(t * 8 + i);
        room.source = test::page_run(static_cast<std::uint32_t>(t * 8 + i) * 8, 8);
        room.target = room.source;
        open_sender(room);
        open_receiver(room);
        send_all(room);
        expect_success(room);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace kvferry
