// The doors of the data plane: damaged handshakes of strangers, damaged frames of a session's own
// writer. Nothing lands but what was granted, and an honest writer beside goes on.
#include <gtest/gtest.h>

#include "../conformance/process_state.h"
#include "../conformance/raw_lane.h"
#include "../conformance/rig.h"
#include "data_plane/shm/attach.h"
#include "mutate.h"
#include "raw_socket.h"

namespace kvferry::data_plane {
namespace {

using hostile::Bytes;
using hostile::frame_count;
using hostile::Mutator;
using hostile::RawSocket;

constexpr std::uint64_t kSession = 1;

class LaneListener : public testing::TestWithParam<Kind> {
 protected:
  LaneListener() {
    rig_.target_pool().fill(kCanary);
    rig_.source_pool().fill_pattern(3);
    rig_.open(kSession);
    rig_.grant(1, kSession, 0, 1, {0, 1});
    // Its lane is up from here on.
    EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 1)), layout::WriteOutcome::kLanded);
  }
  // An honest write lands, and no byte outside the grant was touched.
  void expect_sound() {
    EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 0)), layout::WriteOutcome::kLanded);
    EXPECT_TRUE(rig_.item_equals_source(0, 0));
    for (std::uint32_t page = 2; page < rig_.shape().items; ++page) {
      ASSERT_TRUE(rig_.item_is(0, page, kCanary)) << page;
    }
    EXPECT_TRUE(rig_.fence(1));
  }
  static Rig::Tuning one_lane() {
    Rig::Tuning tuning;
    tuning.lanes = 1;
    return tuning;
  }
  Rig rig_{Case{GetParam(), kSimple}, one_lane()};
};

class TcpListener : public LaneListener {};

TEST_P(TcpListener, OutlivesDamagedFramesOfItsOwnSessionsWriter) {
  // Under the grant's neighbours and outside of it: what is well formed is refused, and the rest
  // ends its lane.
  std::vector<Bytes> corpus;
  for (const std::uint32_t page : {2U, 3U, 63U}) {
    std::vector<layout::Write> writes;
    for (std::uint32_t i = 0; i < 3; ++i) {
      layout::Write write = rig_.write(1, 1, 0, page);
      write.length = 512;
      write.offset_in_item = i * 512;
      writes.push_back(write);
    }
    corpus.push_back(RawLane::frame(writes, 1, 0x77));
  }
  Bytes heartbeat;
  append_header(heartbeat, FrameHeader{});
  corpus.push_back(heartbeat);
  Bytes resolve;
  FrameHeader header;
  header.type = FrameType::kResolve;
  header.count = 1;
  append_header(resolve, header);
  append_resolve_entry(resolve, {TicketId(1), GrantSlot(1), Generation(1)});
  append_stream_padding(resolve, resolve.size());
  corpus.push_back(resolve);

  const ProcessState before;
  {
    Mutator mutator(21, corpus);
    std::optional<RawLane> lane;
    std::uint32_t serial = 1'000;
    std::uint64_t lanes = 0;
    for (std::uint64_t sent = 0; sent < frame_count(); ++sent) {
      if (!lane) {
        lane = RawLane::connect(rig_.target_address());
        ASSERT_TRUE(lane);
        ASSERT_TRUE(lane->authenticate(rig_.secret(kSession), SessionEpoch(kSession), ++serial));
        ++lanes;
      }
      if (!lane->send(mutator.next()) || mutator.prng().below(8) == 0) lane.reset();
    }
    EXPECT_GT(lanes, 10U);
  }
  before.expect_unchanged();
  expect_sound();
}

TEST_P(TcpListener, OutlivesStrangers) {
  std::vector<Bytes> corpus = hostile::other_protocols();
  LaneResponse response;
  response.epoch = SessionEpoch(kSession);
  response.serial = 7;
  corpus.push_back(encode_response(response));
  Mutator mutator(22, std::move(corpus));
  const TargetBlob target = rig_.target_address();
  for (std::uint64_t i = 0; i < std::max<std::uint64_t>(frame_count() / 20, 50); ++i) {
    const RawSocket socket = RawSocket::tcp(target.host + ":" + std::to_string(target.port));
    ASSERT_TRUE(socket.is_open());
    socket.send(mutator.next());
    if (mutator.prng().below(2) == 0) socket.reset_on_close();
  }
  expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Transports, TcpListener, testing::Values(Kind::kTcp),
                         [](const auto&) { return std::string("tcp"); });

class ShmListener : public LaneListener {};

TEST_P(ShmListener, OutlivesStrangers) {
  std::vector<Bytes> corpus = hostile::other_protocols();
  LaneResponse response;
  response.epoch = SessionEpoch(kSession);
  response.serial = 7;
  corpus.push_back(encode_response(response));
  Mutator mutator(23, std::move(corpus));
  const std::string path = parse_blob(rig_.target().local_blob())->unix_path;
  for (std::uint64_t i = 0; i < std::max<std::uint64_t>(frame_count() / 20, 50); ++i) {
    const RawSocket socket = RawSocket::unix_messages(path);
    ASSERT_TRUE(socket.is_open());
    Bytes message = mutator.next();
    if (message.empty()) message.push_back(0);
    socket.send(message);
    socket.send(message);
  }
  expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Transports, ShmListener, testing::Values(Kind::kShm),
                         [](const auto&) { return std::string("shm"); });

}  // namespace
}  // namespace kvferry::data_plane
