// Joins the journals of a drill's processes and says which invariants of the rig do not hold:
//
//   I1  no byte lands in a page outside its owner's interval; granted pages come back once their
//       grant is fenced, source pages once no write that may still land reads them; a writer says
//       that it is quiet (Drained) once it is
//   I2  success implies full coverage and right content
//   I3  each room ends exactly once at each participant, in time
//   I4  pages, threads and descriptors are at baseline after the last room
//   I5  engine-side calls: p99.9 below 20 ms, the longest below 50 ms
//   I6  every failure has a code, words and a peer or a reason of its own, and its first cause is
//       the same at all participants
//
// I4 and I5 are about living processes, which the drill asks itself (Census, CallBounds).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvferry/status.h"
#include "router/json.h"

namespace kvferry::lab {

struct Finding {
  std::string invariant;  // "I1"
  std::string what;
};

// One participant's end of a room.
struct ParticipantEnd {
  std::string life;  // "p0#1"
  std::string status;
  std::string code;
  std::int64_t ns = 0;
};

// One writer's slot in a room's grant, as one rank of decode and the writer itself saw it. What
// the writer did is known where its journal has messages.
struct WriterRecord {
  std::string life;                 // of the rank of decode
  std::string writer;               // life of the rank of prefill, once it has posted
  std::int64_t posted = 0;          // writes
  std::int64_t drained = 0;         // times that decode was told of its end
  std::int64_t drained_copies = 0;  // with those that were said again
  std::int64_t drained_ns = 0;      // when it first was
  bool heard_abort = false;         // the writer, of decode
};

struct JournalVerdict {
  std::vector<Finding> findings;
  std::uint64_t landings = 0;
  std::uint64_t late_landings = 0;  // I1, of writes
  std::uint64_t rooms = 0;          // ended, counted at each participant
  std::uint64_t succeeded = 0;
  // Of message records: room messages that came in a session which that life had not opened.
  std::uint64_t foreign_messages = 0;
  // Of every room (number and binding), in no order.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<ParticipantEnd>> ends;
  // Of every room that was granted, by its slots in the order of the journals.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<WriterRecord>> writers;
  // Of every room: when it got its pages, by life.
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::string, std::int64_t>> granted;
};

// journals: by name of the life. deadline_ms: within which a room must have ended; 0: any time.
// slack: so many times later than usual a line may come. A record that can't be read, but for the
// last line of a life that was killed, is a failure.
Result<JournalVerdict> check_journals(const std::map<std::string, std::filesystem::path>& journals,
                                      double deadline_ms, double slack = 1);

// I3 of a room that spans all of these lives: it has ended at each of them, and no two ends are
// further apart than that; apart_ms 0: however far. (That causes are the same is among the
// verdict's findings already.)
std::vector<Finding> judge_span(const JournalVerdict& verdict, std::int64_t room,
                                std::int64_t binding, const std::vector<std::string>& lives,
                                double apart_ms);

// I3 of a failed room's writers: each of these ranks of decode that had granted it pages heard of
// so many writers that they are quiet, once of each. (One whose sender is over when it hears
// decode's Abort answers that with the same word, which changes nothing any more.)
std::vector<Finding> judge_drained(const JournalVerdict& verdict, std::int64_t room,
                                   std::int64_t binding, const std::vector<std::string>& lives,
                                   std::size_t writers);

// What a rank holds, from its answer to "status".
struct Census {
  std::int64_t free_pages = 0;
  std::int64_t threads = 0;
  std::int64_t descriptors = 0;
  std::int64_t rooms = 0;
};
Census census_of(router::JsonView status);
// I4: empty when after is as before; descriptors may be fewer.
std::vector<Finding> compare(const std::string& rank, const Census& before, const Census& after);

struct CallBounds {
  double p999_ms = 0;
  double max_ms = 0;  // of calls that have returned and of the one that has not
  std::string slowest;
  std::int64_t calls = 0;
};
CallBounds call_bounds_of(router::JsonView status);
// I5, with bounds that are `slack` times as long.
std::vector<Finding> judge(const std::string& rank, const CallBounds& bounds, double slack = 1);

std::string to_string(const Finding& finding);

}  // namespace kvferry::lab
