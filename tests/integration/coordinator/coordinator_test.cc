#include "coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/policy.h"
#include "common/threads/bounded_queue.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_state.h"
#include "proto/grpc_endpoint.h"
#include "tests/integration/coordinator/dispatch_fake_worker.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A coordinator with its real store, on a model directory without weights;
// workers compute with a hash.
class CoordinatorTest : public testing::Test {
 protected:
  CoordinatorTest() {
    fs::create_directories(dir_ / "tiny");
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(fs::path(TestsDir() + "/golden/tokenizers/gpt2") / file,
                    dir_ / "tiny" / file);
    }
    std::ofstream(dir_ / "tiny" / "config.json") << R"({
      "model_type": "llama", "vocab_size": 50257, "hidden_size": 64,
      "intermediate_size": 128, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 4,
      "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
      "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": 0,
      "bos_token_id": 1, "tie_word_embeddings": true})";
    options_.model_dir = dir_ / "tiny";
    options_.state_dir = dir_ / "state";
    options_.timeouts.settle_time = absl::ZeroDuration();
    // Fake workers send no heartbeats, and machines may be slow.
    options_.timeouts.heartbeat_timeout = absl::Hours(1);
  }

  ~CoordinatorTest() override { Stop(); }

  void Start(int64_t kv_pages = 1000) {
    pipeline_.emplace(HashModel(50), kv_pages, 16);
    auto coordinator = Coordinator::Create(options_);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    coordinator_ = *std::move(coordinator);
    server_ = *StartServer(ServerKind::kCoordinator, "",
                           {coordinator_->worker_service()});
  }

  void Stop() {
    if (coordinator_) coordinator_->Shutdown();
    if (server_) server_->Shutdown();
    for (const auto& worker : workers_) worker->WaitForEnd();
    workers_.clear();
    server_.reset();
    coordinator_.reset();
  }

  void AddWorker(const std::string& name) {
    workers_.push_back(FakeWorker::Attach(
        LocalChannel(ChannelKind::kWorker, server_.get()), &*pipeline_, name));
  }

  std::string CreateJob(int requests) {
    v1::JobSpec spec;
    auto upload = coordinator_->jobs().BeginUpload(spec);
    EXPECT_TRUE(upload.ok()) << upload.status();
    for (int i = 0; i < requests; ++i) {
      EXPECT_TRUE(
          (*upload)
              ->Append(absl::StrCat("{\"prompt\":\"request number ", i,
                                    "\",\"max_tokens\":", 5 + i % 20, "}\n"))
              .ok());
    }
    auto job = (*upload)->Commit();
    EXPECT_TRUE(job.ok()) << job.status();
    return job->id();
  }

  v1::Job WaitForEnd(const std::string& id) {
    for (;;) {
      auto job = coordinator_->jobs().GetJob(id);
      EXPECT_TRUE(job.ok()) << job.status();
      if (IsTerminal(job->state())) return *job;
      coordinator_->jobs().WaitForChanges(absl::Seconds(1));
    }
  }

  std::vector<std::string> Results(const std::string& id) {
    std::vector<std::string> lines;
    for (;;) {
      auto chunk = coordinator_->jobs().ReadResults(
          id, static_cast<int64_t>(lines.size()), 1 << 20);
      EXPECT_TRUE(chunk.ok()) << chunk.status();
      if (!chunk.ok() || chunk->results().empty()) return lines;
      for (const v1::Result& result : chunk->results()) {
        EXPECT_EQ(result.index(), lines.size());
        lines.push_back(result.line());
      }
    }
  }

  const TempDir temp_;
  const std::filesystem::path& dir_ = temp_.path();
  Coordinator::Options options_;
  std::optional<FakePipeline> pipeline_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::shared_ptr<FakeWorker>> workers_;
};

TEST_F(CoordinatorTest, ChecksItsOptions) {
  EXPECT_TRUE(options_.Validate().ok());
  const std::vector<std::function<void(Coordinator::Options*)>> bad = {
      [](auto* o) { o->model_dir.clear(); },
      [](auto* o) { o->state_dir.clear(); },
      [](auto* o) { o->min_workers = 0; },
      [](auto* o) { o->num_blocks = -1; },
      [](auto* o) { o->gbs = -1; },
      [](auto* o) { o->gbs = 4096, o->max_step_tokens = 2048; },
      [](auto* o) { o->num_microbatches = -1; },
      [](auto* o) { o->max_step_tokens = -1; },
      [](auto* o) { o->max_model_len = -1; },
      [](auto* o) { o->default_max_tokens = 0; },
      [](auto* o) { o->timeouts.heartbeat_interval = absl::ZeroDuration(); },
      [](auto* o) {
        o->timeouts.heartbeat_timeout = o->timeouts.heartbeat_interval;
      },
      [](auto* o) { o->timeouts.settle_time = -absl::Seconds(1); },
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    Coordinator::Options options = options_;
    bad[i](&options);
    EXPECT_EQ(options.Validate().code(), absl::StatusCode::kInvalidArgument)
        << i;
  }
}

TEST_F(CoordinatorTest, PoliciesWinOverOtherOptionsInTheirOrder) {
  options_.gbs = 8;
  options_.num_microbatches = 2;
  options_.policy = {"gbs=5 w=0/50/50", "gbs=6,overlap=off"};
  Start();
  const Policy& policy = coordinator_->policy();
  EXPECT_EQ(policy.gbs, 6);
  EXPECT_EQ(policy.num_microbatches, 2);
  EXPECT_EQ(policy.dtype, DType::kBFloat16);
  EXPECT_FALSE(policy.automatic_weights);
  EXPECT_EQ(policy.weights, (TierFractions{0, 0.5, 0.5}));
  EXPECT_FALSE(policy.overlap);
  EXPECT_EQ(coordinator_->cluster_state().gbs(), 6);
}

TEST_F(CoordinatorTest, TheDefaultGbsFitsThePolicysStep) {
  options_.policy = {"max-step-tokens=48"};
  Start();
  EXPECT_EQ(coordinator_->policy().gbs, 48);
}

TEST_F(CoordinatorTest, RefusesAPolicyThatDoesNotFit) {
  const auto refused = [&](const std::string& policy,
                           const std::string& named) {
    Coordinator::Options options = options_;
    options.policy = {policy};
    const absl::Status status = Coordinator::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << policy;
    EXPECT_THAT(std::string(status.message()), HasSubstr(named)) << policy;
  };
  refused("speed=9", "unknown key speed");
  refused("gbs=100 max-step-tokens=99", "max_step_tokens is 99");
  refused("gbs=9000", "gbs is 9000");
  refused("num-microbatches=65", "num_microbatches is 65");
  refused("max-step-tokens=2000000", "max_step_tokens is 2000000");
  // A policy may also correct the other options.
  options_.gbs = 100;
  options_.max_step_tokens = 50;
  options_.policy = {"max-step-tokens=100"};
  Start();
  EXPECT_EQ(coordinator_->policy().gbs, 100);
}

TEST_F(CoordinatorTest, RandomWeightsNeedNoTokenizer) {
  fs::remove(options_.model_dir / "tokenizer.json");
  options_.dummy_weights = true;
  Start();
  EXPECT_THAT(*coordinator_->tokenizer().Encode("a", false),
              ::testing::ElementsAre(3 + 'a'));
}

TEST_F(CoordinatorTest, ABrokenChatTemplateStopsNobodyElse) {
  std::ofstream(options_.model_dir / "chat_template.jinja") << "{% if %}";
  Start();
  AddWorker("a");
  auto upload = coordinator_->jobs().BeginUpload({});
  ASSERT_TRUE(upload.ok()) << upload.status();
  ASSERT_TRUE((*upload)
                  ->Append("{\"prompt\":\"a\",\"max_tokens\":2}\n"
                           "{\"messages\":[{\"role\":\"user\","
                           "\"content\":\"a\"}]}\n")
                  .ok());
  auto job = (*upload)->Commit();
  ASSERT_TRUE(job.ok()) << job.status();
  // Lines that are no requests have their results at once.
  EXPECT_EQ(job->counts().total(), 2);
  EXPECT_EQ(job->counts().failed(), 1);
}

TEST_F(CoordinatorTest, RefusesGenerationConfigsThatItWouldNotFollow) {
  std::ofstream(options_.model_dir / "generation_config.json")
      << R"({"no_repeat_ngram_size": 3, "num_beams": 2})";
  const absl::Status status = Coordinator::Create(options_).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("generation_config.json"),
                             HasSubstr("no_repeat_ngram_size 3, num_beams 2"),
                             HasSubstr("--generation-config none")));
  options_.generation_config = false;
  EXPECT_TRUE(Coordinator::Create(options_).ok());
}

TEST_F(CoordinatorTest, NamesWhatIsWrongWithTheModel) {
  options_.max_model_len = 257;
  EXPECT_THAT(std::string(Coordinator::Create(options_).status().message()),
              testing::AllOf(HasSubstr("max_model_len is 257"),
                             HasSubstr("takes 256 positions: "
                                       "max_position_embeddings")));
  options_.max_model_len = 0;
  fs::remove(options_.model_dir / "tokenizer.json");
  EXPECT_FALSE(Coordinator::Create(options_).ok());
  options_.model_dir = dir_ / "nowhere";
  EXPECT_THAT(std::string(Coordinator::Create(options_).status().message()),
              HasSubstr("nowhere"));
}

TEST_F(CoordinatorTest, DescribesTheCluster) {
  options_.min_workers = 2;
  Start();
  v1::ClusterState state = coordinator_->cluster_state();
  EXPECT_EQ(state.model(), "tiny");
  EXPECT_EQ(state.dtype(), "bfloat16");
  EXPECT_EQ(state.num_layers(), 4);
  EXPECT_EQ(state.state(), "waiting for workers: 0 of 2 registered");
  EXPECT_EQ(state.gbs(), 256);
  EXPECT_FALSE(coordinator_->ready());
}

TEST_F(CoordinatorTest, RunsAJob) {
  Start();
  const std::string id = CreateJob(100);
  AddWorker("a");
  AddWorker("b");
  const v1::Job job = WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job.counts().completed(), 100);
  EXPECT_EQ(Results(id).size(), 100);
  EXPECT_TRUE(coordinator_->ready());
}

TEST_F(CoordinatorTest, ShowsWhatAJobWaitsFor) {
  options_.min_workers = 2;
  Start();
  const std::string id = CreateJob(3);
  AddWorker("a");
  std::string detail;
  while (detail != "waiting for workers: 1 of 2 registered") {
    coordinator_->jobs().WaitForChanges(absl::Milliseconds(20));
    detail = coordinator_->jobs().GetJob(id)->detail();
  }
  AddWorker("b");
  EXPECT_EQ(WaitForEnd(id).state(), v1::JOB_STATE_COMPLETED);
}

TEST_F(CoordinatorTest, CancelsAJob) {
  BoundedQueue<int> gate(1000);
  Start();
  pipeline_->SetOnStep([&](int64_t step) {
    if (step > 2) gate.Pop();
  });
  const std::string id = CreateJob(1000);
  AddWorker("a");
  ASSERT_TRUE(gate.Push(0));
  ASSERT_TRUE(coordinator_->jobs().CancelJob(id).ok());
  gate.Close();
  const v1::Job job = WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(job.counts().completed() + job.counts().failed(), 1000);
  EXPECT_EQ(Results(id).size(), 1000);
  Stop();
}

TEST_F(CoordinatorTest, GoesOnAfterARestart) {
  Start();
  const std::string undisturbed = CreateJob(300);
  AddWorker("a");
  WaitForEnd(undisturbed);
  const std::vector<std::string> expected = Results(undisturbed);
  ASSERT_EQ(expected.size(), 300);

  BoundedQueue<int> reached(1);
  BoundedQueue<int> gate(1);
  pipeline_->SetOnStep([&, first = pipeline_->steps()](int64_t step) {
    if (step < first + 12) return;
    int one = 1;
    reached.TryPush(one);
    gate.Pop();
  });
  const std::string id = CreateJob(300);
  ASSERT_TRUE(reached.Pop().has_value());
  coordinator_->Shutdown();
  gate.Close();
  Stop();
  Start();
  const size_t before = Results(id).size();
  AddWorker("a");
  AddWorker("b");
  const v1::Job job = WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job.counts().completed(), 300);
  const std::vector<std::string> lines = Results(id);
  ASSERT_EQ(lines.size(), 300);
  EXPECT_LT(before, lines.size());
  // The texts are equal, in lines that differ only in the job and times.
  const auto text = [](const std::string& line) {
    const size_t begin = line.find("\"text\":");
    return line.substr(begin, line.find("\",", begin + 8) - begin);
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    ASSERT_EQ(text(lines[i]), text(expected[i])) << lines[i];
  }
}

}  // namespace
}  // namespace sluice
