#include "scheduler/cost/model_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using testing::HasSubstr;

DecoderSpec SmallModel() {
  DecoderSpec model;
  model.num_layers = 4;
  model.hidden_size = model.embed_dim = 64;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 16;
  model.intermediate_size = 128;
  model.vocab_size = 100;
  return model;
}

TEST(ModelSizesTest, CountsALayersMatrices) {
  DecoderSpec model = SmallModel();
  // q and out 64 x 64, k and v 32 x 64; gate, up and down 64 x 128.
  EXPECT_EQ(LayerElements(model, {}), 2 * 4096 + 2 * 2048 + 3 * 8192);
  model.gated_mlp = false;
  EXPECT_EQ(LayerElements(model, {}), 2 * 4096 + 2 * 2048 + 2 * 8192);
  // Heads need not add up to hidden.
  model.head_dim = 32;
  EXPECT_EQ(LayerElements(model, {}), 2 * 8192 + 2 * 4096 + 2 * 8192);
}

TEST(ModelSizesTest, AgreesWithOptsKnownSizes) {
  // FlexGen 4.3: 8 h1^2 + 4 h1 h2 bytes of float16 in a layer.
  DecoderSpec opt;
  opt.num_layers = 96;
  opt.hidden_size = opt.embed_dim = 12288;
  opt.num_heads = opt.num_kv_heads = 96;
  opt.head_dim = 128;
  opt.intermediate_size = 49152;
  opt.vocab_size = 50272;
  opt.gated_mlp = false;
  const double h1 = 12288, h2 = 49152;
  EXPECT_EQ(WeightBytes(LayerElements(opt, {}), DType::kBFloat16,
                        WeightFormat::kFull),
            8 * h1 * h1 + 4 * h1 * h2);
  EXPECT_NEAR(
      static_cast<double>(96 * LayerElements(opt, {}) + 2 * HeadElements(opt)),
      175e9, 1e9);
  // K and V take 4 h1 bytes for each token.
  EXPECT_EQ(KvBytesPerPosition(opt, KvFormat::kBFloat16), 4 * h1);
}

TEST(ModelSizesTest, ANarrowerEmbeddingComesWithAProjection) {
  DecoderSpec model = SmallModel();
  EXPECT_EQ(HeadElements(model), 100 * 64);
  model.embed_dim = 32;
  EXPECT_EQ(HeadElements(model), 100 * 32 + 32 * 64);
}

TEST(ModelSizesTest, KvBytesByFormat) {
  DecoderSpec model = SmallModel();
  EXPECT_EQ(KvBytesPerPosition(model, KvFormat::kFloat32), 2 * 2 * 16 * 4);
  EXPECT_EQ(KvBytesPerPosition(model, KvFormat::kBFloat16), 2 * 2 * 16 * 2);
  // A scale and a minimum for a head of up to 64, two for one of up to 128.
  EXPECT_EQ(KvBytesPerPosition(model, KvFormat::kInt8), 2 * 2 * (16 + 4));
  EXPECT_EQ(KvBytesPerPosition(model, KvFormat::kInt4), 2 * 2 * (8 + 4));
  model.head_dim = 80;
  EXPECT_EQ(KvBytesPerPosition(model, KvFormat::kInt4), 2 * 2 * (40 + 8));
}

TEST(ModelSizesTest, WeightBytesByFormat) {
  EXPECT_EQ(WeightBytes(640, DType::kFloat32, WeightFormat::kFull), 2560);
  EXPECT_EQ(WeightBytes(640, DType::kBFloat16, WeightFormat::kFull), 1280);
  EXPECT_EQ(WeightBytes(640, DType::kBFloat16, WeightFormat::kInt8), 640 + 40);
  EXPECT_EQ(WeightBytes(640, DType::kFloat32, WeightFormat::kInt4), 320 + 40);
}

TEST(ModelSizesTest, RefusesSizesThatMakeNoSense) {
  EXPECT_TRUE(CheckModel(SmallModel()).ok());
  const auto error = [](auto change) {
    DecoderSpec model = SmallModel();
    change(model);
    EXPECT_EQ(CheckModel(model).code(), absl::StatusCode::kInvalidArgument);
    return std::string(CheckModel(model).message());
  };
  EXPECT_THAT(error([](DecoderSpec& s) { s.num_layers = 0; }),
              HasSubstr("number of layers is 0"));
  EXPECT_THAT(error([](DecoderSpec& s) { s.hidden_size = -1; }),
              HasSubstr("hidden"));
  EXPECT_THAT(error([](DecoderSpec& s) { s.embed_dim = 0; }),
              HasSubstr("embedding"));
  EXPECT_THAT(error([](DecoderSpec& s) { s.num_heads = 0; }),
              HasSubstr("heads"));
  EXPECT_THAT(error([](DecoderSpec& s) { s.num_kv_heads = 0; }),
              HasSubstr("KV heads"));
  EXPECT_THAT(error([](DecoderSpec& s) { s.num_kv_heads = 3; }),
              HasSubstr("share 3 KV heads"));
  EXPECT_THAT(error([](DecoderSpec& s) { s.head_dim = 0; }),
              HasSubstr("head size"));
  EXPECT_THAT(error([](DecoderSpec& s) { s.intermediate_size = 0; }),
              HasSubstr("MLP"));
  EXPECT_THAT(error([](DecoderSpec& s) { s.vocab_size = 0; }),
              HasSubstr("vocabulary"));
  EXPECT_THAT(error([](DecoderSpec& s) {
                s.positions = PositionKind::kLearned;
                s.rotaries.clear();
                s.max_positions = -5;
              }),
              HasSubstr("-5 rows"));
}

}  // namespace
}  // namespace sluice
