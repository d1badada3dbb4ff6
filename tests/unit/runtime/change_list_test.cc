#include "runtime/change_list.h"

#include <gtest/gtest.h>

namespace kvferry::runtime {
namespace {

using Ids = std::vector<std::uint64_t>;

TEST(ChangeList, NotesWhatComesAfterTheFirstQuestion) {
  ChangeList changes(4);
  changes.add(Ids{1});
  EXPECT_EQ(changes.take(), std::nullopt);
  EXPECT_EQ(changes.take(), Ids{});
  changes.add(Ids{3, 2});
  changes.add(Ids{3});
  EXPECT_EQ(changes.take(), (Ids{3, 2, 3}));
  EXPECT_EQ(changes.take(), Ids{});
}

TEST(ChangeList, BeyondItsLimitEverythingIsToBeLookedAtOnce) {
  ChangeList changes(4);
  (void)changes.take();
  changes.add(Ids{1, 2, 3});
  changes.add(Ids{4, 5});
  changes.add(Ids{6});
  EXPECT_EQ(changes.take(), std::nullopt) << "more than four waited";
  EXPECT_EQ(changes.take(), Ids{});
  changes.add(Ids{7});
  EXPECT_EQ(changes.take(), Ids{7});
}

TEST(ChangeList, WhenAllChangeNoneIsListed) {
  ChangeList changes(4);
  (void)changes.take();
  changes.add(Ids{1});
  changes.add_all();
  changes.add(Ids{2});
  EXPECT_EQ(changes.take(), std::nullopt);
}

}  // namespace
}  // namespace kvferry::runtime
