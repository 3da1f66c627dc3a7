// A coordinator's server with more clients than it has threads, over a real
// port, in this process.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_state.h"
#include "proto/grpc_endpoint.h"
#include "server/cluster_service.h"
#include "server/coordinator_server.h"
#include "sluice/v1/cluster.grpc.pb.h"
#include "sluice/v1/jobs.grpc.pb.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kModel = TestsDir() + "/models/llama-kjv";

// None of these tests takes so long, on any machine.
constexpr absl::Duration kDeadline = absl::Seconds(120);

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + kDeadline));
}

// Records a measured time in the test's log, and in its XML. Nothing is
// demanded of it.
void RecordSeconds(const std::string& what, absl::Duration took) {
  std::cout << what << ": " << took << "\n";
  testing::Test::RecordProperty(what + "_seconds",
                                absl::StrCat(absl::ToDoubleSeconds(took)));
}

// A worker as a machine runs it, from here to the end of the scope.
class WorkerProcess {
 public:
  explicit WorkerProcess(int coordinator_port) {
    std::vector<std::string> arguments = {
        BinDir() + "/sluice-worker",
        "--model",
        kModel,
        "--coordinator",
        absl::StrCat("127.0.0.1:", coordinator_port),
        "--name",
        "w",
        "--port",
        "0",
        "--metrics-port",
        "0",
        "--threads",
        "1",
        "--host-memory",
        "512MiB",
        "--no-profile"};
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const int error = posix_spawn(&pid_, pointers[0], nullptr, nullptr,
                                  pointers.data(), environ);
    EXPECT_EQ(error, 0) << pointers[0];
    if (error != 0) pid_ = 0;
  }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess() {
    if (pid_ == 0) return;
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

int ThreadsOfThisProcess() {
  int threads = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/task")) {
    threads += entry.is_directory();
  }
  return threads;
}

class PressureTest : public ::testing::Test {
 protected:
  ~PressureTest() override {
    server_.reset();
    coordinator_.reset();
  }

  void Start(const JobServiceImpl::Options& server_options) {
    Coordinator::Options options;
    options.model_dir = kModel;
    options.state_dir = directory_ / "state";
    auto coordinator = Coordinator::Create(options);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    coordinator_ = *std::move(coordinator);
    auto server = CoordinatorServer::Start(coordinator_.get(), "127.0.0.1:0",
                                           server_options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    jobs_ = v1::JobService::NewStub(Channel());
  }

  // Opens a connection of the caller's own.
  std::shared_ptr<grpc::Channel> Channel() {
    return OpenChannel(ChannelKind::kWorker,
                       "127.0.0.1:" + std::to_string(server_->port()));
  }

  v1::Job Submit(const std::string& lines) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::Job job;
    auto writer = jobs_->CreateJob(&context, &job);
    v1::CreateJobRequest message;
    message.mutable_spec();
    writer->Write(message);
    message.set_data(lines);
    writer->Write(message);
    message.set_commit(true);
    writer->Write(message);
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }

  // An upload by another client, message by message.
  struct Upload {
    grpc::ClientContext context;
    v1::Job job;
    std::unique_ptr<grpc::ClientWriter<v1::CreateJobRequest>> writer;
    bool Write(const v1::CreateJobRequest& message) {
      return writer->Write(message);
    }
    bool WriteData(const std::string& data) {
      v1::CreateJobRequest message;
      message.set_data(data);
      return writer->Write(message);
    }
    void WriteCommit() {
      v1::CreateJobRequest message;
      message.set_commit(true);
      writer->Write(message);
      writer->WritesDone();
    }
    grpc::Status Commit() {
      WriteCommit();
      return writer->Finish();
    }
  };
  std::unique_ptr<Upload> Begin(const std::string& request_id) {
    auto upload = std::make_unique<Upload>();
    SetDeadline(&upload->context);
    upload->writer = jobs_->CreateJob(&upload->context, &upload->job);
    v1::CreateJobRequest message;
    message.mutable_spec()->set_request_id(request_id);
    upload->Write(message);
    return upload;
  }

  const TempDir temp_;
  const fs::path& directory_ = temp_.path();
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

TEST_F(PressureTest, SilentUploadsAndWatchersKeepNobodyOut) {
  constexpr int kUploads = 600, kWatchers = 700, kChannels = 4;
  Start({});
  const v1::Job job = Submit("{\"prompt\":\"a\"}\n");
  std::vector<std::unique_ptr<v1::JobService::Stub>> stubs;
  for (int i = 0; i < kChannels; ++i) {
    stubs.push_back(v1::JobService::NewStub(Channel()));
  }
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return ok;
  };
  const int threads_before = ThreadsOfThisProcess();

  struct Silent {
    grpc::ClientContext context;
    v1::Job job;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncWriter<v1::CreateJobRequest>> writer;
  };
  std::deque<Silent> uploads(kUploads);
  v1::CreateJobRequest spec;
  spec.mutable_spec();
  for (int i = 0; i < kUploads; ++i) {
    Silent& upload = uploads[i];
    upload.writer = stubs[i % kChannels]->AsyncCreateJob(
        &upload.context, &upload.job, &queue, nullptr);
  }
  for (int i = 0; i < kUploads; ++i) EXPECT_TRUE(next());
  for (Silent& upload : uploads) upload.writer->Write(spec, nullptr);
  for (int i = 0; i < kUploads; ++i) EXPECT_TRUE(next());

  struct Watch {
    grpc::ClientContext context;
    v1::Job job;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncReader<v1::Job>> reader;
  };
  std::deque<Watch> watches(kWatchers);
  v1::WatchJobRequest request;
  request.set_id(job.id());
  for (int i = 0; i < kWatchers; ++i) {
    Watch& watch = watches[i];
    watch.reader = stubs[i % kChannels]->AsyncWatchJob(&watch.context, request,
                                                       &queue, nullptr);
  }
  for (int i = 0; i < kWatchers; ++i) EXPECT_TRUE(next());
  // All watchers are served: each gets the job.
  for (Watch& watch : watches) watch.reader->Read(&watch.job, nullptr);
  for (int i = 0; i < kWatchers; ++i) EXPECT_TRUE(next());
  for (Watch& watch : watches) EXPECT_EQ(watch.job.id(), job.id());

  // No watcher has a thread to itself.
  EXPECT_LT(ThreadsOfThisProcess(), threads_before + 50);

  // Calls are answered, and jobs accepted.
  for (int i = 0; i < 10; ++i) {
    grpc::ClientContext get;
    SetDeadline(&get);
    v1::GetJobRequest by_id;
    by_id.set_id(job.id());
    v1::Job got;
    const absl::Time asked = absl::Now();
    EXPECT_TRUE(jobs_->GetJob(&get, by_id, &got).ok());
    RecordSeconds("status_" + std::to_string(i), absl::Now() - asked);
    EXPECT_EQ(got.id(), job.id());
  }
  EXPECT_NE(Submit("{\"prompt\":\"b\"}\n").id(), job.id());

  // A worker attaches, and computes; the watchers hear of it, all of them.
  const absl::Time started = absl::Now();
  const WorkerProcess worker(server_->port());
  const auto cluster = v1::ClusterService::NewStub(Channel());
  v1::ClusterState state;
  while (state.workers_size() == 0 && absl::Now() < started + kDeadline) {
    grpc::ClientContext look;
    SetDeadline(&look);
    ASSERT_TRUE(cluster->GetClusterState(&look, {}, &state).ok());
  }
  RecordSeconds("attach", absl::Now() - started);
  ASSERT_EQ(state.workers_size(), 1);
  EXPECT_EQ(state.workers(0).name(), "w");
  for (Watch& watch : watches) {
    while (!IsTerminal(watch.job.state())) {
      watch.reader->Read(&watch.job, nullptr);
      ASSERT_TRUE(next());
    }
    watch.reader->Finish(&watch.status, nullptr);
    next();
    EXPECT_TRUE(watch.status.ok()) << watch.status.error_message();
    EXPECT_EQ(watch.job.state(), v1::JOB_STATE_COMPLETED);
  }
  for (Silent& upload : uploads) {
    upload.context.TryCancel();
    upload.writer->Finish(&upload.status, nullptr);
    next();
  }
  queue.Shutdown();
}

TEST_F(PressureTest, AnIdleUploadEndsAndFreesItsRequestId) {
  JobServiceImpl::Options options;
  options.uploads.idle_timeout = absl::Milliseconds(300);
  Start(options);
  auto silent = Begin("nightly");
  const grpc::Status status = silent->writer->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("nothing came for 300ms"));
  auto again = Begin("nightly");
  EXPECT_TRUE(again->WriteData("{\"prompt\":\"a\"}\n"));
  const grpc::Status committed = again->Commit();
  EXPECT_TRUE(committed.ok()) << committed.error_message();
}

TEST_F(PressureTest, AClientThatLeavesFreesItsRequestId) {
  Start({});
  Begin("nightly")->context.TryCancel();
  // The server hears of it sooner or later.
  grpc::Status status;
  for (int i = 0; i < 1000; ++i) {
    auto again = Begin("nightly");
    again->WriteData("{\"prompt\":\"a\"}\n");
    status = again->Commit();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(PressureTest, OpenStreamsAreBounded) {
  JobServiceImpl::Options options;
  options.uploads.max_uploads = 0;
  options.follow.max_watches = 1;
  Start(options);
  const grpc::Status upload = Begin("")->writer->Finish();
  EXPECT_EQ(upload.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(upload.error_message(), HasSubstr("0 uploads are open"));

  v1::Job job;
  auto direct = coordinator_->jobs().BeginUpload({});
  ASSERT_TRUE((*direct)->Append("{\"prompt\":\"a\"}").ok());
  job = *(*direct)->Commit();
  v1::WatchJobRequest request;
  request.set_id(job.id());
  std::deque<grpc::ClientContext> contexts(2);
  auto watching = jobs_->WatchJob(&contexts[0], request);
  v1::Job seen;
  EXPECT_TRUE(watching->Read(&seen));
  EXPECT_EQ(jobs_->WatchJob(&contexts[1], request)->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // One that ends makes room for one, as soon as the server hears of it.
  for (int i = 0; i < 3; ++i) {
    contexts[0].TryCancel();
    watching->Finish();
    const absl::Time end = absl::Now() + kDeadline;
    do {
      absl::SleepFor(absl::Milliseconds(1));
      contexts.emplace_front();
      SetDeadline(&contexts[0]);
      watching = jobs_->WatchJob(&contexts[0], request);
    } while (!watching->Read(&seen) && absl::Now() < end);
    EXPECT_EQ(seen.id(), job.id());
    seen.Clear();
  }
  contexts[0].TryCancel();
  watching->Finish();
}

TEST_F(PressureTest, LongLinesComeOneAfterAnother) {
  JobServiceImpl::Options options;
  options.uploads.long_line_bytes = 1000;
  options.uploads.max_long_lines = 1;
  Start(options);
  const std::string part(800, 'a');
  std::vector<std::unique_ptr<Upload>> uploads;
  for (int i = 0; i < 5; ++i) {
    uploads.push_back(Begin(""));
    Upload& upload = *uploads.back();
    EXPECT_TRUE(upload.WriteData("{\"prompt\":\"short\"}\n{\"prompt\":\""));
    EXPECT_TRUE(upload.WriteData(part));
    EXPECT_TRUE(upload.WriteData(part));
  }
  // Uploads that leave while they wait, or have their turn, keep nobody
  // waiting.
  uploads[0]->context.TryCancel();
  uploads[1]->context.TryCancel();
  for (int i = 2; i < 5; ++i) {
    uploads[i]->WriteData("\"}\n");
    uploads[i]->WriteCommit();
  }
  for (int i = 0; i < 5; ++i) {
    const grpc::Status status = uploads[i]->writer->Finish();
    if (i < 2) continue;
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(uploads[i]->job.counts().total(), 2);
  }
}

TEST_F(PressureTest, ALongLineThatTakesTooLongKeepsNobodyWaiting) {
  JobServiceImpl::Options options;
  options.uploads.long_line_bytes = 1000;
  options.uploads.max_long_lines = 1;
  options.uploads.long_line_timeout = absl::Milliseconds(300);
  Start(options);
  const std::string part(2000, 'a');
  std::unique_ptr<Upload> uploads[] = {Begin(""), Begin("")};
  for (auto& upload : uploads) {
    EXPECT_TRUE(upload->WriteData("{\"prompt\":\"" + part));
  }
  // Both uploads say that they are there, and send nothing, until one is ended:
  // that whose turn it is.
  while (uploads[0]->WriteData("")) {
    absl::SleepFor(absl::Milliseconds(20));
    if (!uploads[1]->WriteData("")) {
      std::swap(uploads[0], uploads[1]);
      break;
    }
  }
  const grpc::Status ended = uploads[0]->writer->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(ended.error_message(), HasSubstr("others waited"));
  // The other has its turn, and no hurry.
  absl::SleepFor(2 * options.uploads.long_line_timeout);
  EXPECT_TRUE(uploads[1]->WriteData("\"}\n"));
  const grpc::Status status = uploads[1]->Commit();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(uploads[1]->job.counts().total(), 1);
}

TEST(ClusterPageTest, HoldsAsManyWorkersAsFit) {
  v1::ClusterState all;
  for (const int id : {3, 1, 2, 5, 4}) {
    v1::WorkerInfo* worker = all.add_workers();
    worker->set_id(id);
    worker->set_profile(std::string(1000, 'p'));
  }
  std::vector<int64_t> ids;
  int pages = 0;
  for (int64_t after = 0;; ++pages) {
    v1::ClusterState page = all;
    TakePage(after, 2500, &page);
    EXPECT_LE(page.ByteSizeLong(), 2600u);
    for (const auto& worker : page.workers()) ids.push_back(worker.id());
    after = page.next_after();
    if (after == 0) break;
  }
  EXPECT_EQ(pages, 2);
  EXPECT_THAT(ids, testing::ElementsAre(1, 2, 3, 4, 5));
  // One that does not fit comes alone, without what is large.
  TakePage(2, 1, &all);
  EXPECT_EQ(all.workers_size(), 1);
  EXPECT_EQ(all.workers(0).id(), 3);
  EXPECT_EQ(all.workers(0).profile(), "");
  EXPECT_EQ(all.next_after(), 3);
}

}  // namespace
}  // namespace sluice
