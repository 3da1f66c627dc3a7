#include "coordinator/jobs/job_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/threads/thread.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/store/sqlite_db.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class JobManagerTest : public testing::Test, public TestJobs {
 protected:
  JobManagerTest() { EXPECT_TRUE(Open().ok()); }
};

std::string ErrorCode(const json& line) { return line["error"]["code"]; }

TEST_F(JobManagerTest, AJobFromSubmissionToItsResults) {
  v1::JobSpec spec;
  spec.set_name("first");
  spec.set_model("test-model");
  (*spec.mutable_metadata())["k"] = "v";
  auto job = Submit(Prompts(3), spec);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_IN_PROGRESS);
  EXPECT_EQ(job->spec().metadata().at("k"), "v");
  EXPECT_EQ(job->counts().total(), 3);
  EXPECT_EQ(job->created_at().seconds(), 1'700'000'000);
  EXPECT_EQ(metrics.Value("sluice_num_requests_queued"), 3);
  EXPECT_EQ(metrics.Value("sluice_jobs{state=in_progress}"), 1);

  auto requests = manager->TakeRequests(10);
  ASSERT_TRUE(requests.ok());
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[1].index, 1);
  EXPECT_EQ((*requests)[1].custom_id, "line-2");
  EXPECT_EQ(tokenizer.Decode((*requests)[1].prompt, false), "<s>p1");
  EXPECT_EQ((*requests)[1].max_tokens, 16);
  EXPECT_EQ(metrics.Value("sluice_num_requests_queued"), 0);
  EXPECT_THAT(*manager->TakeRequests(10), IsEmpty());

  clock.Advance(absl::Seconds(60));
  manager->ReportProgress((*requests)[0].job, {3, 6, 9});
  for (const Request& request : *requests) {
    manager->Complete(request, Answer(request));
  }
  const v1::Job end = WaitForEnd(job->id());
  EXPECT_EQ(end.state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(end.counts().completed(), 3);
  EXPECT_EQ(end.counts().failed(), 0);
  EXPECT_EQ(end.counts().running(), 0);
  EXPECT_EQ(end.prompt_tokens(), 9);
  EXPECT_EQ(end.generation_tokens(), 6);
  EXPECT_EQ(end.generated_so_far(), 6);
  EXPECT_EQ(end.finished_at().seconds(), 1'700'000'060);
  const std::vector<json> lines = Results(job->id());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2]["custom_id"], "line-3");
  EXPECT_EQ(lines[2]["response"]["body"]["choices"][0]["text"],
            "answer to line-3");
  EXPECT_EQ(
      metrics.Value("sluice_request_success_total{finished_reason=length}"), 3);
  EXPECT_EQ(metrics.Value("sluice_request_prompt_tokens"), 3);
  EXPECT_EQ(metrics.Value("sluice_request_generation_tokens"), 3);
  EXPECT_GT(metrics.Value("sluice_state_database_bytes"), 0);
  EXPECT_GT(metrics.Value(absl::StrCat("sluice_disk_free_bytes{dir=",
                                       options.state_dir.string(), "}")),
            0);
  EXPECT_GT(metrics.Value("sluice_journal_fsync_seconds"), 3);
  EXPECT_EQ(metrics.Value("sluice_jobs{state=in_progress}"), 0);
  EXPECT_EQ(metrics.Value("sluice_jobs{state=completed}"), 1);
}

TEST_F(JobManagerTest, RequestsKnowWhenTheirJobWasAcceptedAlsoAfterARestart) {
  const absl::Time accepted = clock.Now();
  ASSERT_TRUE(Submit(Prompts(2)).ok());
  clock.Advance(absl::Hours(30));
  auto requests = manager->TakeRequests(1);
  ASSERT_TRUE(requests.ok());
  EXPECT_EQ(requests->at(0).accepted, accepted);
  Reopen();
  requests = manager->TakeRequests(2);
  ASSERT_TRUE(requests.ok());
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ(requests->at(1).accepted, accepted);
}

TEST_F(JobManagerTest, AJobHasNoPlanBeforeItBegins) {
  const auto first = Submit(Prompts(1));
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(manager->TakeRequests(1)->size(), 1u);
  manager->ReportPlan("former");
  const auto has = [](const std::string& plan) {
    return [plan](const v1::Job& job) { return job.plan() == plan; };
  };
  WaitFor(first->id(), has("former"));
  const auto second = Submit(Prompts(2));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->plan(), "");
  manager->ReportPlan("other");
  WaitFor(first->id(), has("other"));
  EXPECT_EQ(Get(second->id()).plan(), "");
  ASSERT_EQ(manager->TakeRequests(1)->size(), 1u);
  WaitFor(second->id(), has("other"));  // it runs by this one
}

TEST_F(JobManagerTest, UploadsUnderWayAreCounted) {
  EXPECT_EQ(metrics.Value("sluice_jobs{state=validating}"), 0);
  auto upload = manager->BeginUpload({});
  ASSERT_TRUE(upload.ok());
  EXPECT_EQ(metrics.Value("sluice_jobs{state=validating}"), 1);
  upload->reset();  // broken off
  EXPECT_EQ(metrics.Value("sluice_jobs{state=validating}"), 0);
  ASSERT_TRUE(Submit(Prompts(1)).ok());
  EXPECT_EQ(metrics.Value("sluice_jobs{state=validating}"), 0);
  EXPECT_EQ(metrics.Value("sluice_jobs{state=in_progress}"), 1);
}

TEST_F(JobManagerTest, BadLinesGetTheirErrorsAndGoodOnesTheirAnswers) {
  options.max_line_bytes = 100;
  Reopen();
  const std::string input = absl::StrCat(
      "\xEF\xBB\xBF{\"prompt\": \"first\", \"custom_id\": \"a\"}\r\n",  // 1
      "nonsense\n",                                                     // 2
      "\n",                                                             // 3
      "{\"prompt\": \"again\", \"custom_id\": \"a\"}\n",                // 4
      "{\"prompt\": \"", std::string(200, 'x'), "\"}\n",                // 5
      "{\"prompt\": \"ok\", \"temperature\": 9}\n",                     // 6
      "{\"prompt\": \"\xFF\"}\n",                                       // 7
      "{\"prompt\": \"last\"}");                                        // 8
  auto job = Submit(input);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->counts().total(), 8);
  EXPECT_EQ(job->counts().failed(), 6);
  EXPECT_EQ(AnswerAll(), 2);
  EXPECT_EQ(WaitForEnd(job->id()).state(), v1::JOB_STATE_COMPLETED);
  // Series of errors that did not occur exist, too, so that their first one is
  // an increase.
  EXPECT_EQ(metrics.Value("sluice_request_errors_total{code=unsupported}"), 0);
  const std::vector<json> lines = Results(job->id());
  ASSERT_EQ(lines.size(), 8u);
  const char* codes[] = {
      nullptr,         "invalid_json",    "empty_line",   "duplicate_custom_id",
      "line_too_long", "invalid_request", "invalid_utf8", nullptr};
  for (int i = 0; i < 8; ++i) {
    const json& error = lines[i]["error"];
    if (codes[i] == nullptr) {
      EXPECT_TRUE(error.is_null()) << error;
      continue;
    }
    EXPECT_EQ(error["code"], codes[i]);
    EXPECT_EQ(error["line"], i + 1);
    EXPECT_THAT(error["message"].get<std::string>(),
                StartsWith(absl::StrCat("line ", i + 1, ": ")));
    EXPECT_EQ(metrics.Value(absl::StrCat(
                  "sluice_request_errors_total{code=", codes[i], "}")),
              1);
  }
  EXPECT_THAT(lines[3]["error"]["message"].get<std::string>(),
              HasSubstr("was used on line 1"));
  EXPECT_EQ(lines[3]["custom_id"], "a");
}

TEST_F(JobManagerTest, AJobOfBadLinesOnlyIsCompletedAtOnce) {
  auto job = Submit("x\ny\n");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job->counts().failed(), 2);
  EXPECT_TRUE(job->has_finished_at());
  EXPECT_EQ(Results(job->id()).size(), 2u);
}

TEST_F(JobManagerTest, PlainText) {
  v1::JobSpec spec;
  spec.set_format(v1::INPUT_FORMAT_TEXT);
  auto job = Submit("one\n\ntwo", spec);
  ASSERT_TRUE(job.ok()) << job.status();
  auto requests = manager->TakeRequests(10);
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ(tokenizer.Decode((*requests)[1].prompt, true), "two");
  EXPECT_EQ((*requests)[1].custom_id, "line-3");
}

TEST_F(JobManagerTest, NoLinesIsNoJob) {
  for (const char* input : {"", "\xEF\xBB\xBF"}) {
    const absl::Status status = Submit(input).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no requests"));
  }
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 0);
}

TEST_F(JobManagerTest, TooManyLinesIsNoJob) {
  options.max_requests_per_job = 2;
  Reopen();
  EXPECT_TRUE(Submit(Prompts(2)).ok());
  const absl::Status status = Submit(Prompts(3)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 1);
}

TEST_F(JobManagerTest, SpecsAreChecked) {
  const auto refused = [&](const v1::JobSpec& spec) {
    const absl::Status status = Submit(Prompts(1), spec).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  v1::JobSpec spec;
  spec.set_model("other");
  EXPECT_THAT(refused(spec), HasSubstr("\"other\""));
  spec.Clear();
  spec.set_format(static_cast<v1::InputFormat>(9));
  EXPECT_THAT(refused(spec), HasSubstr("spec.format"));
  spec.Clear();
  spec.mutable_defaults()->set_temperature(-1);
  EXPECT_THAT(refused(spec), HasSubstr("defaults.temperature"));
  spec.mutable_defaults()->set_temperature(
      std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(refused(spec), HasSubstr("defaults.temperature"));
  spec.Clear();
  spec.mutable_defaults()->set_top_p(-0.5f);
  EXPECT_THAT(refused(spec), HasSubstr("defaults.top_p"));
  spec.Clear();
  spec.mutable_defaults()->set_top_k(-2);
  EXPECT_THAT(refused(spec), HasSubstr("defaults.top_k"));
  spec.Clear();
  spec.mutable_defaults()->set_max_tokens(0);
  EXPECT_THAT(refused(spec), HasSubstr("defaults.max_tokens"));
  spec.Clear();
  for (int i = 0; i < 17; ++i) {
    (*spec.mutable_metadata())[absl::StrCat(i)] = "";
  }
  EXPECT_THAT(refused(spec), HasSubstr("at most 16 pairs"));
  spec.Clear();
  (*spec.mutable_metadata())[std::string(65, 'k')] = "";
  EXPECT_THAT(refused(spec), HasSubstr("metadata"));
  spec.Clear();
  spec.set_name(std::string(513, 'n'));
  EXPECT_THAT(refused(spec), HasSubstr("spec.name"));
  spec.Clear();
  spec.set_request_id(std::string(129, 'r'));
  EXPECT_THAT(refused(spec), HasSubstr("spec.request_id"));
}

TEST_F(JobManagerTest, OptionsAreChecked) {
  JobManager::Options bad;
  EXPECT_TRUE(absl::IsInvalidArgument(JobManager::Create(bad).status()));
  bad = options;
  bad.requests.tokenizer = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(bad.Validate()));
  bad = options;
  bad.requests.max_model_len = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(bad.Validate()));
}

TEST_F(JobManagerTest, AnUploadThatBreaksOffNeverWas) {
  v1::JobSpec spec;
  spec.set_request_id("r");
  {
    auto upload = manager->BeginUpload(spec);
    ASSERT_TRUE(upload.ok());
    ASSERT_TRUE((*upload)->Append(Prompts(10'000)).ok());
    EXPECT_EQ(manager->ListJobs({})->jobs_size(), 0);
    EXPECT_THAT(*manager->TakeRequests(10), IsEmpty());
    // A second one must wait for the first to end.
    const absl::Status second = manager->BeginUpload(spec).status();
    EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  }
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 0);
  EXPECT_TRUE(Submit(Prompts(1), spec).ok());
}

TEST_F(JobManagerTest, AnUploadEndsOnce) {
  auto upload = manager->BeginUpload({});
  ASSERT_TRUE((*upload)->Append(Prompts(1)).ok());
  ASSERT_TRUE((*upload)->Commit().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition((*upload)->Commit().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition((*upload)->Append("x")));
}

TEST_F(JobManagerTest, APageOfLargeJobsFitsAMessage) {
  v1::JobSpec spec;
  for (int i = 0; i < 16; ++i) {
    (*spec.mutable_metadata())[absl::StrCat(i)] = std::string(512, 'm');
  }
  constexpr int kJobs = 260;
  for (int i = 0; i < kJobs; ++i) ASSERT_TRUE(Submit(Prompts(1), spec).ok());
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  int pages = 0, seen = 0;
  do {
    auto page = manager->ListJobs(request);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_LT(page->ByteSizeLong(), 3u << 20);
    for (const v1::Job& job : page->jobs()) {
      EXPECT_EQ(job.id(), absl::StrCat("job_", kJobs - seen));
      ++seen;
    }
    request.set_page_token(page->next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, kJobs);
  EXPECT_EQ(pages, 2);
}

TEST_F(JobManagerTest, ARequestHasOneResultHoweverOftenItCompletes) {
  const std::string id = Submit(Prompts(2))->id();
  auto requests = manager->TakeRequests(10);
  Generation failed;
  failed.status = absl::InternalError("late");
  manager->Complete((*requests)[0], Answer((*requests)[0]));
  manager->Complete((*requests)[0], failed);
  manager->Flush();
  manager->Complete((*requests)[0], failed);
  manager->Flush();
  const v1::Job job = Get(id);
  EXPECT_EQ(job.counts().completed(), 1);
  EXPECT_EQ(job.counts().failed(), 0);
  ASSERT_EQ(Results(id).size(), 1u);
  EXPECT_TRUE(Results(id)[0]["error"].is_null());
  // A result of an unknown job does no harm, either.
  Request stray = (*requests)[1];
  stray.job = JobId(77);
  manager->Complete(stray, failed);
  manager->Flush();
  EXPECT_EQ(metrics.Value("sluice_request_errors_total{code=internal}"), 0);
}

TEST_F(JobManagerTest, ErrorsOfGenerationAreResults) {
  const std::string id = Submit(Prompts(1))->id();
  auto requests = manager->TakeRequests(1);
  Generation failed;
  failed.status = absl::InternalError("logits are not numbers");
  manager->Complete((*requests)[0], failed);
  const v1::Job job = WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job.counts().failed(), 1);
  const json line = Results(id)[0];
  EXPECT_EQ(ErrorCode(line), "internal");
  EXPECT_EQ(line["error"]["message"], "line 1: logits are not numbers");
}

TEST_F(JobManagerTest, ScoredPromptsComeBackFromTheStore) {
  auto job = Submit(
      "{\"prompt\": \"ab\", \"echo\": true, \"logprobs\": 1, "
      "\"max_tokens\": 0}\n"
      "{\"prompt\": \"ab\", \"echo\": true, \"max_tokens\": 0}\n");
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_EQ(manager->TakeRequests(10)->size(), 2u);
  Reopen();  // as after a crash: all is to be done again
  auto requests = manager->TakeRequests(10);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  const Request& scored = requests->at(0);
  EXPECT_TRUE(scored.scores_prompt());
  EXPECT_EQ(scored.max_tokens, 0);
  EXPECT_EQ(scored.prompt_text, "ab");
  EXPECT_FALSE(requests->at(1).scores_prompt());
  Generation generation;
  generation.finish_reason = FinishReason::kLength;
  manager->Complete(requests->at(1), generation);
  generation.prompt_scores.begin = 1;
  generation.prompt_scores.num_top = 1;
  generation.prompt_scores.logprobs = {-1, -2};
  generation.prompt_scores.top = {{'x' + 3, -0.5f}, {'y' + 3, -1}};
  manager->Complete(scored, generation);
  const v1::Job end = WaitForEnd(job->id());
  EXPECT_EQ(end.counts().completed(), 2);
  EXPECT_EQ(end.prompt_tokens(), 6);
  EXPECT_EQ(end.generation_tokens(), 0);
  const std::vector<json> lines = Results(job->id());
  ASSERT_EQ(lines.size(), 2u);
  const json& choice = lines[0]["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], json::parse("[null,-1,-2]"));
  EXPECT_EQ(lines[1]["response"]["body"]["choices"][0]["text"], "ab");
}

TEST_F(JobManagerTest, ALineThatNoStoreHoldsBecomesAnError) {
  options.max_result_bytes = 2000;
  Reopen();
  auto job = Submit(Prompts(2));
  ASSERT_TRUE(job.ok()) << job.status();
  auto requests = manager->TakeRequests(2);
  ASSERT_TRUE(requests.ok());
  Generation large;
  large.text = std::string(2000, 'x');
  manager->Complete(requests->at(0), large);
  manager->Complete(requests->at(1), Answer(requests->at(1)));
  EXPECT_EQ(WaitForEnd(job->id()).counts().failed(), 1);
  const std::vector<json> lines = Results(job->id());
  EXPECT_EQ(ErrorCode(lines[0]), "result_too_large");
  EXPECT_TRUE(lines[1]["error"].is_null());
}

TEST_F(JobManagerTest, ARestartResumesWhatIsPending) {
  const std::string id = Submit(Prompts(5))->id();
  auto requests = manager->TakeRequests(3);
  ASSERT_EQ(requests->size(), 3u);
  manager->ReportProgress((*requests)[0].job, {.replays = 2});
  manager->Complete((*requests)[1], Answer((*requests)[1]));
  Reopen();  // closing commits what was completed
  EXPECT_EQ(metrics.Value("sluice_num_requests_queued"), 4);
  EXPECT_EQ(Get(id).counts().completed(), 1);
  EXPECT_EQ(Get(id).replays(), 2);
  requests = manager->TakeRequests(10);
  std::vector<int64_t> indices;
  for (const Request& request : *requests) indices.push_back(request.index);
  EXPECT_THAT(indices, ElementsAre(0, 2, 3, 4));
  for (const Request& request : *requests) {
    manager->Complete(request, Answer(request));
  }
  EXPECT_EQ(WaitForEnd(id).counts().completed(), 5);
  Reopen();
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(metrics.Value("sluice_jobs{state=completed}"), 1);
}

TEST_F(JobManagerTest, AJobForAnotherModelWaits) {
  const std::string id = Submit(Prompts(1))->id();
  options.requests.served_model = "other-model";
  Reopen();
  EXPECT_THAT(*manager->TakeRequests(1), IsEmpty());
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_IN_PROGRESS);
  EXPECT_THAT(Get(id).detail(), HasSubstr("waiting for model \"test-model\""));
  options.requests.served_model = "test-model";
  Reopen();
  EXPECT_EQ(AnswerAll(), 1);
}

TEST_F(JobManagerTest, RequestsThatFitNoMoreEndWithAnError) {
  const std::string id =
      Submit("{\"prompt\":\"long long long\"}\n{\"prompt\":\"a\"}\n")->id();
  options.requests.max_model_len = 20;  // 15 + 16 do not fit, 2 + 16 do
  Reopen();
  EXPECT_EQ(AnswerAll(), 1);
  EXPECT_EQ(WaitForEnd(id).counts().failed(), 1);
  EXPECT_EQ(ErrorCode(Results(id)[0]), "failed_precondition");
}

TEST_F(JobManagerTest, RequestsThatCannotBeReadEndWithAnError) {
  const std::string id = Submit(Prompts(2))->id();
  Close();
  {
    auto db = SqliteDb::Open((options.state_dir / "sluice.db").string());
    ASSERT_TRUE(
        (*db)->Exec("UPDATE requests SET params = 'x' WHERE idx = 0").ok());
  }
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(AnswerAll(), 1);
  EXPECT_EQ(WaitForEnd(id).counts().failed(), 1);
  EXPECT_EQ(ErrorCode(Results(id)[0]), "data_loss");
}

TEST_F(JobManagerTest, CancelKeepsResultsAndEndsTheRest) {
  const std::string id = Submit(Prompts(5000))->id();
  std::vector<JobId> told;
  manager->SetListener({.on_cancel = [&](JobId job) { told.push_back(job); }});
  auto requests = manager->TakeRequests(10);
  manager->Complete((*requests)[4], Answer((*requests)[4]));
  manager->Flush();
  auto cancelled = manager->CancelJob(id);
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(cancelled->state(), v1::JOB_STATE_CANCELLING);
  EXPECT_THAT(told, ElementsAre((*requests)[0].job));
  EXPECT_THAT(*manager->TakeRequests(10), IsEmpty());
  EXPECT_EQ(metrics.Value("sluice_num_requests_queued"), 0);
  // A late result of the dispatcher changes nothing.
  Generation stopped;
  stopped.status = absl::CancelledError("cancelled");
  for (const Request& request : *requests) manager->Complete(request, stopped);
  const v1::Job job = WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(job.counts().completed(), 1);
  EXPECT_EQ(job.counts().failed(), 4999);
  EXPECT_EQ(job.counts().cancelled(), 4999);
  const std::vector<json> lines = Results(id);
  ASSERT_EQ(lines.size(), 5000u);
  EXPECT_TRUE(lines[4]["error"].is_null());
  EXPECT_EQ(ErrorCode(lines[4999]), "batch_cancelled");
  EXPECT_EQ(lines[4999]["custom_id"], "line-5000");
  // Cancelling again is no error and no change.
  EXPECT_EQ(manager->CancelJob(id)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(absl::IsNotFound(manager->CancelJob("job_99").status()));
}

TEST_F(JobManagerTest, ACompletedJobCannotBeCancelled) {
  const std::string id = Submit(Prompts(1))->id();
  AnswerAll();
  WaitForEnd(id);
  EXPECT_EQ(manager->CancelJob(id)->state(), v1::JOB_STATE_COMPLETED);
}

TEST_F(JobManagerTest, CancellingIsResumedAfterARestart) {
  const std::string id = Submit(Prompts(3))->id();
  Close();
  {
    auto db = SqliteDb::Open((options.state_dir / "sluice.db").string());
    ASSERT_TRUE((*db)->Exec("UPDATE jobs SET state = 6").ok());
  }
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(WaitForEnd(id).counts().cancelled(), 3);
}

TEST_F(JobManagerTest, DeletesEndedJobsOnly) {
  const std::string id = Submit(Prompts(3))->id();
  const absl::Status running = manager->DeleteJob(id);
  EXPECT_TRUE(absl::IsFailedPrecondition(running)) << running;
  AnswerAll();
  WaitForEnd(id);
  manager->WaitForChanges(absl::ZeroDuration());
  std::vector<std::string> changes;
  {
    Thread watcher("watcher", [&] {
      changes = manager->WaitForChanges(absl::Seconds(60));
    });
    EXPECT_TRUE(manager->DeleteJob(id).ok());
  }
  EXPECT_THAT(changes, ElementsAre(id));
  EXPECT_TRUE(absl::IsNotFound(manager->GetJob(id).status()));
  EXPECT_TRUE(absl::IsNotFound(manager->ReadResults(id, 0, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(manager->DeleteJob(id)));
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 0);
  EXPECT_EQ(metrics.Value("sluice_jobs{state=completed}"), 0);
}

TEST_F(JobManagerTest, ListsInPages) {
  std::vector<std::string> ids;
  for (int i = 0; i < 7; ++i) ids.push_back(Submit(Prompts(1))->id());
  v1::ListJobsRequest request;
  request.set_page_size(3);
  std::vector<std::string> listed;
  std::vector<int> sizes;
  while (true) {
    auto page = manager->ListJobs(request);
    ASSERT_TRUE(page.ok()) << page.status();
    sizes.push_back(page->jobs_size());
    for (const v1::Job& job : page->jobs()) listed.push_back(job.id());
    if (page->next_page_token().empty()) break;
    request.set_page_token(page->next_page_token());
  }
  EXPECT_THAT(sizes, ElementsAre(3, 3, 1));
  std::reverse(ids.begin(), ids.end());
  EXPECT_EQ(listed, ids);
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 7);
  request.set_page_token("nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument(manager->ListJobs(request).status()));
  request.Clear();
  request.set_page_size(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(manager->ListJobs(request).status()));
}

TEST_F(JobManagerTest, ReadsResultsFromAnOffset) {
  const std::string id = Submit(Prompts(4))->id();
  EXPECT_TRUE(manager->ReadResults(id, 0, 1000)->results().empty());
  auto requests = manager->TakeRequests(10);
  for (const int i : {0, 1, 3}) {
    manager->Complete((*requests)[i], Answer((*requests)[i]));
  }
  manager->Flush();
  auto chunk = manager->ReadResults(id, 1, 1 << 20);
  EXPECT_EQ(chunk->results_size(), 1);
  EXPECT_EQ(chunk->next_offset(), 2);
  manager->Complete((*requests)[2], Answer((*requests)[2]));
  manager->Flush();
  chunk = manager->ReadResults(id, 2, 1);
  EXPECT_EQ(chunk->results_size(), 1);
  EXPECT_EQ(manager->ReadResults(id, 99, 1)->next_offset(), 99);
  EXPECT_TRUE(
      absl::IsInvalidArgument(manager->ReadResults(id, -1, 1).status()));
}

TEST_F(JobManagerTest, WatchersSeeProgressDetailAndReplays) {
  const std::string id = Submit(Prompts(2))->id();
  EXPECT_THAT(manager->WaitForChanges(absl::Seconds(30)), ElementsAre(id));
  EXPECT_THAT(manager->WaitForChanges(absl::ZeroDuration()), IsEmpty());
  manager->ReportDetail("waiting for workers: 0 of 1 registered");
  EXPECT_THAT(manager->WaitForChanges(absl::Seconds(30)), ElementsAre(id));
  EXPECT_EQ(Get(id).detail(), "waiting for workers: 0 of 1 registered");
  manager->ReportDetail("");
  auto requests = manager->TakeRequests(2);
  EXPECT_THAT(manager->WaitForChanges(absl::ZeroDuration()), ElementsAre(id));
  manager->ReportProgress((*requests)[0].job, {2, 0, 0});
  clock.Advance(absl::Seconds(2));
  manager->ReportProgress((*requests)[0].job, {2, 40, 0, 3});
  // Progress is told soon, and once.
  EXPECT_THAT(manager->WaitForChanges(absl::Seconds(30)), ElementsAre(id));
  EXPECT_THAT(manager->WaitForChanges(absl::ZeroDuration()), IsEmpty());
  v1::Job job = Get(id);
  EXPECT_EQ(job.detail(), "");
  EXPECT_EQ(job.counts().running(), 2);
  EXPECT_EQ(job.generated_so_far(), 40);
  EXPECT_EQ(job.replays(), 3);
  EXPECT_EQ(job.generation_tokens_per_second(), 20);
  manager->ReportProgress((*requests)[0].job, {0, 0, 0});
  EXPECT_EQ(Get(id).generation_tokens_per_second(), 0);
}

TEST_F(JobManagerTest, ProgressIsToldInTokens) {
  // Four prompts of 3 tokens that may get 10 each.
  v1::JobSpec spec;
  spec.mutable_defaults()->set_max_tokens(10);
  std::string lines = Prompts(4);
  lines += "{}\n";
  const std::string id = Submit(lines, spec)->id();
  EXPECT_EQ(Get(id).processed_tokens(), 0);
  EXPECT_EQ(Get(id).expected_tokens(), 52);
  EXPECT_EQ(Get(id).default_max_tokens(), 10);

  auto requests = manager->TakeRequests(4);
  const JobId job = (*requests)[0].job;
  manager->ReportProgress(job, {4, 4, 12});
  EXPECT_EQ(Get(id).processed_tokens(), 16);
  EXPECT_EQ(Get(id).expected_tokens(), 52);
  // Two end after 2 tokens: (4 + 0) of (20 + 0), and 2 of the other 2.
  manager->Complete((*requests)[0], Answer((*requests)[0]));
  manager->Complete((*requests)[1], Answer((*requests)[1]));
  manager->Flush();
  EXPECT_EQ(Get(id).processed_tokens(), 16);
  EXPECT_EQ(Get(id).expected_tokens(), 16 + 4);
  manager->ReportProgress(job, {2, 4, 0});
  EXPECT_EQ(Get(id).processed_tokens(), 20);
  // (4 + 4) of (20 + 4) is the share of 20 tokens that are expected; 4 exist.
  EXPECT_EQ(Get(id).expected_tokens(), 20 + 6 - 4);

  // Running requests begin again; results stay.
  Reopen();
  EXPECT_EQ(Get(id).processed_tokens(), 10);
  EXPECT_EQ(Get(id).expected_tokens(), 10 + 6 + 4);
  requests = manager->TakeRequests(4);
  ASSERT_EQ(requests->size(), 2u);
  Generation failed;
  failed.status = absl::ResourceExhaustedError("too long");
  manager->Complete((*requests)[0], std::move(failed));
  manager->Flush();
  EXPECT_EQ(Get(id).expected_tokens(), 10 + 3 + 2);
  manager->Complete((*requests)[1], Answer((*requests)[1]));
  WaitForEnd(id);
  EXPECT_EQ(Get(id).processed_tokens(), 15);
  EXPECT_EQ(Get(id).expected_tokens(), 15);
}

TEST_F(JobManagerTest, CountsAnswersThatTheDefaultOfMaxTokensEnded) {
  const std::string lines = R"({"prompt":"a"})"
                            "\n"
                            R"({"prompt":"b","max_tokens":2})"
                            "\n"
                            R"({"prompt":"c"})"
                            "\n";
  const std::string id = Submit(lines)->id();
  EXPECT_EQ(Get(id).default_max_tokens(), options.requests.default_max_tokens);
  EXPECT_EQ(Get(id).requests_by_default(), 2);
  auto requests = manager->TakeRequests(4);
  for (size_t i = 0; i < 3; ++i) {
    Generation generation = Answer((*requests)[i]);
    if (i == 2) generation.finish_reason = FinishReason::kStop;
    manager->Complete((*requests)[i], std::move(generation));
  }
  EXPECT_EQ(WaitForEnd(id).answers_cut_by_default(), 1);
  Reopen();
  EXPECT_EQ(Get(id).answers_cut_by_default(), 1);

  // If the job has a max_tokens, nothing was cut by default.
  v1::JobSpec spec;
  spec.mutable_defaults()->set_max_tokens(2);
  const std::string said = Submit(Prompts(1), spec)->id();
  AnswerAll();
  EXPECT_EQ(Get(said).requests_by_default(), 0);
  EXPECT_EQ(WaitForEnd(said).answers_cut_by_default(), 0);
}

TEST_F(JobManagerTest, OnWorkComesWithEachJob) {
  std::atomic<int> calls = 0;
  manager->SetListener({.on_work = [&] { ++calls; }});
  Submit(Prompts(1)).IgnoreError();
  Submit(Prompts(1)).IgnoreError();
  EXPECT_EQ(calls, 2);
}

TEST_F(JobManagerTest, LongPromptsAreReadAFewMiBAtATime) {
  constexpr int kRequests = 12, kTokens = 1 << 20;
  options.requests.max_model_len = 2 * kTokens;
  Reopen();
  std::string input;
  for (int i = 0; i < kRequests; ++i) {
    absl::StrAppend(&input, "{\"prompt\":\"", std::string(kTokens, 'a' + i),
                    "\",\"max_tokens\":1}\n");
  }
  const auto job = Submit(input);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(manager->PendingLengths()->requests(), kRequests);
  const auto taken = manager->TakeRequests(100);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_EQ(taken->size(), size_t{kRequests});
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ((*taken)[i].index, i);
  EXPECT_TRUE(manager->TakeRequests(100)->empty());
  ASSERT_TRUE(manager->CancelJob(job->id()).ok());
}

TEST_F(JobManagerTest, EveryOneAtOnce) {
  constexpr int kJobs = 3, kRequests = 300;
  std::atomic<bool> done = false;
  std::atomic<int> answered = 0;
  std::vector<std::string> ids(kJobs);
  {
    Thread uploads[kJobs];
    for (int i = 0; i < kJobs; ++i) {
      uploads[i] = Thread(
          "upload", [&, i] { ids[i] = Submit(Prompts(kRequests))->id(); });
    }
    Thread takers[2];
    for (Thread& taker : takers) {
      taker = Thread("taker", [&] {
        while (answered < kJobs * kRequests) {
          auto requests = manager->TakeRequests(7);
          for (const Request& request : *requests) {
            manager->ReportProgress(request.job, {1, 2, 3});
            manager->Complete(request, Answer(request));
            ++answered;
          }
        }
      });
    }
    Thread reader("reader", [&] {
      while (!done) {
        auto jobs = manager->ListJobs({});
        for (const v1::Job& job : jobs->jobs()) {
          manager->ReadResults(job.id(), 0, 1000).IgnoreError();
        }
        manager->WaitForChanges(absl::Milliseconds(1));
      }
    });
    for (Thread& upload : uploads) upload.Join();
    for (Thread& taker : takers) taker.Join();
    for (const std::string& id : ids) {
      EXPECT_EQ(WaitForEnd(id).counts().completed(), kRequests);
    }
    done = true;
  }
  EXPECT_EQ(answered, kJobs * kRequests);
}

}  // namespace
}  // namespace sluice
