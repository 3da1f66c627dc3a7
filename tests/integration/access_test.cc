// Who may call what, over real ports: every method of every service, with every
// kind of credential.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/threads/clock.h"
#include "coordinator/coordinator.h"
#include "coordinator/jobs/job_manager.h"
#include "proto/access_table.h"
#include "proto/grpc_endpoint.h"
#include "server/access/token_guard.h"
#include "server/coordinator_server.h"
#include "server/job_client.h"
#include "sluice/v1/weights.pb.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"
#include "worker/link/link_server.h"
#include "worker/worker.h"

namespace sluice {
namespace {

const std::string kModel = TestsDir() + "/models/llama-kjv";
constexpr char kCluster[] = "the cluster's secret";

class AccessTest : public testing::Test {
 protected:
  void SetUp() override {
    metrics_ = CreateNullMetrics();
    const std::string tokens = (dir_.path() / "tokens.json").string();
    const auto record = [](const std::string& name, const std::string& tenant,
                           bool read, bool submit, bool admin) {
      return TokenRecord{.name = name,
                         .tenant = tenant,
                         .read = read,
                         .submit = submit,
                         .admin = admin,
                         .sha256 = HashToken(name)};
    };
    TokenRecord expired = record("expired", "a", true, true, true);
    expired.expires_s = 1;
    TokenRecord revoked = record("revoked", "a", true, true, true);
    revoked.revoked = true;
    ASSERT_TRUE(
        WriteTokens(tokens,
                    {.tokens = {record("reader", "a", true, false, false),
                                record("submitter", "a", false, true, false),
                                record("a", "a", true, true, false),
                                record("b", "b", true, true, false),
                                record("admin", "", true, true, true), expired,
                                revoked}})
            .ok());
    guard_ = *TokenGuard::Create({.tokens_file = tokens,
                                  .cluster_token = kCluster,
                                  .clock = Clock::Real()});
    Coordinator::Options options;
    options.model_dir = kModel;
    options.state_dir = dir_.path() / "state";
    options.metrics = metrics_.get();
    options.guard = guard_.get();
    coordinator_ = *Coordinator::Create(options);
    server_ = *CoordinatorServer::Start(coordinator_.get(), "127.0.0.1:0",
                                        {.guard = guard_.get()});
    Worker::Options worker;
    worker.name = "w";
    worker.model_dir = kModel;
    worker.coordinator_address = "127.0.0.1:1";
    worker.machine.host_memory_bytes = 256 << 20;
    worker.guard = MakeClusterGuard(kCluster);
    worker.channels = TcpChannels({.token = kCluster});
    worker_ = *Worker::Create(worker);
    links_ = *LinkServer::Start("127.0.0.1", 0, worker_->link_service(),
                                worker_->weights_service());
  }
  void TearDown() override {
    links_.reset();
    server_.reset();
  }

  // Calls a method with an encoded message, and returns how it ended.
  grpc::StatusCode Call(absl::string_view method, const std::string& token,
                        const std::string& request = "") {
    const bool of_worker = absl::StrContains(method, "LinkService");
    const auto channel =
        OpenChannel(ChannelKind::kWorker,
                    absl::StrCat("127.0.0.1:",
                                 of_worker ? links_->port() : server_->port()),
                    {.token = token});
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(Waits(method, token) ? 1 : 30));
    const auto wait = [&] {
      void* tag;
      bool ok;
      queue.Next(&tag, &ok);
      return ok;
    };
    auto call = stub.PrepareCall(&context, absl::StrCat("/", method), &queue);
    call->StartCall(nullptr);
    wait();
    const grpc::Slice slice(request);
    grpc::ByteBuffer message(&slice, 1), answer;
    call->Write(message, nullptr);
    if (wait()) {
      call->WritesDone(nullptr);
      wait();
    }
    do {
      call->Read(&answer, nullptr);
    } while (wait());
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    return status.error_code();
  }
  // Whether an allowed call may go on until its deadline.
  static bool Waits(absl::string_view method, const std::string& token) {
    return ScopeOf(method) == Scope::kCluster && token == kCluster;
  }
  std::unique_ptr<JobClient> Client(const std::string& token) {
    return JobClient::Connect(absl::StrCat("127.0.0.1:", server_->port()),
                              {.token = token});
  }
  absl::StatusOr<v1::Job> Submit(const std::string& token,
                                 const std::string& request_id = "") {
    v1::JobSpec spec;
    spec.set_format(v1::INPUT_FORMAT_TEXT);
    spec.set_request_id(request_id);
    std::istringstream input("In the beginning\n");
    return Client(token)->CreateJob(spec, &input, nullptr);
  }

  const TempDir dir_;
  std::unique_ptr<MetricsRegistry> metrics_;
  std::unique_ptr<TokenGuard> guard_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<LinkServer> links_;
};

TEST_F(AccessTest, EveryMethodAsksForWhatItsRuleSays) {
  struct Credential {
    const char* token;
    Caller grants;  // nothing: nobody knows it
  };
  const std::vector<Credential> credentials = {
      {"", {}},
      {"wrong", {}},
      {"expired", {}},
      {"revoked", {}},
      {"reader", {.read = true}},
      {"submitter", {.submit = true}},
      {"admin", {.read = true, .submit = true, .admin = true}},
      {kCluster, {.cluster = true}},
  };
  for (const AccessRule& rule : AccessRules()) {
    for (const Credential& credential : credentials) {
      const grpc::StatusCode code = Call(rule.method, credential.token);
      const Caller& grants = credential.grants;
      const bool refused = code == grpc::StatusCode::UNAUTHENTICATED ||
                           code == grpc::StatusCode::PERMISSION_DENIED;
      EXPECT_EQ(refused, !grants.Has(rule.scope))
          << rule.method << " with \"" << credential.token << "\": " << code;
      // Nothing is told to those whom nobody knows.
      if (!grants.read && !grants.submit && !grants.cluster) {
        EXPECT_EQ(code, grpc::StatusCode::UNAUTHENTICATED) << rule.method;
      }
    }
  }
}

TEST_F(AccessTest, EveryMethodAboutAJobHidesThoseOfOtherTenants) {
  const std::set<absl::string_view> about_no_job = {
      "sluice.v1.JobService/CreateJob", "sluice.v1.JobService/ListJobs",
      "sluice.v1.ClusterService/GetClusterState"};
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  google::protobuf::DynamicMessageFactory factory;
  int methods = 0;
  for (const AccessRule& rule : AccessRules()) {
    if (rule.scope != Scope::kRead && rule.scope != Scope::kSubmit) continue;
    if (about_no_job.contains(rule.method)) continue;
    const auto* const method =
        pool->FindMethodByName(absl::StrReplaceAll(rule.method, {{"/", "."}}));
    ASSERT_NE(method, nullptr) << rule.method;
    const auto* const id = method->input_type()->FindFieldByName("id");
    ASSERT_NE(id, nullptr) << rule.method << " names no job: does it show any?";
    const std::unique_ptr<google::protobuf::Message> request(
        factory.GetPrototype(method->input_type())->New());
    // A job that has ended may be deleted, too.
    const std::string job = Submit("a")->id();
    ASSERT_TRUE(Client("a")->CancelJob(job).ok());
    request->GetReflection()->SetString(request.get(), id, job);
    const auto code = [&](const char* token) {
      return Call(rule.method, token, request->SerializeAsString());
    };
    EXPECT_EQ(code("b"), grpc::StatusCode::NOT_FOUND) << rule.method;
    for (const char* token : {"expired", "revoked", "wrong", ""}) {
      EXPECT_EQ(code(token), grpc::StatusCode::UNAUTHENTICATED) << rule.method;
    }
    EXPECT_NE(code("a"), grpc::StatusCode::NOT_FOUND) << rule.method;
    ++methods;
  }
  EXPECT_GE(methods, 9);
}

TEST_F(AccessTest, NoFileOutsideTheModelIsServed) {
  for (const char* name :
       {"/etc/passwd", "../../../../../../../../etc/passwd", "..", "",
        "model.safetensors/../../../CMakeLists.txt", "config.json\0x"}) {
    v1::PieceRange range;
    range.mutable_file()->set_name(name);
    range.mutable_file()->set_bytes(1);
    range.mutable_file()->set_hash("p0123456789abcdef0123456789abcdef");
    range.set_count(1);
    for (const auto& [method, request] :
         {std::pair("ListPieces", range.file().SerializeAsString()),
          std::pair("ReadPieces", range.SerializeAsString())}) {
      const grpc::StatusCode code = Call(
          absl::StrCat("sluice.v1.WeightsService/", method), kCluster, request);
      EXPECT_TRUE(code == grpc::StatusCode::NOT_FOUND ||
                  code == grpc::StatusCode::INVALID_ARGUMENT)
          << name << ": " << code;
    }
  }
  for (const char* model : {"../llama-kjv", "/etc", "llama-kjv/../llama-kjv"}) {
    v1::JobSpec spec;
    spec.set_model(model);
    std::istringstream input("x\n");
    EXPECT_FALSE(Client("a")->CreateJob(spec, &input, nullptr).ok()) << model;
  }
}

TEST_F(AccessTest, TenantsNeverSeeEachOthersJobs) {
  const auto ours = Submit("a", "nightly");
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_EQ(ours->tenant(), "a");
  const auto theirs = Submit("b", "nightly");
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_NE(ours->id(), theirs->id());

  const auto b = Client("b");
  const std::string& id = ours->id();
  EXPECT_TRUE(absl::IsNotFound(b->GetJob(id).status()));
  EXPECT_TRUE(absl::IsNotFound(b->CancelJob(id).status()));
  EXPECT_TRUE(absl::IsNotFound(b->PauseJob(id).status()));
  EXPECT_TRUE(absl::IsNotFound(b->ResumeJob(id).status()));
  EXPECT_TRUE(absl::IsNotFound(b->SetJobPriority(id, 9).status()));
  EXPECT_TRUE(absl::IsNotFound(b->DeleteJob(id)));
  EXPECT_TRUE(absl::IsNotFound(
      b->WatchJob(id, [](const v1::Job&) { return true; }).status()));
  EXPECT_TRUE(absl::IsNotFound(b->StreamResults(
      id, 0, false, [](const v1::Result&) { return absl::OkStatus(); })));
  // As if there were none.
  EXPECT_EQ(b->GetJob(id).status().message(), absl::StrCat("no job ", id));
  const auto listed = b->ListJobs({});
  ASSERT_EQ(listed->jobs_size(), 1);
  EXPECT_EQ(listed->jobs(0).id(), theirs->id());

  EXPECT_EQ(Client("reader")->GetJob(id)->state(), v1::JOB_STATE_IN_PROGRESS);
  EXPECT_EQ(Client("admin")->ListJobs({})->jobs_size(), 2);
  EXPECT_TRUE(Client("admin")->PauseJob(id)->paused());
  EXPECT_FALSE(Client("a")->ResumeJob(id)->paused());
}

}  // namespace
}  // namespace sluice
