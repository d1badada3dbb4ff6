// The control link's listener, behind its checks and before them: whatever arrives, rooms go on,
// and every frame that does not parse is counted under its reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../conformance/process_state.h"
#include "../unit/runtime/pair_fixture.h"
#include "../unit/runtime/registry_client.h"
#include "../unit/wire/samples.h"
#include "mutate.h"
#include "net/control_link.h"
#include "raw_socket.h"
#include "wire/codec.h"

namespace kvferry::hostile {
namespace {

class ControlListener : public test::PairTest {
 protected:
  void SetUp() override {
    start_pair();
    run_room(1, 2);
  }
  // Frames of every kind, and the fixed ones.
  static std::vector<Bytes> corpus() {
    std::vector<Bytes> frames;
    for (const auto& [name, frame] : wire::golden_frames()) frames.push_back(wire::encode(frame));
    Prng prng(7);
    for (std::size_t kind = 0; kind < std::variant_size_v<wire::Message>; ++kind) {
      wire::Frame frame;
      frame.session = SessionEpoch(3);
      frame.sequence = 1;
      frame.messages.push_back(wire::random_message(kind, prng));
      frames.push_back(wire::encode(frame));
    }
    std::erase_if(frames, [](const Bytes& frame) { return frame.size() > 4'096; });
    return frames;
  }
  std::string key_of(Role role) {
    test::RegistryClient client(registry_->address(), token_.path());
    const auto answer = client.send(client.request(
        "GET", role == Role::kPrefill ? "/v1/ranks?role=prefill" : "/v1/ranks?role=decode"));
    std::size_t skipped = 0;
    const auto rows = runtime::decode_rows(answer.body, skipped);
    for (const core::RegistryRow& row : rows.value()) {
      if (row.instance != "attacker") return row.public_key;
    }
    return {};
  }
  void expect_sound(std::uint64_t room) {
    run_room(room, 2);
    for (const KvManager* manager : {prefill_.get(), decode_.get()}) {
      EXPECT_THAT(manager->readiness_problems(), testing::IsEmpty());
      EXPECT_EQ(test::metric(*manager, "invariants_broken_total"), 0);
      EXPECT_EQ(test::metric(*manager, "sessions_ended_total"), 0);
    }
  }
};

// A peer whose key the registry lists, and who is broken or worse.
TEST_F(ControlListener, OutlivesDamagedFramesOfAListedPeer) {
  net::ControlLinkConfig config;
  config.keys = net::CurveKeys::generate();
  const auto link =
      std::move(*net::ControlLink::open(config, [](const std::string&) { return true; }));
  core::RegistryRow row = test::prefill_row(link->endpoint(), 99);
  row.instance = "attacker";
  row.public_key = config.keys.public_key;
  test::RegistryClient registry(registry_->address(), token_.path());

  Mutator mutator(11, corpus());
  const std::uint64_t frames = frame_count();
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    KvManager& victim = role == Role::kPrefill ? *prefill_ : *decode_;
    const PeerId peer(role == Role::kPrefill ? 1 : 2);
    std::vector<net::LinkEvent> events;
    bool connected = false;
    const auto serve = [&] {
      events.clear();
      link->wait(milliseconds(connected ? 0 : 20), -1, events);
      for (const net::LinkEvent& event : events) {
        connected = connected || std::holds_alternative<net::LinkConnected>(event);
        // Its key is not known there yet.
        const auto* lost = std::get_if<net::LinkLost>(&event);
        if (lost != nullptr && lost->peer == peer) connected = false;
      }
    };
    const auto dial = [&] {
      ASSERT_TRUE(test::await([&] {
        if (connected) return true;
        // A million frames take longer than a lease.
        EXPECT_EQ(registry.send(registry.registration("PUT", row, 60'000)).status, 200);
        EXPECT_TRUE(link->dial(peer, {victim.control_endpoint(), key_of(role)}));
        return test::await([&] {
                 serve();
                 return connected || !events.empty();
               }) &&
               connected;
      }));
    };
    dial();
    for (std::uint64_t sent = 0; sent < frames;) {
      switch (link->send(peer, mutator.next(), net::LinkPriority::kNormal)) {
        case net::LinkSend::kQueued:
          ++sent;
          break;
        case net::LinkSend::kQueueFull:
          serve();
          break;
        case net::LinkSend::kNotConnected:
          connected = false;
          dial();
          break;
      }
    }
    // Most damage makes a frame unreadable; the rest is stale, foreign, or not damaged where it
    // counts.
    EXPECT_TRUE(test::await([&] {
      serve();
      return test::metric(victim, "malformed_frames_total") > static_cast<double>(frames) / 4;
    })) << test::metric(victim, "malformed_frames_total");
    link->hang_up(peer);
  }
  expect_sound(2);
}

// Before the handshake: other protocols, and damaged greetings.
TEST_F(ControlListener, OutlivesWhoDoesNotSpeakItsProtocol) {
  Mutator mutator(12, other_protocols());
  const std::uint64_t connections = std::max<std::uint64_t>(frame_count() / 20, 50);
  for (KvManager* victim : {prefill_.get(), decode_.get()}) {
    const double before = test::metric(*victim, "bad_handshakes_total");
    for (std::uint64_t i = 0; i < connections; ++i) {
      const RawSocket socket = RawSocket::tcp(victim->control_endpoint());
      ASSERT_TRUE(socket.is_open());
      socket.send(mutator.next());
      if (mutator.prng().below(2) == 0) socket.reset_on_close();
    }
    EXPECT_TRUE(
        test::await([&] { return test::metric(*victim, "bad_handshakes_total") > before; }));
  }
  expect_sound(2);
}

}  // namespace
}  // namespace kvferry::hostile
