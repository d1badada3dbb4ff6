#include "net/name_lookup.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "latch.h"

namespace kvferry::net {
namespace {

TEST(NameLookup, AnswersMoreLookupsThanRunAtOnce) {
  std::vector<Latch<NameAnswer>> answers(4 * kMaxLookups);
  std::vector<std::shared_ptr<const void>> tickets;
  for (auto& answer : answers) {
    tickets.push_back(
        look_up_name("127.0.0.1", [&answer](NameAnswer found) { answer.set(std::move(found)); }));
    ASSERT_TRUE(tickets.back());
  }
  for (auto& answer : answers) {
    const auto found = answer.wait();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->error, 0) << found->message();
    EXPECT_EQ(found->addresses, std::vector<std::string>{"127.0.0.1"});
  }
}

TEST(NameLookup, NobodyWaitsForARunningOne) {
  // Every thread is held up, as by a name server that does not answer.
  const auto release = std::make_shared<Latch<bool>>();
  const auto skipped = std::make_shared<Latch<bool>>();
  const auto held = std::make_shared<std::array<Latch<bool>, kMaxLookups>>();
  std::vector<std::shared_ptr<const void>> tickets;
  for (unsigned i = 0; i < kMaxLookups; ++i) {
    tickets.push_back(look_up_name("127.0.0.1", [release, held, i](NameAnswer) {
      (*held)[i].set(true);
      release->wait();
    }));
  }
  for (auto& one : *held) {
    ASSERT_TRUE(one.wait());
  }
  look_up_name("127.0.0.1", [skipped](NameAnswer) { skipped->set(true); });
  tickets.clear();
  Latch<bool> last;
  const auto ticket = look_up_name("127.0.0.1", [&last](NameAnswer) { last.set(true); });
  EXPECT_FALSE(last.is_set());
  release->set(true);
  EXPECT_TRUE(last.wait());
  EXPECT_FALSE(skipped->is_set());
}

}  // namespace
}  // namespace kvferry::net
