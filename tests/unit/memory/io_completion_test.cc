#include "runtime/memory/disk/io_completion.h"

#include <memory>
#include <vector>

#include "common/threads/thread.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(IoCompletionTest, IsCompleteUntilSomethingIsExpected) {
  IoCompletion done;
  EXPECT_TRUE(done.ready());
  EXPECT_TRUE(done.Wait().ok());
  done.Expect(2);
  EXPECT_FALSE(done.ready());
  done.Done(absl::OkStatus());
  EXPECT_FALSE(done.ready());
  done.Done(absl::OkStatus());
  EXPECT_TRUE(done.ready());
  EXPECT_TRUE(done.Wait().ok());
}

TEST(IoCompletionTest, KeepsTheFirstErrorOfARound) {
  IoCompletion done;
  done.Expect(3);
  done.Done(absl::OkStatus());
  done.Done(absl::DataLossError("first"));
  done.Done(absl::InternalError("second"));
  EXPECT_EQ(done.Wait(), absl::DataLossError("first"));
  EXPECT_EQ(done.status(), absl::DataLossError("first"));
  done.Expect(1);
  done.Done(absl::OkStatus());
  EXPECT_TRUE(done.Wait().ok());
}

TEST(IoCompletionTest, MayBeDestroyedAsSoonAsItIsComplete) {
  for (int round = 0; round < 50; ++round) {
    auto done = std::make_unique<IoCompletion>();
    done->Expect(1);
    int value = 0;
    Thread other("other", [&value, raw = done.get()] {
      value = 1;
      raw->Done(absl::OkStatus());
    });
    if (round % 2 == 0) {
      EXPECT_TRUE(done->Wait().ok());
    } else {
      while (!done->ready()) {
      }
    }
    EXPECT_EQ(value, 1);
    done.reset();
  }
}

}  // namespace
}  // namespace sluice
