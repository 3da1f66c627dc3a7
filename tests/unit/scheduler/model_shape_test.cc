#include "scheduler/cost/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using testing::HasSubstr;

ModelShape SmallShape() {
  return {.num_layers = 4,
          .hidden = 64,
          .embed = 64,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .intermediate = 128,
          .vocab = 100};
}

TEST(ModelShapeTest, CountsALayersMatrices) {
  ModelShape shape = SmallShape();
  // q and out 64 x 64, k and v 32 x 64; gate, up and down 64 x 128.
  EXPECT_EQ(shape.layer_elements(), 2 * 4096 + 2 * 2048 + 3 * 8192);
  shape.gated_mlp = false;
  EXPECT_EQ(shape.layer_elements(), 2 * 4096 + 2 * 2048 + 2 * 8192);
  // Heads need not add up to hidden.
  shape.head_dim = 32;
  EXPECT_EQ(shape.layer_elements(), 2 * 8192 + 2 * 4096 + 2 * 8192);
}

TEST(ModelShapeTest, AgreesWithOptsKnownSizes) {
  // FlexGen 4.3: 8 h1^2 + 4 h1 h2 bytes of float16 in a layer.
  const ModelShape opt = {.num_layers = 96,
                          .hidden = 12288,
                          .embed = 12288,
                          .heads = 96,
                          .kv_heads = 96,
                          .head_dim = 128,
                          .intermediate = 49152,
                          .vocab = 50272,
                          .position_rows = 2050,
                          .gated_mlp = false,
                          .tied_embeddings = true};
  const double h1 = 12288, h2 = 49152;
  EXPECT_EQ(
      WeightBytes(opt.layer_elements(), DType::kBFloat16, WeightFormat::kFull),
      8 * h1 * h1 + 4 * h1 * h2);
  EXPECT_NEAR(static_cast<double>(opt.stage_elements({0, 96})), 175e9, 1e9);
  // And 4 h1 bytes of K and V for each token.
  EXPECT_EQ(opt.kv_bytes_per_position(KvFormat::kBFloat16), 4 * h1);
}

TEST(ModelShapeTest, StagesAddUpToTheModel) {
  ModelShape shape = SmallShape();
  shape.position_rows = 10;
  const int64_t layers = 4 * shape.layer_elements();
  EXPECT_EQ(shape.stage_elements({1, 3}), layers / 2);
  EXPECT_EQ(shape.stage_elements({0, 2}), layers / 2 + 100 * 64 + 10 * 64);
  EXPECT_EQ(shape.stage_elements({2, 4}), layers / 2 + 100 * 64);
  EXPECT_EQ(shape.stage_elements({0, 4}),
            shape.stage_elements({0, 1}) + shape.stage_elements({1, 4}));
  // A narrower embedding comes with a projection at either end.
  shape.embed = 32;
  EXPECT_EQ(shape.embedding_elements(), 100 * 32 + 10 * 64 + 32 * 64);
  EXPECT_EQ(shape.head_elements(), 100 * 32 + 32 * 64);
}

TEST(ModelShapeTest, KvBytesByFormat) {
  ModelShape shape = SmallShape();
  EXPECT_EQ(shape.kv_bytes_per_position(KvFormat::kFloat32), 2 * 2 * 16 * 4);
  EXPECT_EQ(shape.kv_bytes_per_position(KvFormat::kBFloat16), 2 * 2 * 16 * 2);
  // A scale and a minimum for a head of up to 64, two for one of up to 128.
  EXPECT_EQ(shape.kv_bytes_per_position(KvFormat::kInt8), 2 * 2 * (16 + 4));
  EXPECT_EQ(shape.kv_bytes_per_position(KvFormat::kInt4), 2 * 2 * (8 + 4));
  shape.head_dim = 80;
  EXPECT_EQ(shape.kv_bytes_per_position(KvFormat::kInt4), 2 * 2 * (40 + 8));
}

TEST(ModelShapeTest, WeightBytesByFormat) {
  EXPECT_EQ(WeightBytes(640, DType::kFloat32, WeightFormat::kFull), 2560);
  EXPECT_EQ(WeightBytes(640, DType::kBFloat16, WeightFormat::kFull), 1280);
  EXPECT_EQ(WeightBytes(640, DType::kBFloat16, WeightFormat::kInt8), 640 + 40);
  EXPECT_EQ(WeightBytes(640, DType::kFloat32, WeightFormat::kInt4), 320 + 40);
}

TEST(ModelShapeTest, RefusesSizesThatMakeNoSense) {
  EXPECT_TRUE(SmallShape().Check().ok());
  const auto error = [](auto change) {
    ModelShape shape = SmallShape();
    change(shape);
    EXPECT_EQ(shape.Check().code(), absl::StatusCode::kInvalidArgument);
    return std::string(shape.Check().message());
  };
  EXPECT_THAT(error([](ModelShape& s) { s.num_layers = 0; }),
              HasSubstr("number of layers is 0"));
  EXPECT_THAT(error([](ModelShape& s) { s.hidden = -1; }), HasSubstr("hidden"));
  EXPECT_THAT(error([](ModelShape& s) { s.embed = 0; }),
              HasSubstr("embedding"));
  EXPECT_THAT(error([](ModelShape& s) { s.heads = 0; }), HasSubstr("heads"));
  EXPECT_THAT(error([](ModelShape& s) { s.kv_heads = 0; }),
              HasSubstr("KV heads"));
  EXPECT_THAT(error([](ModelShape& s) { s.kv_heads = 3; }),
              HasSubstr("share 3 KV heads"));
  EXPECT_THAT(error([](ModelShape& s) { s.head_dim = 0; }),
              HasSubstr("head size"));
  EXPECT_THAT(error([](ModelShape& s) { s.intermediate = 0; }),
              HasSubstr("MLP"));
  EXPECT_THAT(error([](ModelShape& s) { s.vocab = 0; }),
              HasSubstr("vocabulary"));
  EXPECT_THAT(error([](ModelShape& s) { s.position_rows = -5; }),
              HasSubstr("-5 rows"));
}

}  // namespace
}  // namespace sluice
