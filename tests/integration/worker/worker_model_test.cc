#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/host/host_port.h"
#include "common/policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert.h"
#include "tests/integration/worker/test_coordinator.h"
#include "tests/support/test_paths.h"
#include "worker/link/link_server.h"
#include "worker/worker.h"

// Workers made like the programs' on a real model: tokens equal transformers',
// for any number of stages.

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 3;
const std::string kModel = TestsDir() + "/golden/models/llama-base";
const std::string kGolden = TestsDir() + "/golden/logits/llama-base.json";

Worker::Options Options(const std::string& name,
                        const std::string& coordinator) {
  Worker::Options options;
  options.name = name;
  options.model_dir = kModel;
  options.coordinator_address = coordinator;
  options.machine.host_memory_bytes = uint64_t{256} << 20;
  options.machine.threads = 1;
  options.channels = TcpChannels();
  return options;
}

// Returns the model content of an attached worker once it is known.
v1::ModelContent AwaitContent(TestCoordinator& coordinator,
                              const v1::Register& registered) {
  for (const auto& file : registered.model_content().files()) {
    if (!file.hash().empty()) continue;
    return coordinator
        .Await(registered.name(),
               [](const auto& m) { return m.has_model_content(); })
        .model_content();
  }
  return registered.model_content();
}

class WorkerModelTest : public ::testing::TestWithParam<int> {
 protected:
  struct Member {
    std::unique_ptr<Worker> worker;
    std::unique_ptr<LinkServer> server;
    std::string name;
    std::string address;
    ~Member() {
      worker->Shutdown();
      server->Shutdown();
    }
  };

  void Start(int n) {
    for (int i = 0; i < n; ++i) {
      auto member = std::make_unique<Member>();
      member->name = absl::StrCat("w", i);
      auto worker =
          Worker::Create(Options(member->name, coordinator_.address()));
      ASSERT_TRUE(worker.ok()) << worker.status();
      member->worker = *std::move(worker);
      auto server =
          LinkServer::Start("127.0.0.1", 0, member->worker->link_service());
      ASSERT_TRUE(server.ok()) << server.status();
      member->server = *std::move(server);
      member->address = JoinHostPort("127.0.0.1", member->server->port());
      member->worker->Announce(member->address);
      // Nothing is loaded before its content is known.
      AwaitContent(coordinator_, coordinator_.AwaitAttached(member->name));
      members_.push_back(std::move(member));
    }
    for (int i = n - 1; i >= 0; --i) Assign(i);
    for (const auto& member : members_) {
      EXPECT_GT(coordinator_.AwaitReady(member->name, 1).kv_pages(), 0);
    }
  }

  void Assign(int stage, int64_t epoch = 1) {
    const int n = static_cast<int>(members_.size());
    v1::CoordinatorMessage message;
    auto* assign = message.mutable_assign_stage();
    assign->set_epoch(epoch);
    assign->set_stage(stage);
    assign->set_num_stages(n);
    assign->mutable_layers()->set_begin(kLayers * stage / n);
    assign->mutable_layers()->set_end(kLayers * (stage + 1) / n);
    if (stage + 1 < n) {
      assign->set_next_link_address(members_[stage + 1]->address);
    }
    Policy policy;
    policy.gbs = 4;
    policy.num_microbatches = 2;
    policy.max_step_tokens = 160;
    policy.weights = policy.kv_cache = policy.activations = {0, 1, 0};
    ToProto(policy, assign->mutable_policy());
    assign->set_max_model_len(160);
    assign->set_max_sequences(8);
    assign->set_num_blocks(1);
    coordinator_.Send(members_[stage]->name, message);
  }

  TestCoordinator coordinator_;
  std::vector<std::unique_ptr<Member>> members_;
};

TEST_P(WorkerModelTest, GreedyTokensAreTransformers) {
  const auto golden = nlohmann::json::parse(std::ifstream(kGolden));
  Start(GetParam());
  struct Sequence {
    std::vector<int32_t> prompt;
    std::vector<int32_t> expected;
    std::vector<int32_t> answer;
  };
  std::vector<Sequence> sequences;
  for (const auto& prompt : golden["prompts"]) {
    sequences.push_back({prompt["ids"].get<std::vector<int32_t>>(),
                         prompt["greedy"].get<std::vector<int32_t>>(),
                         {}});
  }
  const size_t steps = sequences[0].expected.size();
  for (size_t step = 0; step < steps; ++step) {
    StepPlan plan;
    plan.epoch = PlanEpoch(1);
    plan.step = static_cast<int64_t>(step);
    plan.micro_batches.resize(2);
    // Micro-batches get every second sequence, so the answers come in another
    // order than the sequences.
    std::vector<size_t> order;
    for (size_t k = 0; k < 2; ++k) {
      for (size_t i = k; i < sequences.size(); i += 2) {
        const Sequence& s = sequences[i];
        const SequenceId id(static_cast<int64_t>(i));
        MicroBatch& batch = plan.micro_batches[k];
        const auto prompt = static_cast<int32_t>(s.prompt.size());
        if (step == 0) {
          plan.admit.push_back(
              {id, prompt, prompt + static_cast<int32_t>(steps), {}});
          batch.segments.push_back({id, 0, prompt, true});
          batch.tokens.insert(batch.tokens.end(), s.prompt.begin(),
                              s.prompt.end());
        } else {
          batch.segments.push_back(
              {id, prompt + static_cast<int32_t>(step) - 1, 1, true});
          batch.tokens.push_back(s.answer.back());
        }
        order.push_back(i);
      }
    }
    v1::CoordinatorMessage message;
    ToProto(plan, message.mutable_step_plan());
    coordinator_.Send("w0", message);
    const v1::StepResult result =
        coordinator_.AwaitResult(members_.back()->name);
    ASSERT_EQ(result.tokens_size(), static_cast<int>(order.size()));
    for (size_t n = 0; n < order.size(); ++n) {
      sequences[order[n]].answer.push_back(
          result.tokens(static_cast<int>(n)).token());
    }
  }
  for (const Sequence& s : sequences) EXPECT_EQ(s.answer, s.expected);
}

INSTANTIATE_TEST_SUITE_P(Stages, WorkerModelTest, ::testing::Values(1, 2, 3));

class WorkerContentTest : public WorkerModelTest {
 protected:
  WorkerContentTest() {
    std::filesystem::remove_all(copy_);
    std::filesystem::copy(kModel, copy_);
  }
  ~WorkerContentTest() override {
    members_.clear();
    std::filesystem::remove_all(copy_);
  }

  // Starts a worker on a copy of the model, and returns its content.
  v1::ModelContent StartOnCopy() {
    Worker::Options options = Options("w0", coordinator_.address());
    options.model_dir = copy_;
    options.reconnect_delay = absl::Milliseconds(1);
    auto member = std::make_unique<Member>();
    member->name = "w0";
    member->worker = *Worker::Create(options);
    member->server =
        *LinkServer::Start("127.0.0.1", 0, member->worker->link_service());
    member->worker->Announce("here");
    members_.push_back(std::move(member));
    return AwaitContent(coordinator_, coordinator_.AwaitAttached("w0"));
  }

  // Replaces the model by one with files of the same names, sizes and headers.
  void ChangeWeights() {
    std::fstream file(copy_ / "model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x7f');
  }

  // Returns the bytes of weights read for `epoch` by its report; 0 if it had
  // them.
  uint64_t AwaitLoaded(int64_t epoch) {
    uint64_t loaded = 0;
    coordinator_.Await("w0", [&](const auto& m) {
      if (m.has_load_progress() && m.load_progress().epoch() == epoch) {
        loaded = m.load_progress().bytes_done();
      }
      return m.has_stage_ready() && m.stage_ready().epoch() == epoch;
    });
    return loaded;
  }

  const std::filesystem::path copy_ =
      std::filesystem::path(::testing::TempDir()) /
      absl::StrCat(
          "worker_model_copy_",
          ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(WorkerContentTest, FilesThatChangeAreNotLoadedButToldAnew) {
  const v1::ModelContent before = StartOnCopy();
  ASSERT_EQ(before.files_size(), 2);
  EXPECT_EQ(before.files(0).name(), "config.json");
  EXPECT_EQ(before.files(1).name(), "model.safetensors");
  EXPECT_EQ(before.files(1).hash().size(), 33u);
  ChangeWeights();
  Assign(0);
  const v1::ModelContent after =
      AwaitContent(coordinator_, coordinator_.AwaitAttached("w0", 2));
  ASSERT_EQ(after.files_size(), 2);
  EXPECT_EQ(after.files(0).hash(), before.files(0).hash());
  EXPECT_NE(after.files(1).hash(), before.files(1).hash());
  Assign(0, 2);
  coordinator_.AwaitReady("w0", 2);
}

TEST_F(WorkerContentTest, WeightsOfFilesThatChangedAreNotUsedAgain) {
  const v1::ModelContent before = StartOnCopy();
  Assign(0);
  EXPECT_GT(AwaitLoaded(1), 0u);
  coordinator_.Drop();
  AwaitContent(coordinator_, coordinator_.AwaitAttached("w0", 2));
  Assign(0);
  EXPECT_EQ(AwaitLoaded(1), 0u);
  // The plan that runs goes on with the weights that it has, but after the
  // stream breaks the coordinator is told of the new ones.
  ChangeWeights();
  coordinator_.Drop();
  const v1::ModelContent after =
      AwaitContent(coordinator_, coordinator_.AwaitAttached("w0", 3));
  ASSERT_EQ(after.files_size(), 2);
  EXPECT_NE(after.files(1).hash(), before.files(1).hash());
  Assign(0);
  EXPECT_GT(AwaitLoaded(1), 0u);
}

TEST(WorkerCreateTest, NamesWhatIsWrong) {
  Worker::Options options = Options("w", "c");
  options.model_dir = "/nowhere";
  EXPECT_THAT(Worker::Create(options).status().ToString(),
              HasSubstr("/nowhere"));
  const auto expect_invalid = [](const Worker::Options& bad,
                                 const std::string& why) {
    const absl::Status status = Worker::Create(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(), HasSubstr(why));
  };
  options = Options("", "c");
  expect_invalid(options, "name");
  options = Options("w", "");
  expect_invalid(options, "coordinator address");
  options = Options("w", "c");
  options.model_dir = "";
  expect_invalid(options, "model directory");
  options = Options("w", "c");
  options.machine.host_memory_bytes = 0;
  expect_invalid(options, "host memory");
  options = Options("w", "c");
  options.machine.threads = -1;
  expect_invalid(options, "-1 compute threads");
  options = Options("w", "c");
  options.machine.disk_bytes = 1;
  expect_invalid(options, "no directory");
  options = Options("w", "c");
  options.channels = nullptr;
  expect_invalid(options, "channel factory");
  options = Options("w", "c");
  options.reconnect_delay = absl::ZeroDuration();
  expect_invalid(options, "reconnect_delay");
}

TEST(WorkerCreateTest, MakesItsDiskDirectoryOrNamesIt) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(::testing::TempDir()) / "worker_model_test";
  fs::remove_all(root);
  fs::create_directory(root);
  Worker::Options options = Options("w", "");
  options.coordinator_address = "127.0.0.1:1";
  options.machine.disk_dir = (root / "a").string();
  EXPECT_TRUE(Worker::Create(options).ok());
  EXPECT_TRUE(fs::is_directory(root / "a"));
  // A path is not made where there is none.
  options.machine.disk_dir = (root / "typo" / "b").string();
  EXPECT_THAT(Worker::Create(options).status().ToString(),
              HasSubstr((root / "typo").string()));
  EXPECT_FALSE(fs::exists(root / "typo"));
  std::ofstream(root / "file") << "x";
  options.machine.disk_dir = (root / "file" / "below").string();
  EXPECT_THAT(Worker::Create(options).status().ToString(),
              HasSubstr(options.machine.disk_dir));
  options.machine.disk_dir = (root / "file").string();
  EXPECT_THAT(Worker::Create(options).status().ToString(),
              HasSubstr(options.machine.disk_dir));
  fs::remove_all(root);
}

}  // namespace
}  // namespace sluice
