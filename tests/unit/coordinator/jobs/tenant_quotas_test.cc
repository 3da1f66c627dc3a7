// Quotas of tenants: what is queued, who is refused, and when there is room.

#include "coordinator/jobs/tenant_quotas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/threads/retry_delay.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// "p0" and what begins each prompt are three tokens, and 16 may be generated.
constexpr int64_t kTokens = 19;

class TenantQuotasTest : public testing::Test, public TestJobs {
 protected:
  TenantQuotasTest() {
    options.quota_of = [this](const std::string& tenant) {
      return tenant == "lab" ? quota_ : TenantQuota();
    };
    EXPECT_TRUE(Open().ok());
  }

  absl::StatusOr<std::unique_ptr<JobManager::Upload>> Begin(
      const std::string& tenant = "lab") {
    return manager->BeginUpload({}, nullptr, tenant);
  }
  absl::StatusOr<v1::Job> Submit(const std::string& input,
                                 const std::string& tenant = "lab") {
    SLUICE_ASSIGN_OR_RETURN(auto upload, Begin(tenant));
    SLUICE_RETURN_IF_ERROR(upload->Append(input));
    return upload->Commit();
  }
  double Queued(const std::string& what, const std::string& tenant = "lab") {
    return metrics.Value(
        absl::StrCat("sluice_tenant_queued_", what, "{tenant=", tenant, "}"));
  }
  static std::string Text(const absl::Status& status) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    return std::string(status.message());
  }

  TenantQuota quota_;
};

TEST_F(TenantQuotasTest, WhatIsQueuedIsCountedUntilItHasResults) {
  const std::string lines = Prompts(3);
  ASSERT_TRUE(Submit(lines).ok());
  EXPECT_EQ(Queued("requests"), 3);
  EXPECT_EQ(Queued("tokens"), 3 * kTokens);
  EXPECT_EQ(Queued("bytes"), static_cast<double>(lines.size()));
  Reopen();
  EXPECT_EQ(Queued("requests"), 3);
  EXPECT_EQ(Queued("bytes"), static_cast<double>(lines.size()));
  auto taken = manager->TakeRequests(1);
  manager->Complete((*taken)[0], Answer((*taken)[0]));
  manager->Flush();
  EXPECT_EQ(Queued("requests"), 2);
  EXPECT_EQ(Queued("tokens"), 2 * kTokens);
  EXPECT_EQ(Queued("bytes"), static_cast<double>(lines.size()));
  AnswerAll();
  manager->Flush();
  for (const char* what : {"requests", "tokens", "bytes"}) {
    EXPECT_EQ(Queued(what), 0) << what;
  }
}

TEST_F(TenantQuotasTest, AJobThatDoesNotFitIsRefusedWhole) {
  quota_.requests = 4;
  ASSERT_TRUE(Submit(Prompts(3)).ok());
  const absl::Status refused = Submit(Prompts(2)).status();
  EXPECT_EQ(Text(refused),
            "the quota of tenant lab is 4 requests queued, and 3 are: this job "
            "does not fit, and no job was made of it; try again in 5s");
  EXPECT_EQ(RetryDelayOf(refused), absl::Seconds(5));
  EXPECT_EQ(metrics.Value("sluice_tenant_refused_jobs_total{tenant=lab}"), 1);
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 1);
  EXPECT_EQ(Queued("requests"), 3);
  // One that fits comes in, bad lines take no room, others have their own.
  ASSERT_TRUE(Submit("{\n" + Prompts(1)).ok());
  EXPECT_EQ(Queued("requests"), 4);
  ASSERT_TRUE(Submit(Prompts(100), "shop").ok());
  // Once it is full, nothing is sent in vain.
  EXPECT_THAT(Text(Begin().status()), HasSubstr("and 4 are"));
}

TEST_F(TenantQuotasTest, EachLimitIsOne) {
  const std::string lines = Prompts(2);
  quota_ = {.tokens = 3 * kTokens};
  ASSERT_TRUE(Submit(lines).ok());
  EXPECT_THAT(Text(Submit(lines).status()),
              HasSubstr(absl::StrCat(3 * kTokens, " tokens queued, and ",
                                     2 * kTokens, " are")));
  quota_ = {.bytes = static_cast<int64_t>(lines.size()) + 1};
  EXPECT_THAT(Text(Submit(lines).status()), HasSubstr("bytes of input queued"));
  quota_ = {};
  EXPECT_TRUE(Submit(lines).ok());
}

TEST_F(TenantQuotasTest, AJobBeyondTheWholeQuotaIsNotToBeTriedAgain) {
  quota_.requests = 4;
  const absl::Status refused = Submit(Prompts(5)).status();
  EXPECT_THAT(Text(refused), HasSubstr("this job alone has more"));
  EXPECT_EQ(RetryDelayOf(refused), std::nullopt);
}

TEST_F(TenantQuotasTest, UploadsReserveWhatTheyStore) {
  quota_.requests = 6000;
  auto first = Begin(), second = Begin();
  // Rows are stored, some thousand at a time, before the end is known.
  ASSERT_TRUE((*first)->Append(Prompts(5000)).ok());
  EXPECT_EQ(Queued("requests"), 4096);
  absl::Status refused = (*second)->Append(Prompts(5000));
  EXPECT_THAT(Text(refused), HasSubstr("and 4096 are"));
  EXPECT_EQ((*second)->Commit().status(), refused);
  second->reset();
  EXPECT_EQ(Queued("requests"), 4096);
  ASSERT_TRUE((*first)->Commit().ok());
  EXPECT_EQ(Queued("requests"), 5000);
  // An upload that is given up leaves nothing.
  auto third = Begin();
  ASSERT_TRUE((*third)->Append(Prompts(500)).ok());
  third->reset();
  EXPECT_EQ(Queued("requests"), 5000);
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 1);
}

TEST_F(TenantQuotasTest, CancellingMakesRoomAndASmallerQuotaEndsNothing) {
  quota_.requests = 3;
  const std::string id = Submit(Prompts(3))->id();
  quota_.requests = 1;
  Reopen();
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_IN_PROGRESS);
  EXPECT_FALSE(Submit(Prompts(1)).ok());
  ASSERT_TRUE(manager->CancelJob(id).ok());
  WaitForEnd(id);
  EXPECT_TRUE(Submit(Prompts(1)).ok());
}

TEST_F(TenantQuotasTest, ARepeatedRequestIdNeedsNoRoom) {
  quota_.requests = 2;
  v1::JobSpec spec;
  spec.set_request_id("once");
  std::string ids[2];
  for (std::string& id : ids) {
    auto upload = manager->BeginUpload(spec, nullptr, "lab");
    ASSERT_TRUE(upload.ok()) << upload.status();
    ASSERT_TRUE((*upload)->Append(Prompts(2)).ok());
    const auto job = (*upload)->Commit();
    ASSERT_TRUE(job.ok()) << job.status();
    id = job->id();
  }
  EXPECT_EQ(ids[0], ids[1]);
}

}  // namespace
}  // namespace sluice
