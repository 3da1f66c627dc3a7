#include "coordinator/cluster/links/link_tests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/cluster/links/link_chain.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LinkTestsTest : public testing::Test {
 protected:
  static std::vector<WorkerId> Ids(int64_t count) {
    std::vector<WorkerId> ids;
    for (int64_t id = 1; id <= count; ++id) ids.push_back(WorkerId(id));
    return ids;
  }
  // Asks, and answers for all workers: those of `unreached` can't be reached,
  // and those of `silent` do not answer.
  void Round(const std::vector<WorkerId>& workers,
             const std::set<int64_t>& unreached,
             const std::set<int64_t>& silent = {}) {
    for (const LinkTests::Question& question : tests_.Ask(workers, now_)) {
      if (silent.contains(question.from.value())) continue;
      std::vector<std::string> errors;
      for (const WorkerId to : question.to) {
        errors.push_back(unreached.contains(to.value()) ? "refused" : "");
      }
      EXPECT_TRUE(
          tests_.OnAnswer(question.number, question.from, errors, now_));
    }
  }
  std::vector<int64_t> Outcasts() {
    std::vector<int64_t> ids;
    for (const LinkTests::Outcast& outcast : tests_.Outcasts()) {
      ids.push_back(outcast.worker.value());
    }
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  LinkTests tests_;
  absl::Duration now_ = absl::Seconds(100);
};

TEST_F(LinkTestsTest, AllLinksOfAFewAreTestedOnce) {
  const auto questions = tests_.Ask(Ids(3), now_);
  ASSERT_EQ(questions.size(), 3u);
  EXPECT_LT(questions[0].number, 0);
  EXPECT_THAT(questions[1].to, ElementsAre(WorkerId(3), WorkerId(1)));
  EXPECT_TRUE(tests_.Testing(now_));
  EXPECT_FALSE(tests_.Works(WorkerId(1), WorkerId(2)));
  EXPECT_TRUE(tests_.Ask(Ids(3), now_).empty());
  for (const auto& question : questions) {
    EXPECT_FALSE(tests_.OnAnswer(question.number, WorkerId(9), {"", ""}, now_));
    tests_.OnAnswer(question.number, question.from, {"", ""}, now_);
  }
  EXPECT_FALSE(tests_.Testing(now_));
  EXPECT_TRUE(tests_.Works(WorkerId(1), WorkerId(2)));
  now_ += absl::Hours(1);
  EXPECT_TRUE(tests_.Ask(Ids(3), now_).empty());
  // A newcomer's links, in both directions.
  EXPECT_EQ(tests_.Ask(Ids(4), now_).size(), 4u);
}

TEST_F(LinkTestsTest, AllWhomNobodyReachesAreFoundAtOnce) {
  Round(Ids(8), {3, 4, 5, 6, 7, 8});
  EXPECT_THAT(Outcasts(), ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_TRUE(tests_.Broken(WorkerId(1), WorkerId(5)));
  EXPECT_FALSE(tests_.Broken(WorkerId(5), WorkerId(1)));
  EXPECT_EQ(tests_.Why(WorkerId(1), WorkerId(5)), "refused");
  // They are tested again, and those that can be reached now are back.
  now_ += absl::Seconds(5);
  Round(Ids(8), {6, 7, 8});
  EXPECT_THAT(Outcasts(), ElementsAre(6, 7, 8));
  // Less often each time, but where they are needed.
  now_ += absl::Seconds(5);
  EXPECT_TRUE(tests_.Ask(Ids(8), now_).empty());
  tests_.Hasten(Ids(8));
  EXPECT_FALSE(tests_.Ask(Ids(8), now_).empty());
}

TEST_F(LinkTestsTest, SilenceIsAnAnswer) {
  Round(Ids(4), {}, {4});
  EXPECT_THAT(tests_.Untested(), ElementsAre(WorkerId(4)));
  EXPECT_THAT(Outcasts(), IsEmpty());
  now_ += absl::Seconds(10);
  Round(Ids(4), {}, {4});
  EXPECT_THAT(Outcasts(), ElementsAre(4));  // it reaches nobody
  EXPECT_THAT(tests_.Untested(), IsEmpty());
  // One that comes and goes does not make it better.
  std::vector<WorkerId> more = Ids(4);
  more.push_back(WorkerId(5));
  Round(more, {}, {4, 5});
  EXPECT_THAT(Outcasts(), ElementsAre(4));
}

TEST_F(LinkTestsTest, PlansDoNotWaitForEverWhereWorkersComeAndGo) {
  for (int64_t flap = 3; flap < 23; ++flap) {
    Round({WorkerId(1), WorkerId(2), WorkerId(flap)}, {}, {flap});
    EXPECT_EQ(tests_.Testing(now_), flap < 13);
    now_ += absl::Seconds(1);
  }
  EXPECT_THAT(tests_.Untested(), ElementsAre(WorkerId(22)));
}

TEST_F(LinkTestsTest, OneDirectionMayBeBroken) {
  for (const LinkTests::Question& question : tests_.Ask(Ids(2), now_)) {
    tests_.OnAnswer(question.number, question.from,
                    {question.from == WorkerId(1) ? "filtered" : ""}, now_);
  }
  EXPECT_TRUE(tests_.Broken(WorkerId(1), WorkerId(2)));
  EXPECT_TRUE(tests_.Works(WorkerId(2), WorkerId(1)));
  EXPECT_THAT(Outcasts(), ElementsAre(2));
}

TEST_F(LinkTestsTest, WhatAPlanFindsOutCounts) {
  Round(Ids(3), {});
  tests_.Recheck(Ids(3));
  tests_.Found(WorkerId(1), WorkerId(2), "no route", now_);
  EXPECT_TRUE(tests_.Broken(WorkerId(1), WorkerId(2)));
  EXPECT_FALSE(tests_.Works(WorkerId(2), WorkerId(3)));
  Round(Ids(3), {2});
  EXPECT_THAT(Outcasts(), ElementsAre(2));
}

TEST_F(LinkTestsTest, WorkersThatAreNotTestedDoNotCount) {
  Round(Ids(3), {});
  Round(Ids(2), {});  // the last one is to go, and its plan still runs
  tests_.Found(WorkerId(2), WorkerId(3), "no route", now_);
  tests_.Remove(WorkerId(3));
  EXPECT_FALSE(tests_.any_broken());
  EXPECT_THAT(Outcasts(), IsEmpty());
}

TEST_F(LinkTestsTest, ManyTestTheirNeighbours) {
  size_t asked = 0;
  for (const auto& question : tests_.Ask(Ids(100), now_)) {
    asked += question.to.size();
  }
  EXPECT_EQ(asked, 100u * 16);
}

TEST(LongestChainTest, AvoidsBrokenLinks) {
  const auto none = [](size_t, size_t) { return false; };
  EXPECT_THAT(LongestChain(3, none), ElementsAre(0, 1, 2));
  EXPECT_THAT(LongestChain(0, none), IsEmpty());
  const auto backwards = [](size_t a, size_t b) { return a < b; };
  EXPECT_THAT(LongestChain(3, backwards), ElementsAre(2, 1, 0));
  EXPECT_EQ(LongestChain(12, backwards).size(), 12u);
  // Two racks that do not reach each other.
  for (const size_t n : {size_t{5}, size_t{25}}) {
    const auto racks = [](size_t a, size_t b) { return a % 2 != b % 2; };
    const std::vector<size_t> chain = LongestChain(n, racks);
    EXPECT_EQ(chain.size(), (n + 1) / 2);
    for (const size_t w : chain) EXPECT_EQ(w % 2, 0u);
  }
  // Only by way of the middle one.
  const auto hub = [](size_t a, size_t b) { return a != 0 && b != 0; };
  EXPECT_THAT(LongestChain(3, hub), ElementsAre(1, 0, 2));
}

}  // namespace
}  // namespace sluice
