// Whatever stock SGLang decode ranks may say to a prefill rank, in drawn orders: the translator
// against the real core.
#include "prefill_rig.h"

namespace kvferry::sglang {
namespace {

class PrefillStorm : public ::testing::TestWithParam<Flavour> {};

// Whatever comes in whatever order: no acknowledgement while a write is under way (Rig::take), no
// broken invariant of the core (Rig::run), and once all is over nothing is left open.
TEST_P(PrefillStorm, NothingIsAcknowledgedTooSoonAndNothingIsLeft) {
  std::size_t acks = 0;
  std::size_t downs = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Prng prng(seed);
    Rig rig(GetParam());
    std::map<std::uint64_t, SenderId> senders;
    const auto draw_registration = [&] {
      const auto rank = static_cast<std::uint16_t>(prng.below(kStormRanks));
      DecodeRank out =
          registration(fmt::format("s{}", rank), static_cast<std::uint16_t>(kFirstPort + rank));
      out.memory.kv_pointers[0] += prng.below(8) == 0 ? 8 : 0;
      return out;
    };
    const auto draw_metadata = [&] {
      const auto rank = static_cast<std::uint32_t>(prng.below(kStormRanks));
      const std::uint64_t room = 1 + prng.below(kStormRooms);
      RoomRequest out = metadata(room, storm_pages(rank, static_cast<std::uint32_t>(room)));
      out.name.second = fmt::format("s{}", rank);
      out.target.endpoint.port = static_cast<std::uint16_t>(kFirstPort + rank);
      return out;
    };
    for (int step = 0; step < 120; ++step) {
      const std::uint64_t room = 1 + prng.below(kStormRooms);
      switch (prng.below(8)) {
        case 0:
          rig.arrive(draw_registration());
          break;
        case 1:
        case 2:
          rig.arrive(draw_metadata());
          break;
        case 3: {
          AbortRoom abort =
              abort_of(room, prng.below(4) == 0 ? std::nullopt : std::optional(prng.next() >> 1));
          abort.endpoint->port = static_cast<std::uint16_t>(kFirstPort + prng.below(kStormRanks));
          rig.arrive(abort);
          break;
        }
        case 4:
        case 5: {
          const auto known = senders.find(room);
          if (known == senders.end() || is_terminal(rig.status(known->second))) {
            senders[room] = rig.send(room);
          }
          break;
        }
        case 6:
          rig.finish_writes(
              prng.below(4) == 0 ? layout::WriteOutcome::kUnknown : layout::WriteOutcome::kLanded,
              prng.below(8));
          break;
        default:
          if (prng.below(4) == 0) {
            rig.become_quiet();
          }
      }
    }
    for (int round = 0; round < 3; ++round) {
      for (std::uint64_t room = 1; room <= kStormRooms; ++room) {
        const auto known = senders.find(room);
        if (known == senders.end() || is_terminal(rig.status(known->second))) {
          senders[room] = rig.open(room);
        }
        rig.give(core::SenderAborted{
            senders[room], Failure{FailureCode::kAborted, FailureWhere::kLocal, "the end", {}, 0}});
      }
      rig.finish_writes();
      rig.become_quiet();
    }
    EXPECT_EQ(rig.translator().open_rooms(), 0U);
    acks += rig.acks();
    downs += rig.downs();
  }
  EXPECT_GT(acks, 500U);
  EXPECT_GT(downs, 100U);
}

INSTANTIATE_TEST_SUITE_P(, PrefillStorm, ::testing::ValuesIn(kServedFlavours), name_of);

}  // namespace
}  // namespace kvferry::sglang
