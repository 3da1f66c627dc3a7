// Logits and greedy tokens against what Hugging Face transformers computed
// (tests/golden/README.md), through pipelines of several lengths and with
// prompts cut into chunks of several sizes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/model/model_dir.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// The issue of correctness asks for 1e-3; two float32 implementations should be
// much closer.
constexpr float kMaxAbsError = 1e-4f;

struct Golden {
  std::string model;
  int32_t vocab = 0;
  nlohmann::json prompts;
  std::vector<float> last;  // [prompts, vocab]
};

Golden ReadGolden(const std::string& name) {
  const fs::path dir = fs::path(TestsDir()) / "golden" / "logits";
  Golden golden;
  std::ifstream file(dir / (name + ".json"));
  const nlohmann::json json = nlohmann::json::parse(file);
  golden.model = json.at("model");
  golden.vocab = json.at("vocab_size");
  golden.prompts = json.at("prompts");
  std::ifstream bin(dir / (name + ".bin"), std::ios::binary);
  golden.last.resize(golden.prompts.size() * golden.vocab);
  bin.read(reinterpret_cast<char*>(golden.last.data()),
           golden.last.size() * sizeof(float));
  EXPECT_TRUE(bin.good()) << name << ".bin is too short";
  return golden;
}

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(TestsDir()) / "golden" / "logits")) {
    if (entry.path().extension() == ".json") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Even cuts of `layers` into `stages`.
std::vector<int> Cuts(int layers, int stages) {
  std::vector<int> cuts;
  for (int i = 1; i < stages; ++i) cuts.push_back(layers * i / stages);
  return cuts;
}

class GoldenLogitsTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenLogitsTest, AgreesInFloat32) {
  const Golden golden = ReadGolden(GetParam());
  auto model = ModelDir::Open(fs::path(TestsDir()) / fs::path(golden.model));
  ASSERT_TRUE(model.ok()) << model.status();
  auto source = (*model)->OpenTensors();
  ASSERT_TRUE(source.ok()) << source.status();
  const DecoderSpec& spec = (*model)->spec();

  for (int stages = 1; stages <= std::min(3, spec.num_layers); ++stages) {
    SCOPED_TRACE(testing::Message() << stages << " stages");
    StageChain::Options options;
    options.cuts = Cuts(spec.num_layers, stages);
    options.policy.num_microbatches = stages;
    options.max_model_len = std::min(256, spec.max_positions);
    options.compute_threads = stages == 2 ? 2 : 1;
    auto chain = StageChain::Create(spec, **source, options);
    ASSERT_TRUE(chain.ok()) << chain.status();

    constexpr int32_t kChunks[] = {1 << 30, 5, 32, 1, 17};
    std::vector<ChainRequest> requests;
    for (const auto& prompt : golden.prompts) {
      ChainRequest request;
      request.prompt = prompt.at("ids").get<std::vector<int32_t>>();
      request.new_tokens = prompt.at("greedy").size();
      request.chunk = kChunks[(requests.size() + stages) % 5];
      request.enters_at_step = 2 * static_cast<int32_t>(requests.size());
      if (prompt.contains("every_position")) {
        request.chunk = 1;
        request.every_position = true;
      }
      requests.push_back(request);
    }
    auto tokens = RunRequests(**chain, requests, stages);
    ASSERT_TRUE(tokens.ok()) << tokens.status();

    float worst = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "prompt " << i);
      const auto& prompt = golden.prompts[i];
      EXPECT_EQ((*tokens)[i], prompt.at("greedy").get<std::vector<int32_t>>());
      const int32_t length = static_cast<int32_t>(requests[i].prompt.size());
      const std::vector<float>& last = (*chain)->logits()[{i, length - 1}];
      ASSERT_EQ(last.size(), static_cast<size_t>(golden.vocab));
      for (int32_t v = 0; v < golden.vocab; ++v) {
        worst = std::max(worst,
                         std::abs(last[v] - golden.last[i * golden.vocab + v]));
      }
      if (!prompt.contains("every_position")) continue;
      const auto& expected = prompt.at("every_position");
      for (int32_t p = 0; p < length; ++p) {
        const std::vector<float>& row = (*chain)->logits()[{i, p}];
        ASSERT_EQ(row.size(), static_cast<size_t>(golden.vocab));
        const auto& ids = expected.at("top_ids")[p];
        const auto& values = expected.at("top_logits")[p];
        for (size_t t = 0; t < ids.size(); ++t) {
          worst = std::max(worst, std::abs(row[ids[t].get<int32_t>()] -
                                           values[t].get<float>()));
        }
      }
    }
    EXPECT_LE(worst, kMaxAbsError);
    std::printf("  %s, %d stages: max abs error %.2g\n", GetParam().c_str(),
                stages, worst);
  }
}

// Rounding to bfloat16 has its price, which must stay that of rounding: a few
// percent of the logits' own spread. It may give a row other experts, which is
// far off; so of models with experts, the middle one of the prompts counts.
TEST_P(GoldenLogitsTest, IsNearInBFloat16) {
  const Golden golden = ReadGolden(GetParam());
  auto model = ModelDir::Open(fs::path(TestsDir()) / fs::path(golden.model));
  ASSERT_TRUE(model.ok()) << model.status();
  auto source = (*model)->OpenTensors();
  ASSERT_TRUE(source.ok()) << source.status();
  const DecoderSpec& spec = (*model)->spec();
  StageChain::Options options;
  options.cuts = Cuts(spec.num_layers, 2);
  options.policy.dtype = DType::kBFloat16;
  options.max_model_len = std::min(256, spec.max_positions);
  auto chain = StageChain::Create(spec, **source, options);
  if (absl::IsUnimplemented(chain.status())) GTEST_SKIP() << chain.status();
  ASSERT_TRUE(chain.ok()) << chain.status();
  std::vector<ChainRequest> requests;
  for (const auto& prompt : golden.prompts) {
    ChainRequest request;
    request.prompt = prompt.at("ids").get<std::vector<int32_t>>();
    request.new_tokens = 1;
    request.chunk = 13;
    requests.push_back(request);
  }
  auto tokens = RunRequests(**chain, requests, 2);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  double error = 0, spread = 0;
  std::vector<double> of_prompts;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int32_t length = static_cast<int32_t>(requests[i].prompt.size());
    const std::vector<float>& last = (*chain)->logits()[{i, length - 1}];
    ASSERT_EQ(last.size(), static_cast<size_t>(golden.vocab));
    const float* expected = golden.last.data() + i * golden.vocab;
    double mean = 0;
    for (int32_t v = 0; v < golden.vocab; ++v) mean += expected[v];
    mean /= golden.vocab;
    double own_error = 0, own_spread = 0;
    for (int32_t v = 0; v < golden.vocab; ++v) {
      own_error += (last[v] - expected[v]) * (last[v] - expected[v]);
      own_spread += (expected[v] - mean) * (expected[v] - mean);
    }
    of_prompts.push_back(own_error / own_spread);
    error += own_error;
    spread += own_spread;
  }
  std::sort(of_prompts.begin(), of_prompts.end());
  const double relative = std::sqrt(
      spec.has_mixtures() ? of_prompts[of_prompts.size() / 2] : error / spread);
  EXPECT_LE(relative, 0.03);
  EXPECT_GT(relative, 0);
  std::printf("  %s: relative error %.2g\n", GetParam().c_str(), relative);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenLogitsTest,
                         testing::ValuesIn(GoldenNames()), [](const auto& i) {
                           std::string name = i.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
