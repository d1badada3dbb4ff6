#include "kvferry/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>

namespace kvferry {
namespace {

using ::testing::HasSubstr;

const OptionRow& row(std::string_view name) {
  for (const OptionRow& candidate : option_rows()) {
    if (candidate.name == name) {
      return candidate;
    }
  }
  ADD_FAILURE() << "no option " << name;
  return option_rows().front();
}

// A field without a row could be set neither from a file nor from the command line.
TEST(Options, EveryFieldOfTheHeaderHasARow) {
  std::ifstream header(KVFERRY_OPTIONS_HEADER);
  ASSERT_TRUE(header.is_open());
  const std::regex member(R"(^  (?:std::\S+|bool) (\w+)(?: = [^;]*)?;.*)");
  std::set<std::string> declared;
  bool inside = false;
  for (std::string line; std::getline(header, line);) {
    inside = line == "struct Options {" || (inside && line != "};");
    std::smatch match;
    if (inside && std::regex_match(line, match, member)) {
      declared.insert(match[1]);
    }
  }
  std::set<std::string> listed;
  for (const OptionRow& candidate : option_rows()) {
    EXPECT_TRUE(listed.emplace(candidate.name).second) << candidate.name << " has two rows";
    EXPECT_FALSE(candidate.help.empty()) << candidate.name;
  }
  std::vector<std::string> differences;
  std::set_symmetric_difference(declared.begin(), declared.end(), listed.begin(), listed.end(),
                                std::back_inserter(differences));
  EXPECT_THAT(differences, ::testing::IsEmpty());
}

TEST(Options, DefaultsAreValidAndRoundTripAsText) {
  const Options defaults;
  EXPECT_TRUE(validate(defaults)) << validate(defaults).error().what;
  for (const OptionRow& candidate : option_rows()) {
    Options options;
    ASSERT_TRUE(candidate.set(options, candidate.get(defaults))) << candidate.name;
    EXPECT_EQ(candidate.get(options), candidate.get(defaults));
  }
}

TEST(Options, NumbersAreParsedWholeAndWithinTheirRange) {
  Options options;
  EXPECT_TRUE(row("fence_timeout_ms").set(options, "1234"));
  EXPECT_EQ(options.fence_timeout_ms, 1'234U);
  for (const char* value : {"", "x", "12x", " 12", "-1", "5", "1e3", "99999999999", "86400001"}) {
    const Status status = row("fence_timeout_ms").set(options, value);
    ASSERT_FALSE(status) << value;
    EXPECT_EQ(status.error().code, FailureCode::kInvalidArgument);
    EXPECT_THAT(status.error().what, HasSubstr("fence_timeout_ms"));
    EXPECT_THAT(status.error().what, HasSubstr("10 to 86400000 ms"));
  }
  EXPECT_EQ(options.fence_timeout_ms, 1'234U);
}

TEST(Options, FlagsAndListsAreParsed) {
  Options options;
  EXPECT_TRUE(row("curve").set(options, "off"));
  EXPECT_FALSE(options.curve);
  EXPECT_FALSE(row("curve").set(options, "perhaps"));
  EXPECT_TRUE(row("page_digests").set(options, "on"));
  EXPECT_TRUE(options.page_digests);
  EXPECT_TRUE(row("bootstrap_addresses").set(options, "a:1,[::1]:65535"));
  EXPECT_EQ(options.bootstrap_addresses, (std::vector<std::string>{"a:1", "[::1]:65535"}));
  EXPECT_EQ(row("bootstrap_addresses").get(options), "a:1,[::1]:65535");
  EXPECT_TRUE(row("bootstrap_addresses").set(options, ""));
  EXPECT_TRUE(options.bootstrap_addresses.empty());
  for (const char* value : {"a", "a:", ":1", "a:0", "a:65536", "a:1,,b:2", "::1:5", "a b:1"}) {
    EXPECT_FALSE(row("bootstrap_addresses").set(options, value)) << value;
  }
}

TEST(Options, ValuesSetInCodeMeetTheSameRanges) {
  Options options;
  options.lanes_per_peer = 0;
  ASSERT_FALSE(validate(options));
  EXPECT_THAT(validate(options).error().what, HasSubstr("lanes_per_peer"));
}

TEST(Options, RefusesContradictions) {
  const auto refusal = [](auto change) {
    Options options;
    change(options);
    const Status status = validate(options);
    return status ? std::string("accepted") : status.error().what;
  };
  EXPECT_THAT(refusal([](Options& o) { o.session_grace_ms = 3'001; }),
              HasSubstr("session_grace_ms (3001) must not exceed heartbeat_timeout_ms (3000)"));
  EXPECT_THAT(refusal([](Options& o) { o.heartbeat_interval_ms = 2'000; }),
              HasSubstr("heartbeat_interval_ms"));
  EXPECT_THAT(refusal([](Options& o) { o.retransmit_min_ms = 5'000; }),
              HasSubstr("retransmit_max_ms"));
  EXPECT_THAT(refusal([](Options& o) { o.control_frame_bytes = 8U << 20; }),
              HasSubstr("control_message_max_bytes"));
  const auto stranger = [](Options& o) {
    o.control_host = "10.0.0.1";
    o.cluster_token_file = "/etc/token";
  };
  EXPECT_EQ(refusal(stranger), "accepted");
  EXPECT_THAT(refusal([&](Options& o) { stranger(o), o.curve = false; }), HasSubstr("loopback"));
  EXPECT_THAT(refusal([&](Options& o) { stranger(o), o.cluster_token_file.clear(); }),
              HasSubstr("cluster_token_file"));
  EXPECT_THAT(refusal([&](Options& o) { stranger(o), o.control_host = "0.0.0.0"; }),
              HasSubstr("advertise_host"));
  EXPECT_EQ(refusal([](Options& o) { o.curve = false; }), "accepted");
}

}  // namespace
}  // namespace kvferry
