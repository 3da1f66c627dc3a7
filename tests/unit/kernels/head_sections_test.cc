// Logits section by section are the products with the head's rows, whichever
// section those are in.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "runtime/memory/host_buffer.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "tests/parity/random_source.h"
#include "tests/unit/kernels/small_backend.h"

namespace sluice {
namespace {

constexpr int32_t kRows = 5;

std::vector<float> Read(const TensorSource& source, const DecoderSpec& spec,
                        TensorRole role) {
  for (const TensorRef& ref : HeadTensors(spec)) {
    if (ref.role != role) continue;
    std::vector<float> all(ref.shape[0] * ref.shape[1]);
    EXPECT_TRUE(source.ReadRows(ref, 0, ref.shape[0], all.data()).ok());
    return all;
  }
  return {};
}

// [rows, k] times the transposed [n, k].
std::vector<double> Product(const std::vector<double>& a,
                            const std::vector<float>& w, int64_t k) {
  std::vector<double> out;
  for (size_t row = 0; row < a.size() / k; ++row) {
    for (size_t col = 0; col < w.size() / k; ++col) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += a[row * k + i] * static_cast<double>(w[col * k + i]);
      }
      out.push_back(sum);
    }
  }
  return out;
}

void Check(int32_t embed_dim, DType dtype, WeightFormat format, double bound) {
  DecoderSpec spec = LlamaSpec(1, 64, 4, 2, 100, 40'021);
  spec.final_norm = false;
  spec.embed_dim = embed_dim;
  const RandomSource source(7);
  MemoryBudget memory(Tier::kHost, uint64_t{1} << 28);
  auto backend = SmallBackend(spec, dtype, format, &memory);
  ASSERT_TRUE(backend.ok()) << backend.status();
  Backend& b = *backend->backend;
  PackedWeights& weights = *backend->weights;
  ASSERT_GT(weights.num_head_sections(), 1);
  std::vector<HostBuffer> sections;
  for (int s = 0; s < weights.num_head_sections(); ++s) {
    auto packed =
        HostBuffer::Create("section", weights.head()[s].bytes, &memory);
    ASSERT_TRUE(packed.ok());
    ASSERT_TRUE(weights
                    .PackHead(
                        s, source, [](uint64_t) { return absl::OkStatus(); },
                        PackedWindow::Whole(packed->as<std::byte>(),
                                            weights.head()[s].bytes))
                    .ok());
    sections.push_back(*std::move(packed));
  }
  std::vector<float> x(kRows * 64);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::sin(static_cast<float>(i) * 0.7F);
  }
  const std::vector<int32_t> rows = {0, 1, 2, 3, 4};
  ASSERT_TRUE(
      b.HeadInput(PackedView::Whole(sections[0].data()), rows, x.data(), 0)
          .ok());
  for (int s = 0; s < weights.num_head_sections(); ++s) {
    const absl::Status status =
        b.HeadLogits(PackedView::Whole(sections[s].data()), s, kRows);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::vector<Backend::LogitRow> taken(kRows);
  ASSERT_TRUE(b.TakeLogits(taken).ok());
  std::vector<float> logits;
  for (const Backend::LogitRow& row : taken) {
    EXPECT_FALSE(row.sampled());
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
  }
  std::vector<double> wanted(x.begin(), x.end());
  if (embed_dim != 64) {
    wanted = Product(wanted, Read(source, spec, TensorRole::kProjectOut), 64);
  }
  wanted = Product(wanted, Read(source, spec, TensorRole::kHead), embed_dim);
  ASSERT_EQ(logits.size(), wanted.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += (logits[i] - wanted[i]) * (logits[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  EXPECT_LT(std::sqrt(error / norm), bound);
}

TEST(HeadSectionsTest, AreTheProductsOfAllRows) {
  for (const int32_t embed_dim : {64, 48}) {
    Check(embed_dim, DType::kFloat32, WeightFormat::kFull, 1e-5);
    Check(embed_dim, DType::kBFloat16, WeightFormat::kFull, 1e-2);
    Check(embed_dim, DType::kFloat32, WeightFormat::kInt4, 2e-2);
  }
}

}  // namespace
}  // namespace sluice
