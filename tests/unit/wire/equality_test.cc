// Frames are compared as values by the codec's tests, the golden frames and the fuzz targets.
#include <gtest/gtest.h>

#include "field_changes.h"
#include "wire/messages.h"

namespace kvferry::wire {

// Found by the name of their namespace.
void change(PeerLimits& limits) { ++limits.max_grant_slots; }
void change(Introduction& self) { ++self.major; }

}  // namespace kvferry::wire

namespace kvferry {

void change(Failure& failure) { failure.what += "x"; }
void change(LayoutShape& shape) { ++shape.head_dim; }
void change(Numerics& numerics) { ++numerics.threads; }

namespace wire {
namespace {

using test::expect_each_field_counts;

TEST(Equality, EveryFieldOfAHelloCounts) {
  expect_each_field_counts(&TransportOffer::name, &TransportOffer::blob);
  expect_each_field_counts(&PeerLimits::max_grant_slots, &PeerLimits::max_message_bytes,
                           &PeerLimits::window_messages);
  expect_each_field_counts(
      &Introduction::major, &Introduction::minor, &Introduction::role, &Introduction::instance,
      &Introduction::control_endpoint, &Introduction::incarnation, &Introduction::engine_epoch,
      &Introduction::layout, &Introduction::numerics, &Introduction::require_identical,
      &Introduction::limits, &Introduction::transports);
  expect_each_field_counts(&Hello::self, &Hello::nonce, &Hello::secret_half);
  expect_each_field_counts(&HelloReply::self, &HelloReply::echoed_nonce, &HelloReply::nonce,
                           &HelloReply::secret_half, &HelloReply::epoch, &HelloReply::transport);
  expect_each_field_counts(&HelloConfirm::epoch, &HelloConfirm::echoed_nonce);
  expect_each_field_counts(&HelloConfirmed::epoch);
  expect_each_field_counts(&HelloRefused::echoed_nonce, &HelloRefused::reason);
}

TEST(Equality, EveryFieldOfASessionMessageCounts) {
  expect_each_field_counts(&Resume::epoch, &Resume::nonce, &Resume::proof);
  expect_each_field_counts(&Resumed::epoch, &Resumed::echoed_nonce, &Resumed::proof);
  expect_each_field_counts(&SessionEnded::epoch, &SessionEnded::reason);
  expect_each_field_counts(&Stale::attempt, &Stale::kind);
  expect_each_field_counts(&Unsupported::kind, &Unsupported::is_answer);
}

TEST(Equality, EveryFieldOfARoomMessageCounts) {
  expect_each_field_counts(&Grant::room, &Grant::binding, &Grant::attempt, &Grant::low_water_mark,
                           &Grant::decode_engine_epoch, &Grant::slot, &Grant::generation,
                           &Grant::expected_grants, &Grant::decode_prefix_pages, &Grant::pages,
                           &Grant::aux_slot, &Grant::state_slots);
  expect_each_field_counts(&Progress::attempt, &Progress::slot, &Progress::generation,
                           &Progress::first_page, &Progress::page_count);
  expect_each_field_counts(&Done::room, &Done::binding, &Done::attempt, &Done::prefill_engine_epoch,
                           &Done::slot, &Done::generation, &Done::writes, &Done::bytes,
                           &Done::pages);
  expect_each_field_counts(&Consumed::room, &Consumed::binding, &Consumed::attempt,
                           &Consumed::low_water_mark);
  expect_each_field_counts(&Abort::room, &Abort::binding, &Abort::attempt, &Abort::low_water_mark,
                           &Abort::slot, &Abort::generation, &Abort::cause);
  expect_each_field_counts(&Drained::attempt, &Drained::slot, &Drained::generation,
                           &Drained::clean);
  expect_each_field_counts(&Failed::room, &Failed::binding, &Failed::attempt, &Failed::cause);
  expect_each_field_counts(&Fenced::attempt, &Fenced::slot, &Fenced::generation);
}

TEST(Equality, EveryFieldOfAFrameCounts) {
  expect_each_field_counts(&Frame::session, &Frame::sequence, &Frame::acknowledge,
                           &Frame::messages);
}

}  // namespace
}  // namespace wire
}  // namespace kvferry
