// The service as a gRPC client sees it, over a real port: a coordinator, and
// for some tests workers, in this process.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "common/threads/thread.h"
#include "coordinator/coordinator.h"
#include "coordinator/jobs/job_manager.h"
#include "proto/grpc_endpoint.h"
#include "server/coordinator_server.h"
#include "server/job_client.h"
#include "server/local_cluster.h"
#include "sluice/v1/cluster.grpc.pb.h"
#include "sluice/v1/jobs.grpc.pb.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kModel = TestsDir() + "/models/llama-kjv";

class ServiceTest : public ::testing::Test {
 protected:
  // A coordinator without workers: jobs are accepted and wait.
  void SetUp() override {
    metrics_ = CreateNullMetrics();
    fs::create_directories(dir_.path() / "inputs");
    Coordinator::Options options;
    options.model_dir = kModel;
    options.state_dir = dir_.path() / "state";
    options.input_root = dir_.path() / "inputs";
    options.metrics = metrics_.get();
    auto coordinator = Coordinator::Create(options);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    coordinator_ = *std::move(coordinator);
    auto server = CoordinatorServer::Start(coordinator_.get(), "127.0.0.1:0");
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = OpenChannel(ChannelKind::kClient,
                           "127.0.0.1:" + std::to_string(server_->port()));
    jobs_ = v1::JobService::NewStub(channel_);
  }

  grpc::Status Create(const v1::JobSpec& spec,
                      const std::vector<std::string>& pieces, bool commit,
                      v1::Job* job) {
    grpc::ClientContext context;
    auto writer = jobs_->CreateJob(&context, job);
    v1::CreateJobRequest message;
    *message.mutable_spec() = spec;
    writer->Write(message);
    for (const std::string& piece : pieces) {
      message.set_data(piece);
      writer->Write(message);
    }
    if (commit) {
      message.set_commit(true);
      writer->Write(message);
    }
    writer->WritesDone();
    return writer->Finish();
  }

  int64_t CountJobs() {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    EXPECT_TRUE(jobs_->ListJobs(&context, {}, &response).ok());
    return response.jobs_size();
  }

  TempDir dir_;
  std::unique_ptr<MetricsRegistry> metrics_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

// Sends one message to a method by name and returns the one it answers, both as
// wire bytes: the client needs no stubs of gRPC's own services.
std::string RawCall(const std::shared_ptr<grpc::Channel>& channel,
                    const std::string& method, const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  grpc::Slice slice(request);
  grpc::ByteBuffer message(&slice, 1);
  auto call = stub.PrepareUnaryCall(&context, method, message, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag;
  bool ok;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(response.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& s : slices) {
    bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return bytes;
}

// A string as field `number` of a protobuf message; short strings only.
std::string StringField(int number, const std::string& value) {
  return std::string(1, static_cast<char>(number << 3 | 2)) +
         static_cast<char>(value.size()) + value;
}

TEST_F(ServiceTest, HealthAndReflectionAnswer) {
  // HealthCheckResponse{status: SERVING} on the wire.
  const std::string serving("\x08\x01"), not_serving("\x08\x02");
  // Without a worker no job can run, but jobs may come, and workers.
  EXPECT_EQ(
      RawCall(channel_, "/grpc.health.v1.Health/Check", StringField(1, "")),
      not_serving);
  for (const char* service :
       {"sluice.v1.JobService", "sluice.v1.ClusterService",
        "sluice.v1.WorkerService"}) {
    EXPECT_EQ(RawCall(channel_, "/grpc.health.v1.Health/Check",
                      StringField(1, service)),
              serving)
        << service;
  }
  // ServerReflectionRequest{list_services: ""}.
  const std::string services =
      RawCall(channel_,
              "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              StringField(7, ""));
  EXPECT_THAT(services, HasSubstr("sluice.v1.JobService"));
  EXPECT_THAT(services, HasSubstr("sluice.v1.ClusterService"));
  EXPECT_THAT(services, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(ServiceTest, UploadInAnyCutIsOneJob) {
  const std::string text =
      "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\r\n{\"prompt\":\"c\"}";
  std::vector<std::string> bytes;
  for (char c : text) bytes.emplace_back(1, c);
  v1::Job job;
  ASSERT_TRUE(Create({}, bytes, true, &job).ok());
  EXPECT_EQ(job.counts().total(), 3);
  EXPECT_EQ(job.counts().failed(), 0);
  EXPECT_EQ(job.state(), v1::JOB_STATE_IN_PROGRESS);
}

TEST_F(ServiceTest, UploadWithoutCommitLeavesNoJob) {
  v1::Job job;
  const grpc::Status status = Create({}, {"{\"prompt\":\"a\"}\n"}, false, &job);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.error_message(), HasSubstr("commit"));
  EXPECT_EQ(CountJobs(), 0);
}

TEST_F(ServiceTest, CancelledUploadLeavesNoJob) {
  {
    grpc::ClientContext context;
    v1::Job job;
    auto writer = jobs_->CreateJob(&context, &job);
    v1::CreateJobRequest message;
    message.mutable_spec();
    writer->Write(message);
    message.set_data("{\"prompt\":\"a\"}\n");
    writer->Write(message);
    context.TryCancel();
    EXPECT_FALSE(writer->Finish().ok());
  }
  EXPECT_EQ(CountJobs(), 0);
}

TEST_F(ServiceTest, RequestIdMakesOneJob) {
  v1::JobSpec spec;
  spec.set_request_id("nightly-1");
  v1::Job first, second;
  ASSERT_TRUE(Create(spec, {"{\"prompt\":\"a\"}\n"}, true, &first).ok());
  ASSERT_TRUE(Create(spec, {"{\"prompt\":", "\"a\"}\n"}, true, &second).ok());
  EXPECT_EQ(first.id(), second.id());
  const grpc::Status other =
      Create(spec, {"{\"prompt\":\"b\"}\n"}, true, &second);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(other.error_message(), HasSubstr(first.id()));
  EXPECT_EQ(CountJobs(), 1);
}

TEST_F(ServiceTest, FirstMessageMustBeSpec) {
  grpc::ClientContext context;
  v1::Job job;
  auto writer = jobs_->CreateJob(&context, &job);
  v1::CreateJobRequest message;
  message.set_data("{}");
  writer->Write(message);
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServiceTest, EmptyUploadIsRefused) {
  v1::Job job;
  EXPECT_EQ(Create({}, {}, true, &job).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(CountJobs(), 0);
}

TEST_F(ServiceTest, UnknownModelIsRefused) {
  v1::JobSpec spec;
  spec.set_model("gpt-17");
  v1::Job job;
  const grpc::Status status =
      Create(spec, {"{\"prompt\":\"a\"}\n"}, true, &job);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.error_message(), HasSubstr("gpt-17"));
}

// A result line may be larger than a message, as that of a long scored prompt.
TEST_F(ServiceTest, ResultLinesOfAnySizeArrive) {
  v1::Job job;
  ASSERT_TRUE(Create({},
                     {"{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n"
                      "{\"prompt\":\"c\"}\n"},
                     true, &job)
                  .ok());
  JobManager& jobs = coordinator_->jobs();
  auto requests = jobs.TakeRequests(3);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  const size_t sizes[] = {1, 9 << 20, 3};
  for (size_t i = 0; i < 3; ++i) {
    Generation generation;
    for (size_t n = 0; n < sizes[i]; ++n) {
      generation.text += static_cast<char>('a' + n * 7 % 26);
    }
    jobs.Complete((*requests)[i], std::move(generation));
  }
  jobs.Flush();
  const auto client = JobClient::FromChannel(channel_, "here");
  for (const int64_t offset : {0, 1, 2}) {
    int64_t next = offset;
    const absl::Status status = client->StreamResults(
        job.id(), offset, true, [&](const v1::Result& result) {
          EXPECT_EQ(result.index(), next);
          EXPECT_FALSE(result.is_error());
          const auto line = nlohmann::json::parse(result.line());
          const std::string text =
              line["response"]["body"]["choices"][0]["text"];
          EXPECT_EQ(text.size(), sizes[next]);
          EXPECT_EQ(text.back(),
                    static_cast<char>('a' + (sizes[next] - 1) * 7 % 26));
          ++next;
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(next, 3);
  }
  // On the wire no message is larger than a client takes.
  grpc::ClientContext context;
  v1::StreamResultsRequest request;
  request.set_id(job.id());
  auto reader = jobs_->StreamResults(&context, request);
  v1::ResultChunk chunk;
  int64_t messages = 0, ended = 0;
  while (reader->Read(&chunk)) {
    ++messages;
    EXPECT_LT(chunk.ByteSizeLong(), size_t{2} << 20);
    for (const v1::Result& result : chunk.results()) ended += !result.more();
    // A client that breaks off resumes with the line that was not complete.
    EXPECT_EQ(chunk.next_offset(), ended);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_GT(messages, 9);
  EXPECT_EQ(ended, 3);
}

TEST_F(ServiceTest, InputPathsStayUnderTheRoot) {
  std::ofstream(dir_.path() / "inputs" / "in.jsonl")
      << "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n";
  std::ofstream(dir_.path() / "secret.jsonl") << "{\"prompt\":\"x\"}\n";
  fs::create_symlink(dir_.path() / "secret.jsonl",
                     dir_.path() / "inputs" / "link.jsonl");
  v1::JobSpec spec;
  v1::Job job;
  spec.set_input_path("in.jsonl");
  ASSERT_TRUE(Create(spec, {}, true, &job).ok());
  EXPECT_EQ(job.counts().total(), 2);
  for (const std::string bad :
       {"../secret.jsonl", "link.jsonl", "/etc/passwd", "missing.jsonl", "."}) {
    spec.set_input_path(bad);
    EXPECT_FALSE(Create(spec, {}, true, &job).ok()) << bad;
  }
  EXPECT_EQ(CountJobs(), 1);
}

TEST_F(ServiceTest, UnknownJobsAreNotFound) {
  for (const std::string id : {"job_999", "", "nonsense", "job_-1"}) {
    v1::GetJobRequest get;
    get.set_id(id);
    v1::Job job;
    grpc::ClientContext c1, c2, c3;
    EXPECT_EQ(jobs_->GetJob(&c1, get, &job).error_code(),
              grpc::StatusCode::NOT_FOUND)
        << id;
    v1::WatchJobRequest watch;
    watch.set_id(id);
    auto watching = jobs_->WatchJob(&c2, watch);
    EXPECT_FALSE(watching->Read(&job));
    EXPECT_EQ(watching->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
    v1::StreamResultsRequest results;
    results.set_id(id);
    auto reading = jobs_->StreamResults(&c3, results);
    v1::ResultChunk chunk;
    EXPECT_FALSE(reading->Read(&chunk));
    EXPECT_EQ(reading->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  }
}

TEST_F(ServiceTest, PagesThroughJobsNewestFirst) {
  std::set<std::string> made;
  for (int i = 0; i < 7; ++i) {
    v1::Job job;
    ASSERT_TRUE(Create({}, {"{\"prompt\":\"a\"}\n"}, true, &job).ok());
    made.insert(job.id());
  }
  v1::ListJobsRequest request;
  request.set_page_size(3);
  std::set<std::string> seen;
  std::vector<int> sizes;
  do {
    grpc::ClientContext context;
    v1::ListJobsResponse page;
    ASSERT_TRUE(jobs_->ListJobs(&context, request, &page).ok());
    sizes.push_back(page.jobs_size());
    for (const v1::Job& job : page.jobs()) seen.insert(job.id());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, made);
  EXPECT_EQ(sizes, (std::vector<int>{3, 3, 1}));
  request.set_page_token("garbage");
  grpc::ClientContext context;
  v1::ListJobsResponse page;
  EXPECT_EQ(jobs_->ListJobs(&context, request, &page).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServiceTest, WatchTellsWhyAJobWaitsAndEndsWithCancel) {
  v1::Job job;
  ASSERT_TRUE(Create({}, {"{\"prompt\":\"a\"}\n"}, true, &job).ok());
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_id(job.id());
  auto watching = jobs_->WatchJob(&context, request);
  v1::Job seen;
  ASSERT_TRUE(watching->Read(&seen));
  while (seen.detail().empty()) ASSERT_TRUE(watching->Read(&seen));
  EXPECT_THAT(seen.detail(), HasSubstr("waiting for workers: 0 of 1"));
  v1::CancelJobRequest cancel;
  cancel.set_id(job.id());
  grpc::ClientContext cancel_context;
  ASSERT_TRUE(jobs_->CancelJob(&cancel_context, cancel, &seen).ok());
  while (watching->Read(&seen)) {
  }
  EXPECT_TRUE(watching->Finish().ok());
  EXPECT_EQ(seen.state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(seen.counts().failed(), 1);
}

TEST_F(ServiceTest, RestartKeepsJobs) {
  v1::Job job;
  ASSERT_TRUE(Create({}, {"{\"prompt\":\"a\"}\nnot JSON\n"}, true, &job).ok());
  server_.reset();
  coordinator_.reset();
  // The same state directory, as after a crash or an upgrade.
  Coordinator::Options options;
  options.model_dir = kModel;
  options.state_dir = dir_.path() / "state";
  options.metrics = metrics_.get();
  auto coordinator = Coordinator::Create(options);
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  auto again = (*coordinator)->jobs().GetJob(job.id());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->counts().total(), 2);
  EXPECT_EQ(again->counts().failed(), 1);
  // A second coordinator on the same directory is refused.
  auto second = Coordinator::Create(options);
  EXPECT_FALSE(second.ok());
}

LocalCluster::Options LocalOptions(const TempDir& dir, int workers,
                                   MetricsRegistry* metrics) {
  LocalCluster::Options options;
  options.coordinator.model_dir = kModel;
  options.coordinator.state_dir = dir.path() / "state";
  options.coordinator.timeouts.settle_time = absl::ZeroDuration();
  options.num_workers = workers;
  options.machine.host_memory = "1GiB";
  options.metrics = metrics;
  return options;
}

// A stop may come at any time, on any thread. A call on the channel of a server
// of this process that has ended would crash.
TEST(LocalClusterTest, AStopEndsTheCallsThatRunAndNoneBeginsAfterIt) {
  TempDir dir;
  auto metrics = CreateNullMetrics();
  auto cluster = LocalCluster::Start(LocalOptions(dir, 1, metrics.get()));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  JobClient& client = (*cluster)->client();
  std::stringstream input;
  for (int i = 0; i < 200; ++i) {
    input << "{\"prompt\":\"And\",\"max_tokens\":64}\n";
  }
  auto job = client.CreateJob({}, &input, nullptr);
  ASSERT_TRUE(job.ok()) << job.status();
  Thread stopper;
  const auto watched = client.WatchJob(job->id(), [&](const v1::Job&) {
    if (!stopper.joinable()) {
      stopper = Thread("stop", [&] { (*cluster)->Stop(); });
    }
    return true;
  });
  EXPECT_TRUE(absl::IsCancelled(watched.status())) << watched.status();
  stopper.Join();
  const auto expect_no_call = [&] {
    const auto on_result = [](const v1::Result&) { return absl::OkStatus(); };
    EXPECT_TRUE(absl::IsCancelled(client.GetJob(job->id()).status()));
    EXPECT_TRUE(
        absl::IsCancelled(client.StreamResults(job->id(), 0, true, on_result)));
  };
  expect_no_call();
  (*cluster)->Shutdown();
  expect_no_call();
  EXPECT_TRUE((*cluster)->coordinator().jobs().GetJob(job->id()).ok());
}

TEST(LocalClusterTest, GeneratesOverThreeWorkersAndResumesResultsAtAnOffset) {
  TempDir dir;
  auto metrics = CreateNullMetrics();
  const LocalCluster::Options options = LocalOptions(dir, 3, metrics.get());
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  JobClient& client = (*cluster)->client();
  std::stringstream input;
  for (int i = 0; i < 20; ++i) {
    input << "{\"prompt\":\"And God said " << i << "\",\"max_tokens\":4}\n";
  }
  auto job = client.CreateJob({}, &input, nullptr);
  ASSERT_TRUE(job.ok()) << job.status();
  std::vector<int64_t> indices;
  ASSERT_TRUE(client
                  .StreamResults(job->id(), 5, true,
                                 [&](const v1::Result& result) {
                                   EXPECT_FALSE(result.is_error());
                                   indices.push_back(result.index());
                                   return absl::OkStatus();
                                 })
                  .ok());
  std::vector<int64_t> expected;
  for (int i = 5; i < 20; ++i) expected.push_back(i);
  EXPECT_EQ(indices, expected);
  auto state = client.GetClusterState();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->workers_size(), 3);
  for (const auto& worker : state->workers()) {
    EXPECT_EQ(worker.state(), v1::WORKER_STATE_READY);
    EXPECT_EQ(worker.layer_end() - worker.layer_begin(), 2);
  }
}

}  // namespace
}  // namespace sluice
