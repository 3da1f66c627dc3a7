// Models with experts, as checkpoints store them, wherever their weights, KV
// and activations lie: the same logits and tokens, bit for bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/policy.h"
#include "runtime/model/model_dir.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

class MixturePlacementTest : public testing::TestWithParam<const char*> {};

TEST_P(MixturePlacementTest, SameBitsWhereverItLies) {
  const auto path = std::filesystem::path(TestsDir()) / "golden" / "models";
  const auto model = ModelDir::Open(path / GetParam());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto source = (*model)->OpenTensors();
  ASSERT_TRUE(source.ok()) << source.status();
  const DecoderSpec& spec = (*model)->spec();
  std::vector<ChainRequest> requests;
  for (int i = 0; i < 5; ++i) {
    ChainRequest request;
    for (int t = 0; t < 2 + 19 * i; ++t) {
      request.prompt.push_back((i * 7919 + t * 104729 + 3) % spec.vocab_size);
    }
    request.new_tokens = 6;
    request.chunk = i % 2 == 0 ? 1 << 30 : 9;
    requests.push_back(request);
  }
  const TempDir dir;
  struct Placed {
    TierFractions weights, kv_cache, activations;
    AttentionSite site = AttentionSite::kDevice;
    bool device = true;
  };
  const TierFractions on_disk = {0, 0, 1}, on_host = {0, 1, 0},
                      spread = {0.4, 0.3, 0.3};
  const Placed placements[] = {
      {on_host, on_host, on_host, AttentionSite::kHost, false},
      {on_disk, on_disk, on_host, AttentionSite::kHost, false},
      {spread, spread, on_host, AttentionSite::kHost},
      {on_disk, on_host, spread, AttentionSite::kDevice},
  };
  std::vector<std::vector<int32_t>> tokens;
  std::map<StageChain::Position, std::vector<float>> logits;
  for (const Placed& placed : placements) {
    StageChain::Options options;
    options.cuts = {1};
    options.max_model_len = std::min(160, spec.max_positions);
    options.policy.num_microbatches = 2;
    options.policy.automatic_weights = options.policy.automatic_kv_cache =
        options.policy.automatic_activations = false;
    options.policy.weights = placed.weights;
    options.policy.kv_cache = placed.kv_cache;
    options.policy.activations = placed.activations;
    options.policy.attention_site = placed.site;
    options.disk_dir = dir.path();
    if (placed.device) options.device_bytes = uint64_t{1} << 30;
    const auto chain = StageChain::Create(spec, **source, options);
    if (absl::IsUnimplemented(chain.status())) {
      GTEST_SKIP() << chain.status();
    }
    ASSERT_TRUE(chain.ok()) << chain.status();
    const auto run = RunRequests(**chain, requests, 2);
    ASSERT_TRUE(run.ok()) << run.status();
    if (tokens.empty()) {
      tokens = *run;
      logits = (*chain)->logits();
    }
    EXPECT_EQ(*run, tokens);
    EXPECT_TRUE((*chain)->logits() == logits);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MixturePlacementTest,
                         testing::Values("ernie45-moe-base", "glm4-moe-groups",
                                         "gpt-oss-base", "gpt-oss-mxfp4",
                                         "granitemoe-shared", "minimax-m2-base",
                                         "mixtral-window", "olmoe-base",
                                         "qwen2-moe-some-layers",
                                         "qwen3-moe-base"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
