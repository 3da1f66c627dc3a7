// The discrete CPU backend computes only with what is on its device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernels/backend_parts.h"
#include "runtime/kernels/device_checks.h"
#include "runtime/kv/batch_view.h"
#include "runtime/memory/cpu_device.h"
#include "tests/parity/random_source.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kRows = 3;

class DiscreteBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CpuDevice::Create({.budget = &device_memory_});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto backend = CreateBackend(BackendKind::kCpuDiscrete, spec_, Options());
    ASSERT_TRUE(backend.ok()) << backend.status();
    parts_ = *std::move(backend);
    backend_ = parts_.backend.get();
    weights_ = parts_.weights.get();
    host_packed_.resize(weights_->LayerBytes(0) + 4096);
    packed_ = Align(host_packed_.data());
    ASSERT_TRUE(weights_
                    ->PackLayer(
                        0, source_, [](uint64_t) { return absl::OkStatus(); },
                        PackedWindow::Whole(packed_, weights_->LayerBytes(0)))
                    .ok());
    layer_ = Allocate(weights_->LayerBytes(0));
    std::memcpy(layer_.data(), packed_, weights_->LayerBytes(0));
    x_ = Allocate(kRows * spec_.hidden_size * sizeof(float));
    pages_ =
        Allocate(parts_.kv_layout.layer_page_bytes() + KvLayout::kSlackBytes);
    host_x_.resize(kRows * spec_.hidden_size);
    segments_ = {{.row = 0,
                  .start = 0,
                  .num_tokens = kRows,
                  .pages = page_numbers_,
                  .kv = pages_.as<std::byte>()}};
    batch_ = {.rows = kRows, .tokens = tokens_, .segments = segments_};
  }
  BackendOptions Options() {
    BackendOptions options;
    options.layers = {0, 1};
    options.max_rows = 16;
    options.max_model_len = 64;
    options.budget = &host_memory_;
    options.device = device_.get();
    return options;
  }
  static std::byte* Align(std::byte* p) {
    const auto at = reinterpret_cast<uintptr_t>(p);
    return p + ((at + 4095) / 4096 * 4096 - at);
  }
  DeviceBuffer Allocate(size_t bytes) {
    auto buffer = device_->Allocate("test", bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  Backend::PackedLayer OnDevice() const {
    return {PackedView::Whole(layer_.data()), false};
  }
  Backend::PackedLayer OnHost() const {
    return {PackedView::Whole(packed_), false};
  }
  static void ExpectRefused(const absl::Status& status, const char* word) {
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(word));
  }

  const DecoderSpec spec_ = LlamaSpec(1, 32, 2, 2, 64, 50);
  RandomSource source_{3};
  MemoryBudget host_memory_{Tier::kHost, uint64_t{1} << 26};
  MemoryBudget device_memory_{Tier::kDevice, uint64_t{1} << 26};
  std::unique_ptr<Device> device_;
  BackendParts parts_;
  Backend* backend_ = nullptr;        // its
  PackedWeights* weights_ = nullptr;  // its
  std::vector<std::byte> host_packed_;
  std::byte* packed_ = nullptr;
  DeviceBuffer layer_, x_, pages_;
  std::vector<float> host_x_;
  const std::vector<int32_t> page_numbers_ = {0};
  const std::vector<int32_t> tokens_ = {1, 2, 3};
  std::vector<SegmentView> segments_;
  BatchView batch_;
};

TEST_F(DiscreteBackendTest, ComputesWithWhatIsOnTheDevice) {
  float* x = x_.as<float>();
  EXPECT_TRUE(backend_->ProjectQkv(0, OnDevice(), batch_, x).ok());
  EXPECT_TRUE(backend_->Attend(0, batch_, 0, 1).ok());
  EXPECT_TRUE(backend_->ProjectOut(0, OnDevice(), batch_, x).ok());
  EXPECT_TRUE(backend_->Mlp(0, OnDevice(), batch_, x).ok());
  // Work space, too, lies there.
  const Backend::AttentionRows rows = backend_->attention_rows(0);
  EXPECT_TRUE(device_->Contains(rows.qkv, kRows * rows.qkv_bytes));
  EXPECT_TRUE(device_->Contains(rows.out, kRows * rows.out_bytes));
  EXPECT_GT(device_memory_.holders()["workspace"], 0u);
}

TEST_F(DiscreteBackendTest, RefusesWhatIsNot) {
  float* x = x_.as<float>();
  float* host_x = host_x_.data();
  ExpectRefused(backend_->ProjectQkv(0, OnHost(), batch_, x), "weights");
  ExpectRefused(backend_->ProjectQkv(0, OnDevice(), batch_, host_x),
                "activations");
  ExpectRefused(backend_->ProjectOut(0, OnHost(), batch_, x), "weights");
  ExpectRefused(backend_->ProjectOut(0, OnDevice(), batch_, host_x),
                "activations");
  ExpectRefused(backend_->Mlp(0, OnHost(), batch_, x), "weights");
  ExpectRefused(backend_->Mlp(0, OnDevice(), batch_, host_x), "activations");
  // Only the part behind the split is on the host.
  Backend::PackedLayer split = OnDevice();
  split.view = {layer_.as<std::byte>(), packed_,
                weights_->layer(0).norm2.weight.offset, 0};
  ExpectRefused(backend_->Mlp(0, split, batch_, x), "weights");

  ExpectRefused(backend_->HeadInput(PackedView::Whole(packed_), tokens_, x, 0),
                "the head");
  ExpectRefused(backend_->HeadLogits(PackedView::Whole(packed_), 0, 1),
                "the head");
  std::vector<float> out(kRows * spec_.hidden_size);
  ExpectRefused(
      backend_->FinalRows(PackedView::Whole(packed_), tokens_, x, out.data()),
      "the head");
  ExpectRefused(DeviceChecks(nullptr, 64).RoomForRow(63),
                "no room for a row of 64 hidden states");
  ExpectRefused(backend_->Embed(PackedView::Whole(packed_), batch_, x),
                "the embedding");
  std::vector<std::byte> host_pages(pages_.bytes());
  segments_[0].kv = host_pages.data();
  ExpectRefused(backend_->Attend(0, batch_, 0, 1), "a KV page");
}

TEST_F(DiscreteBackendTest, LogitsReachTheHost) {
  std::vector<std::byte> host(weights_->head()[0].bytes + 4096);
  std::byte* packed = Align(host.data());
  ASSERT_TRUE(weights_
                  ->PackHead(
                      0, source_, [](uint64_t) { return absl::OkStatus(); },
                      PackedWindow::Whole(packed, weights_->head()[0].bytes))
                  .ok());
  const DeviceBuffer head = Allocate(weights_->head()[0].bytes);
  std::memcpy(head.data(), packed, weights_->head()[0].bytes);
  const std::vector<int32_t> rows = {0, 2};
  const PackedView view = PackedView::Whole(head.data());
  ASSERT_TRUE(backend_->HeadInput(view, rows, x_.as<float>(), 0).ok());
  ASSERT_TRUE(backend_->HeadLogits(view, 0, 2).ok());
  std::vector<Backend::LogitRow> taken(2);
  ASSERT_TRUE(backend_->TakeLogits(taken).ok());
  for (const Backend::LogitRow& row : taken) {
    EXPECT_FALSE(row.sampled());
    EXPECT_FALSE(device_->Touches(row.logits.data(), row.logits.size_bytes()));
    EXPECT_EQ(row.logits.size(), 50u);
  }
}

// A row that is sampled on the device brings only its answer to the host; its
// logits stay there.
TEST_F(DiscreteBackendTest, SamplesWhereTheLogitsAre) {
  std::vector<std::byte> host(weights_->head()[0].bytes + 4096);
  std::byte* packed = Align(host.data());
  ASSERT_TRUE(weights_
                  ->PackHead(
                      0, source_, [](uint64_t) { return absl::OkStatus(); },
                      PackedWindow::Whole(packed, weights_->head()[0].bytes))
                  .ok());
  const DeviceBuffer head = Allocate(weights_->head()[0].bytes);
  std::memcpy(head.data(), packed, weights_->head()[0].bytes);
  for (int i = 0; i < kRows * spec_.hidden_size; ++i) {
    x_.as<float>()[i] = static_cast<float>(i * i % 17) - 8;
  }
  const std::vector<int32_t> rows = {0, 1, 2, 1};
  const PackedView view = PackedView::Whole(head.data());
  const auto take = [&](std::vector<Backend::LogitRow>& taken) {
    ASSERT_TRUE(backend_->HeadInput(view, rows, x_.as<float>(), 0).ok());
    ASSERT_TRUE(backend_->HeadLogits(view, 0, 4).ok());
    ASSERT_TRUE(backend_->TakeLogits(taken).ok());
  };
  SampleRequest request;
  request.temperature = 1;
  request.uniform = 0.6;
  request.logprob = 1;
  std::vector<Backend::LogitRow> taken(4);
  taken[1].request = request;
  const uint64_t before = device_->totals().d2h_bytes;
  take(taken);
  EXPECT_EQ(device_->totals().d2h_bytes - before, 3 * 50 * sizeof(float));
  EXPECT_FALSE(taken[0].sampled());
  ASSERT_TRUE(taken[1].sampled());
  EXPECT_FALSE(taken[2].sampled());
  // The last row's logits are the second one's.
  SamplerScratch scratch;
  const TokenSample want = SampleToken(request, taken[3].logits, scratch);
  EXPECT_EQ(taken[1].sample.token, want.token);
  EXPECT_EQ(taken[1].sample.logprob, want.logprob);
}

TEST_F(DiscreteBackendTest, NeedsADevice) {
  BackendOptions options = Options();
  options.device = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(
      CreateBackend(BackendKind::kCpuDiscrete, spec_, options).status()));
}

// More rotated elements than a head has would be written behind it.
TEST_F(DiscreteBackendTest, RotaryEmbeddingsFitTheHeads) {
  const int32_t fits = spec_.head_dim / 2 * 2;
  for (const BackendKind kind :
       {BackendKind::kCpu, BackendKind::kCpuDiscrete}) {
    BackendOptions options = Options();
    if (kind == BackendKind::kCpu) options.device = nullptr;
    for (const auto& [dim, angles] :
         {std::pair(fits + 2, fits / 2 + 1), std::pair(fits, fits / 2 - 1),
          std::pair(fits - 1, fits / 2), std::pair(-2, 0)}) {
      DecoderSpec spec = spec_;
      spec.rotaries = {
          {.dim = dim, .inv_freq = std::vector<float>(angles, 1.0F)}};
      const absl::Status status = CreateBackend(kind, spec, options).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("does not fit heads of"));
    }
  }
}

}  // namespace
}  // namespace sluice
