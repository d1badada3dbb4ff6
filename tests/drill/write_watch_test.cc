// The watch over what a rank's transport does as a source: what it keeps in the journal, and the
// write that fails while the others go on.
#include "lab/rank/write_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "router/json.h"
#include "support/own_path.h"

namespace kvferry::lab {
namespace {

using layout::WriteCompletion;
using layout::WriteOutcome;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const SessionEpoch kSession(9);

// What the core would hear, in words.
class Heard final : public data_plane::CompletionSink {
 public:
  void writes_completed(std::span<const WriteCompletion> completions) noexcept override {
    constexpr const char* kWords[] = {"landed", "refused", "unknown"};
    for (const WriteCompletion& completion : completions) {
      words.push_back(kWords[static_cast<int>(completion.outcome)] + std::string(" ") +
                      std::to_string(completion.ticket.value()));
    }
  }
  void writes_quiet(SessionEpoch, std::span<const TicketId> tickets) noexcept override {
    for (const TicketId ticket : tickets)
      words.push_back("quiet " + std::to_string(ticket.value()));
  }
  void writes_landed(std::span<const data_plane::Landing>) noexcept override {}
  void write_torn(const data_plane::Landing&, std::string_view) noexcept override {}
  void fence_done(GrantId) noexcept override {}
  void lane_failed(SessionEpoch, Failure) noexcept override {}
  void session_unreachable(SessionEpoch, Failure) noexcept override {}
  void session_torn_down(SessionEpoch) noexcept override {}
  void regions_released() noexcept override {}

  std::vector<std::string> words;
};

class WriteWatchTest : public ::testing::Test {
 protected:
  WriteWatchTest() {
    watch_.set_sink(heard_);
    Region pages;
    pages.item_bytes = 64;
    Region aux;
    aux.kind = RegionKind::kAux;
    aux.item_bytes = 64;
    watch_.set_regions(std::vector{pages, aux});
  }
  ~WriteWatchTest() override { std::filesystem::remove(path_); }

  static layout::Write write(std::uint64_t ticket, std::uint32_t slot, std::uint64_t offset,
                             std::uint32_t region = 0) {
    layout::Write made;
    made.ticket = TicketId(ticket);
    made.slot = GrantSlot(slot);
    made.generation = Generation(1);
    made.source_region = RegionId(region);
    made.source_offset = offset;
    made.length = 8;
    return made;
  }
  void complete(std::uint64_t ticket, WriteOutcome outcome) {
    const WriteCompletion completion{kSession, TicketId(ticket), outcome};
    watch_.completed({&completion, 1});
  }
  void quiet(std::uint64_t ticket) {
    const TicketId name(ticket);
    watch_.quiet(kSession, {&name, 1});
  }
  // "posted 0: 2 writes of 1,2", "written 0: 1 0 0"
  std::vector<std::string> lines() const {
    std::vector<std::string> out;
    std::ifstream file(path_);
    for (std::string text; std::getline(file, text);) {
      const auto parsed = router::JsonDocument::parse(text);
      const router::JsonView line = parsed->root();
      const auto number = [&](const char* key) {
        return std::to_string(line[key].integer().value_or(-1));
      };
      std::string said = *line["at"].text() + " " + number("slot") + ":";
      if (line["at"].text() == "posted") {
        said += " " + number("writes") + " writes of";
        for (std::size_t i = 0; i < line["pages"].size(); ++i) {
          said += " " + std::to_string(*line["pages"].at(i).integer());
        }
      } else {
        said += " " + number("settled") + " " + number("unknown") + " " + number("quiet");
      }
      out.push_back(said);
    }
    return out;
  }

  const std::string path_ = test::own_path("write-watch.jsonl");
  Journal journal_ = *Journal::open(path_);
  WriteWatch watch_{journal_};
  Heard heard_;
};

TEST_F(WriteWatchTest, KeepsWhatIsGivenAndWhatEnds) {
  const std::vector writes = {write(1, 0, 64), write(2, 0, 128), write(3, 4, 64),
                              write(4, 0, 0, 1)};
  watch_.posted(kSession, writes);
  EXPECT_EQ(watch_.running(), 4U);
  complete(1, WriteOutcome::kLanded);
  complete(3, WriteOutcome::kRefused);
  EXPECT_EQ(watch_.running(), 2U);
  EXPECT_THAT(lines(), ElementsAre("posted 0: 3 writes of 1 2", "posted 4: 1 writes of 1",
                                   "written 0: 1 0 0", "written 4: 1 0 0"));
  EXPECT_THAT(heard_.words, ElementsAre("landed 1", "refused 3"));
}

TEST_F(WriteWatchTest, AnUnknownOneRunsUntilItIsQuiet) {
  watch_.posted(kSession, std::vector{write(1, 0, 64)});
  complete(1, WriteOutcome::kUnknown);
  EXPECT_EQ(watch_.running(), 1U);
  quiet(1);
  EXPECT_EQ(watch_.running(), 0U);
  EXPECT_THAT(lines(),
              ElementsAre("posted 0: 1 writes of 1", "written 0: 0 1 0", "written 0: 0 0 1"));
  EXPECT_THAT(heard_.words, ElementsAre("unknown 1", "quiet 1"));
}

TEST_F(WriteWatchTest, OneFailsAndTheOthersGoOn) {
  watch_.posted(kSession, std::vector{write(1, 0, 64), write(2, 0, 128)});
  EXPECT_TRUE(watch_.fail_one());
  EXPECT_THAT(heard_.words, ElementsAre("unknown 2"));
  complete(1, WriteOutcome::kLanded);
  EXPECT_EQ(watch_.running(), 1U) << "its bytes may still be under way";
  complete(2, WriteOutcome::kLanded);
  EXPECT_EQ(watch_.running(), 0U);
  EXPECT_THAT(heard_.words, ElementsAre("unknown 2", "landed 1", "quiet 2"));
  EXPECT_THAT(lines(), ElementsAre("posted 0: 2 writes of 1 2", "written 0: 0 1 0",
                                   "written 0: 1 0 0", "written 0: 0 0 1"));
}

TEST_F(WriteWatchTest, TheFailedOneIsUnknownOnce) {
  watch_.posted(kSession, std::vector{write(1, 0, 64)});
  EXPECT_TRUE(watch_.fail_one());
  complete(1, WriteOutcome::kUnknown);
  quiet(1);
  EXPECT_THAT(heard_.words, ElementsAre("unknown 1", "quiet 1"));
  EXPECT_EQ(watch_.running(), 0U);
}

TEST_F(WriteWatchTest, NothingThatRunsCanFail) {
  EXPECT_FALSE(watch_.fail_one());
  watch_.posted(kSession, std::vector{write(1, 0, 64)});
  EXPECT_TRUE(watch_.fail_one());
  EXPECT_FALSE(watch_.fail_one()) << "it has failed already";
  complete(1, WriteOutcome::kRefused);
  EXPECT_FALSE(watch_.fail_one());
  EXPECT_THAT(heard_.words, ElementsAre("unknown 1", "quiet 1"));
}

// What the watch was never told of is the core's business.
TEST_F(WriteWatchTest, WhatItDoesNotKnowIsPassedOn) {
  complete(7, WriteOutcome::kLanded);
  quiet(8);
  EXPECT_THAT(heard_.words, ElementsAre("landed 7", "quiet 8"));
  EXPECT_THAT(lines(), IsEmpty());
}

}  // namespace
}  // namespace kvferry::lab
