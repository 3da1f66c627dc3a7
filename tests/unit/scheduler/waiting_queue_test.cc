#include "scheduler/steps/waiting_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

// Who goes before whom. Pages have 4 tokens.

namespace sluice {
namespace {

class WaitingQueueTest : public testing::Test {
 protected:
  // A sequence of pages, each named by a letter.
  void Add(int64_t id, const std::string& pages, Turn turn = {}) {
    std::vector<int32_t> tokens;
    for (const char page : pages) tokens.insert(tokens.end(), 4, page);
    prefixes_.Add(SequenceId(id), tokens);
    queue_.Add({.id = SequenceId(id), .turn = turn}, prefixes_);
  }
  void Remove(int64_t id) {
    ASSERT_TRUE(queue_.Remove(SequenceId(id), prefixes_));
    prefixes_.Remove(SequenceId(id));
  }
  std::string Show() const {
    return absl::StrJoin(
        queue_, " ", [](std::string* out, const WaitingQueue::Entry& entry) {
          absl::StrAppend(out, entry.sequence.id.value());
        });
  }

  PrefixTree prefixes_{4};
  WaitingQueue queue_{Order::kLongest};
};

TEST_F(WaitingQueueTest, InTheOrderOfArrivalTurnsDoNotCount) {
  queue_ = WaitingQueue(Order::kArrival);
  Add(1, "", {.expected = 1});
  Add(2, "", {.rank = 9, .expected = 5});
  Add(3, "", {.expected = 9});
  EXPECT_EQ(Show(), "1 2 3");
}

TEST_F(WaitingQueueTest, WhatHadBegunGoesFirstInAnyOrder) {
  queue_ = WaitingQueue(Order::kArrival);
  Add(1, "a");
  Add(2, "b");
  Add(3, "", {.rank = Turn::kBegun});
  Add(4, "", {.rank = Turn::kBegun});
  EXPECT_EQ(Show(), "3 4 1 2");
  // Not before more than may be overtaken.
  for (int64_t id = 5; id < 90; ++id) {
    Add(id, "", {.rank = Turn::kBegun});
    Remove(id);
  }
  Add(90, "", {.rank = Turn::kBegun});
  EXPECT_EQ(Show(), "3 4 1 2 90");
}

TEST_F(WaitingQueueTest, RankThenLengthThenPromptThenArrival) {
  Add(1, "", {.expected = 5, .prefill = 7});
  Add(2, "", {.expected = 9});
  Add(3, "", {.expected = 5, .prefill = 8});
  Add(4, "", {.expected = 5, .prefill = 7});
  Add(5, "", {.rank = 1, .expected = 1});
  Add(6, "", {.rank = 1, .expected = 2});
  Add(7, "", {.rank = -1, .expected = 100});
  EXPECT_EQ(Show(), "6 5 2 3 1 4 7");
  Remove(5);
  Add(8, "", {.expected = 100});
  EXPECT_EQ(Show(), "6 8 2 3 1 4 7");
}

TEST_F(WaitingQueueTest, AllThatBeginAlikeAreOrderedByLength) {
  Add(1, "sa", {.expected = 5});
  Add(2, "sb", {.expected = 9});
  Add(3, "sc", {.expected = 7});
  EXPECT_EQ(Show(), "2 3 1");
}

TEST_F(WaitingQueueTest, WhoBeginsAlikeStaysTogether) {
  Add(1, "sab", {.expected = 5});
  Add(2, "scd", {.expected = 3});
  Add(3, "sax", {.expected = 9});  // before the one like it
  EXPECT_EQ(Show(), "3 1 2");
  Add(4, "sce", {.expected = 100});  // it does not move the others
  EXPECT_EQ(Show(), "3 1 4 2");
  Add(5, "sfg", {.expected = 50});  // between groups, by their first ones
  EXPECT_EQ(Show(), "3 1 4 2 5");
  Add(6, "sah", {.expected = 6});
  EXPECT_EQ(Show(), "3 6 1 4 2 5");
  Remove(4);
  Add(7, "shi", {.expected = 4});
  EXPECT_EQ(Show(), "3 6 1 2 5 7");
  Add(8, "sij", {.expected = 200});
  EXPECT_EQ(Show(), "8 3 6 1 2 5 7");
}

TEST_F(WaitingQueueTest, NoneIsOvertakenWithoutEnd) {
  const int32_t most = WaitingQueue::MaxOvertaken(Order::kLongest);
  Add(0, "", {.expected = 1});
  for (int32_t i = 1; i <= 2 * most; ++i) {
    Add(i, "", {.expected = 2});
    const std::vector<SequenceId> ids = queue_.Last(queue_.size());
    EXPECT_EQ(ids[std::min(i, most)], SequenceId(0));
  }
}

}  // namespace
}  // namespace sluice
