// A packed unit packed window by window is the packed unit packed at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/memory/host_buffer.h"
#include "tests/parity/random_source.h"
#include "tests/unit/kernels/small_backend.h"

namespace sluice {
namespace {

using Pack =
    std::function<absl::Status(LoadProgress progress, const PackedWindow& to)>;

class WeightWindowTest : public testing::Test {
 protected:
  // Returns what `pack` packs in windows of `window` bytes; the last one may be
  // smaller.
  std::vector<std::byte> Packed(size_t bytes, size_t window, const Pack& pack) {
    std::vector<std::byte> packed;
    for (size_t begin = 0; begin < bytes; begin += window) {
      const size_t size = std::min(window, bytes - begin);
      // The buffer has just that size, so that the sanitizers see what is
      // written beyond.
      auto buffer = HostBuffer::Create("window", size, &memory_);
      EXPECT_TRUE(buffer.ok()) << buffer.status();
      uint64_t done = 0;
      const absl::Status status = pack(
          [&](uint64_t n) {
            done += n;
            return absl::OkStatus();
          },
          {buffer->as<std::byte>(), begin, begin + size});
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(done, size);
      packed.insert(packed.end(), buffer->as<std::byte>(),
                    buffer->as<std::byte>() + size);
    }
    return packed;
  }

  void ExpectAllWindowsAgree(const std::string& what, size_t bytes,
                             const Pack& pack) {
    const std::vector<std::byte> whole = Packed(bytes, bytes, pack);
    for (const size_t window : {size_t{4096}, size_t{12288}, size_t{1} << 17}) {
      EXPECT_EQ(Packed(bytes, window, pack), whole)
          << what << " in windows of " << window;
    }
  }

  void Check(const DecoderSpec& spec, DType dtype, WeightFormat format) {
    auto backend = SmallBackend(spec, dtype, format, &memory_);
    ASSERT_TRUE(backend.ok()) << backend.status();
    PackedWeights& b = *backend->weights;
    ExpectAllWindowsAgree("layer", b.LayerBytes(0),
                          [&](LoadProgress progress, const PackedWindow& to) {
                            return b.PackLayer(0, source_, progress, to);
                          });
    ExpectAllWindowsAgree("embedding", b.EmbeddingBytes(),
                          [&](LoadProgress progress, const PackedWindow& to) {
                            return b.PackEmbedding(source_, progress, to);
                          });
    EXPECT_GT(b.num_head_sections(), 1);
    for (int section = 0; section < b.num_head_sections(); ++section) {
      ExpectAllWindowsAgree("head", b.head()[section].bytes,
                            [&](LoadProgress progress, const PackedWindow& to) {
                              return b.PackHead(section, source_, progress, to);
                            });
    }
  }

  RandomSource source_{3};
  MemoryBudget memory_{Tier::kHost, uint64_t{1} << 28};
};

TEST_F(WeightWindowTest, GatedWithRotaryPositions) {
  const DecoderSpec spec = LlamaSpec(1, 72, 6, 2, 200, 15003);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const WeightFormat format :
         {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4}) {
      Check(spec, dtype, format);
    }
  }
}

TEST_F(WeightWindowTest, BiasesLearnedPositionsAndProjections) {
  DecoderSpec spec = LlamaSpec(1, 64, 4, 4, 144, 13515);
  spec.norm = NormKind::kLayerNorm;
  spec.positions = PositionKind::kLearned;
  spec.rotaries.clear();
  spec.max_positions = 100;
  spec.position_offset = 2;
  spec.embed_dim = 48;
  spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
  for (const bool gated : {true, false}) {
    spec.gated_mlp = gated;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Check(spec, dtype, WeightFormat::kFull);
    }
  }
}

TEST_F(WeightWindowTest, FilesDoForSequencesOfAnyLength) {
  const auto key = [&](const DecoderSpec& spec, int32_t max_model_len) {
    auto backend = SmallBackend(spec, DType::kFloat32, WeightFormat::kFull,
                                &memory_, max_model_len);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return backend.ok() ? backend->weights->PackedKey() : "";
  };
  DecoderSpec spec = LlamaSpec(1, 64, 4, 2, 100, 200);
  EXPECT_EQ(key(spec, 64), key(spec, 96));
  // A table of positions has rows for each.
  spec.positions = PositionKind::kLearned;
  EXPECT_EQ(key(spec, 64), key(spec, 64));
  EXPECT_NE(key(spec, 64), key(spec, 96));
}

}  // namespace
}  // namespace sluice
