// Stages of several ranks beside stages of one: the same logits and tokens, bit
// for bit, whatever the model's shape, the dtype, the placement and the number
// of ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "runtime/model/model_dir.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  std::map<StageChain::Position, std::vector<float>> logits;
};

std::vector<ChainRequest> Requests(int32_t vocab) {
  std::vector<ChainRequest> requests;
  for (int i = 0; i < 5; ++i) {
    ChainRequest request;
    for (int t = 0; t < 3 + 17 * i; ++t) {
      request.prompt.push_back((i * 7919 + t * 104729 + 3) % vocab);
    }
    request.new_tokens = 4 + i;
    request.chunk = i % 2 == 0 ? 1 << 30 : 9;
    request.enters_at_step = i;
    requests.push_back(request);
  }
  return requests;
}

absl::StatusOr<Answers> Run(const DecoderSpec& spec, const TensorSource& source,
                            const StageChain::Options& options) {
  absl::StatusOr<std::unique_ptr<StageChain>> chain =
      StageChain::Create(spec, source, options);
  if (!chain.ok()) return chain.status();
  Answers answers;
  auto tokens = RunRequests(**chain, Requests(spec.vocab_size),
                            options.policy.num_microbatches);
  if (!tokens.ok()) return tokens.status();
  answers.tokens = *std::move(tokens);
  answers.logits = std::move((*chain)->logits());
  return answers;
}

void ExpectSame(const Answers& expected, const Answers& got) {
  EXPECT_EQ(got.tokens, expected.tokens);
  ASSERT_EQ(got.logits.size(), expected.logits.size());
  for (const auto& [position, row] : expected.logits) {
    const auto found = got.logits.find(position);
    ASSERT_NE(found, got.logits.end());
    ASSERT_EQ(found->second.size(), row.size());
    int different = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      different += std::memcmp(&row[i], &found->second[i], sizeof(float)) != 0;
    }
    EXPECT_EQ(different, 0) << "sequence " << position.first << " position "
                            << position.second << " of " << row.size();
  }
}

// Compares stages of so many ranks with stages of one.
void ExpectSameByRanks(const DecoderSpec& spec, const TensorSource& source,
                       StageChain::Options options,
                       std::vector<int> ranks = {2, 4}) {
  options.max_model_len = std::min(options.max_model_len, spec.max_positions);
  options.ranks = 1;
  const absl::StatusOr<Answers> expected = Run(spec, source, options);
  if (absl::IsUnimplemented(expected.status())) {
    GTEST_SKIP() << expected.status();
  }
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const int count : ranks) {
    SCOPED_TRACE(testing::Message() << count << " ranks");
    options.ranks = count;
    const absl::StatusOr<Answers> got = Run(spec, source, options);
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSame(*expected, *got);
  }
}

// Experts narrower than a group, which ranks do not divide, and wider ones.
class MixtureRanksTest : public testing::TestWithParam<int> {
 protected:
  DecoderSpec Spec() const {
    if (GetParam() == 3) return GroupedMixture(3);
    DecoderSpec spec = MixtureOfExperts(3, static_cast<RouterKind>(GetParam()));
    if (GetParam() == 1) spec.mixture.expert_size = 256;
    return spec;
  }
};

TEST_P(MixtureRanksTest, Float32) {
  ExpectSameByRanks(Spec(), RandomSource(5), {});
}

TEST_P(MixtureRanksTest, QuantizedBFloat16) {
  StageChain::Options options;
  options.policy.dtype = DType::kBFloat16;
  options.policy.num_microbatches = 2;
  options.policy.compress_weights =
      GetParam() % 2 == 0 ? WeightFormat::kInt8 : WeightFormat::kInt4;
  ExpectSameByRanks(Spec(), RandomSource(5), options, {2});
}

INSTANTIATE_TEST_SUITE_P(Mixtures, MixtureRanksTest, testing::Range(0, 4));

std::vector<std::string> GoldenModels() {
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(TestsDir()) / "golden" / "models")) {
    if (fs::exists(entry.path() / "config.json")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

class GoldenRanksTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto model =
        ModelDir::Open(fs::path(TestsDir()) / "golden" / "models" / GetParam());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    auto source = model_->OpenTensors();
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
  }
  std::unique_ptr<ModelDir> model_;
  std::unique_ptr<TensorSource> source_;
};

TEST_P(GoldenRanksTest, Float32) {
  ExpectSameByRanks(model_->spec(), *source_, {});
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenRanksTest,
                         testing::ValuesIn(GoldenModels()), [](const auto& i) {
                           std::string name = i.param;
                           for (char& c : name) {
                             if (!absl::ascii_isalnum(c)) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace sluice
