#include "runtime/placement/tensor_shard.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

DecoderSpec Spec(int32_t hidden, int32_t heads, int32_t kv_heads,
                 int32_t head_dim, int32_t inner, int32_t vocab) {
  DecoderSpec spec;
  spec.hidden_size = spec.embed_dim = hidden;
  spec.num_heads = heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim = head_dim;
  spec.intermediate_size = inner;
  spec.vocab_size = vocab;
  return spec;
}

TEST(TensorShardTest, PartsFollowEachOtherAndAreTheWhole) {
  for (const DecoderSpec& spec :
       {Spec(4096, 32, 8, 128, 14336, 128256),
        Spec(2560, 32, 32, 80, 10240, 50272), Spec(96, 6, 2, 16, 200, 301),
        Spec(40, 2, 1, 20, 64, 33), Spec(7168, 56, 8, 128, 20480, 32000)}) {
    for (const WeightFormat format :
         {WeightFormat::kFull, WeightFormat::kInt4}) {
      const bool quantized = format == WeightFormat::kInt4;
      for (const int32_t ranks : {1, 2, 3, 4, 8, 64}) {
        SCOPED_TRACE(testing::Message()
                     << spec.hidden_size << " over " << ranks);
        TensorShard last;
        for (int32_t rank = 0; rank < ranks; ++rank) {
          const TensorShard shard =
              TensorShard::Of(spec, format, {rank, ranks});
          for (const auto columns : {&TensorShard::hidden, &TensorShard::inner,
                                     &TensorShard::vocab}) {
            EXPECT_EQ((shard.*columns).begin, (last.*columns).end);
            EXPECT_GE((shard.*columns).size(), 0);
            if (quantized) {
              EXPECT_EQ((shard.*columns).begin % 64 == 0 ||
                            (shard.*columns).size() == 0,
                        true);
            }
          }
          ASSERT_GT(shard.heads.size(), 0);
          ASSERT_GT(shard.kv_heads.size(), 0);
          ASSERT_EQ(shard.heads.size() % shard.kv_heads.size(), 0);
          // Its query heads attend with its KV heads.
          const int32_t group = spec.num_heads / spec.num_kv_heads;
          EXPECT_EQ(shard.heads.begin / group, shard.kv_heads.begin);
          EXPECT_EQ((shard.heads.end - 1) / group, shard.kv_heads.end - 1);
          if (shard.divides_heads) {
            EXPECT_EQ(shard.heads.begin, last.heads.end);
            if (quantized) {
              EXPECT_EQ(shard.heads.begin * spec.head_dim % 64, 0);
              EXPECT_EQ(shard.heads.size() * spec.head_dim % 64, 0);
              EXPECT_EQ(shard.kv_heads.size() * spec.head_dim % 64, 0);
            }
          } else {
            EXPECT_EQ(shard.heads, (ColumnRange{0, spec.num_heads}));
            EXPECT_EQ(shard.kv_heads, (ColumnRange{0, spec.num_kv_heads}));
          }
          last = shard;
        }
        EXPECT_EQ(last.hidden.end, spec.hidden_size);
        EXPECT_EQ(last.inner.end, spec.intermediate_size);
        EXPECT_EQ(last.vocab.end, spec.vocab_size);
        EXPECT_EQ(last.heads.end, spec.num_heads);
        const auto bounds = ShardBounds(spec, format, ranks,
                                        &TensorShard::inner, sizeof(float));
        EXPECT_EQ(bounds.size(), static_cast<size_t>(ranks) + 1);
        EXPECT_EQ(bounds.back(), spec.intermediate_size * sizeof(float));
      }
    }
  }
}

TEST(TensorShardTest, RealShapesAreDividedEvenlyAtPanels) {
  const DecoderSpec spec = Spec(4096, 32, 8, 128, 14336, 128256);
  for (const int32_t ranks : {2, 4, 8}) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const TensorShard shard =
          TensorShard::Of(spec, WeightFormat::kInt4, {rank, ranks});
      EXPECT_TRUE(shard.divides_heads);
      EXPECT_EQ(shard.heads.size(), 32 / ranks);
      EXPECT_EQ(shard.kv_heads.size(), 8 / ranks);
      EXPECT_EQ(shard.hidden.size(), 4096 / ranks);
      EXPECT_EQ(shard.inner.size(), 14336 / ranks);
      EXPECT_EQ(shard.hidden.begin % 128, 0);
      EXPECT_EQ(shard.vocab.begin % 128, 0);
      EXPECT_NEAR(shard.vocab.size(), 128256.0 / ranks, 128);
    }
  }
}

TEST(TensorShardTest, RanksShareKvHeadsWhereThereAreFew) {
  const DecoderSpec spec = Spec(4096, 32, 2, 128, 11008, 32000);
  for (int32_t rank = 0; rank < 8; ++rank) {
    const TensorShard shard =
        TensorShard::Of(spec, WeightFormat::kFull, {rank, 8});
    EXPECT_TRUE(shard.divides_heads);
    EXPECT_EQ(shard.heads, (ColumnRange{4 * rank, 4 * rank + 4}));
    EXPECT_EQ(shard.kv_heads, (ColumnRange{rank / 4, rank / 4 + 1}));
  }
  // Fewer heads than ranks: all have all.
  EXPECT_FALSE(
      TensorShard::Of(Spec(64, 2, 1, 32, 128, 100), WeightFormat::kFull, {2, 3})
          .divides_heads);
}

TEST(TensorShardTest, GatheredBytes) {
  // Llama-3-8B's: 1 h of attention, 3.5 h of the MLP, 2 h of the stream.
  const DecoderSpec spec = Spec(4096, 32, 8, 128, 14336, 128256);
  const TensorShard one = TensorShard::Of(spec, WeightFormat::kFull, {0, 1});
  const TensorShard two = TensorShard::Of(spec, WeightFormat::kFull, {0, 2});
  EXPECT_EQ(GatheredRowBytes(spec, {}, one, DType::kFloat32), 0);
  EXPECT_EQ(GatheredRowBytes(spec, {}, two, DType::kFloat32),
            4 * 13 * 4096 / 2);
  EXPECT_EQ(GatheredRowBytes(spec, {}, two, DType::kBFloat16),
            2 * 4096 + 2 * 14336 + 8 * 4096);
}

}  // namespace
}  // namespace sluice
