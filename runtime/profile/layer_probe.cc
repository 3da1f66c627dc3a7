#include "runtime/profile/layer_probe.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/status_macros.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/kv/batch_view.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/profile/measure.h"
#include "runtime/profile/probe_model.h"

namespace sluice {
namespace {

// Bytes of weights that exceed all caches.
constexpr uint64_t kBeyondCache = uint64_t{128} << 20;
constexpr size_t kMaxPackedUnits = 8;
// Bytes of a packed unit that are filled at a time.
constexpr size_t kPartBytes = size_t{16} << 20;
constexpr int32_t kMaxHidden = 4096;
constexpr int32_t kMinHidden = 128;
constexpr int32_t kHeadDim = 128;
constexpr int32_t kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
// The minimum of layers in flight before they are waited for, as waiting is no
// part of a layer's time.
constexpr size_t kInFlight = 8;
// The minimum share of a layer's time beside overheads: these were measured
// elsewhere, and may be too large for it.
constexpr double kMinShare = 0.25;

int32_t InnerOf(int32_t hidden) { return hidden * 11 / 4; }

}  // namespace

absl::StatusOr<std::unique_ptr<LayerProbe>> LayerProbe::Create(
    const LayerProbeOptions& options) {
  std::unique_ptr<LayerProbe> self(new LayerProbe(options));
  const uint64_t room = options.device_budget->free_bytes() / 3;
  int32_t hidden = kMaxHidden;
  // The size in float32, with room for computing.
  const auto needs = [](int32_t h) {
    const uint64_t width = static_cast<uint64_t>(h);
    return kBeyondCache + 2 * sizeof(float) * 11 * width * width;
  };
  while (hidden > kMinHidden && needs(hidden) > room) hidden /= 2;
  SLUICE_RETURN_IF_ERROR(self->Init(hidden));
  return self;
}

absl::Status LayerProbe::Init(int32_t hidden) {
  // The layer is in the middle: nothing is embedded, and there is no head.
  spec_ = ProbeModel(3, hidden, kHeadDim, InnerOf(hidden), 64);
  BackendOptions backend;
  backend.layers = {1, 2};
  backend.dtype = options_.dtype;
  backend.weight_format = options_.format;
  backend.max_rows = options_.max_rows;
  backend.max_model_len = options_.max_rows;
  backend.threads = options_.threads;
  backend.cores = options_.cores;
  backend.budget = options_.host_budget;
  backend.device = options_.device;
  SLUICE_ASSIGN_OR_RETURN(parts_,
                          CreateBackend(options_.backend, spec_, backend));
  const size_t x_bytes = sizeof(float) *
                         static_cast<size_t>(options_.max_rows) *
                         static_cast<size_t>(hidden);
  SLUICE_ASSIGN_OR_RETURN(x_, options_.device->Allocate("profile", x_bytes));
  if (options_.format != WeightFormat::kFull) {
    SLUICE_ASSIGN_OR_RETURN(
        dequantized_, options_.device->Allocate(
                          "profile", parts_.weights->DequantizedLayerBytes()));
  }
  return MakePackedFiles();
}

absl::Status LayerProbe::MakePackedFiles() {
  const size_t bytes = parts_.weights->LayerBytes(0);
  SLUICE_ASSIGN_OR_RETURN(
      const HostBuffer host,
      HostBuffer::Create("profile", std::min(bytes, kPartBytes),
                         options_.host_budget, options_.device));
  // The bits are about 1 in any dtype.
  uint16_t* const words = host.as<uint16_t>();
  for (size_t i = 0; i < host.bytes() / 2; ++i) {
    words[i] = static_cast<uint16_t>(0x3f80 + i % 61);
  }
  const uint64_t max_bytes =
      std::min(kBeyondCache + bytes, options_.device_budget->free_bytes() / 2);
  IoCompletion done;
  while (packed_.empty() || (packed_.size() < kMaxPackedUnits &&
                             (packed_.size() + 1) * bytes <= max_bytes)) {
    SLUICE_ASSIGN_OR_RETURN(packed_.emplace_back(),
                            options_.device->Allocate("profile", bytes));
    for (size_t at = 0; at < bytes; at += host.bytes()) {
      const size_t part = std::min(host.bytes(), bytes - at);
      done.Expect(1);
      options_.device->CopyIn(packed_.back().span().subspan(at, part),
                              {host.as<std::byte>(), part}, &done);
      SLUICE_RETURN_IF_ERROR(done.Wait());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> LayerProbe::LayerSeconds(
    int32_t rows, double seconds, const std::atomic<bool>* cancelled) {
  const BatchView batch = {.rows = rows};
  const size_t layers = std::max(packed_.size(), kInFlight);
  float* const x = x_.as<float>();
  SLUICE_ASSIGN_OR_RETURN(
      const double once,
      TimeCalls(seconds, 2, cancelled, [&]() -> absl::Status {
        for (size_t i = 0; i < layers; ++i) {
          const Backend::PackedLayer packed = {
              PackedView::Whole(packed_[i % packed_.size()].as<std::byte>()),
              false};
          SLUICE_RETURN_IF_ERROR(
              parts_.backend->ProjectQkv(1, packed, batch, x));
          SLUICE_RETURN_IF_ERROR(
              parts_.backend->ProjectOut(1, packed, batch, x));
          SLUICE_RETURN_IF_ERROR(parts_.backend->Mlp(1, packed, batch, x));
        }
        return parts_.backend->Finish();
      }));
  const double layer = once / static_cast<double>(layers);
  const double rest =
      options_.overheads.layer_seconds +
      options_.overheads.row_element_seconds * rows * spec_.hidden_size;
  return std::max(kMinShare * layer, layer - rest);
}

absl::StatusOr<RateCurve> LayerProbe::FlopsByRows(
    double seconds, const std::atomic<bool>* cancelled) {
  std::vector<RateCurve::Point> points;
  for (const int32_t rows : kRows) {
    if (rows > options_.max_rows) break;
    SLUICE_ASSIGN_OR_RETURN(
        const double layer,
        LayerSeconds(rows, seconds / static_cast<double>(std::size(kRows)),
                     cancelled));
    points.push_back(
        {static_cast<double>(rows),
         2 * rows * static_cast<double>(LayerElements(spec_, {})) / layer});
  }
  return RateCurve(std::move(points));
}

absl::StatusOr<double> LayerProbe::DequantizedBytes(
    double seconds, const std::atomic<bool>* cancelled) {
  const size_t layers = std::max(packed_.size(), kInFlight);
  SLUICE_ASSIGN_OR_RETURN(
      const double once,
      TimeCalls(seconds, 2, cancelled, [&]() -> absl::Status {
        for (size_t i = 0; i < layers; ++i) {
          SLUICE_RETURN_IF_ERROR(parts_.backend->DequantizeLayer(
              0, PackedView::Whole(packed_[i % packed_.size()].as<std::byte>()),
              dequantized_.as<std::byte>()));
        }
        return parts_.backend->Finish();
      }));
  return static_cast<double>(layers) *
         static_cast<double>(parts_.weights->DequantizedLayerBytes()) / once;
}

}  // namespace sluice
