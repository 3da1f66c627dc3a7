#include "tests/unit/exec/late_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/kv/kv_layout.h"

namespace sluice {
namespace {

constexpr std::byte kPoison{0xff};

bool IsPoison(const std::byte* data, size_t bytes) {
  return std::all_of(data, data + bytes,
                     [](std::byte b) { return b == kPoison; });
}

}  // namespace

struct LateBackend::Batch {
  std::vector<int32_t> tokens;
  std::vector<std::vector<int32_t>> pages;
  std::vector<SegmentView> segments;
  BatchView view;
};

std::shared_ptr<LateBackend::Batch> LateBackend::Keep(const BatchView& batch) {
  return Keep(batch, 0, static_cast<int32_t>(batch.segments.size()));
}

std::shared_ptr<LateBackend::Batch> LateBackend::Keep(const BatchView& batch,
                                                      int32_t first_segment,
                                                      int32_t count) {
  auto kept = std::make_shared<Batch>();
  kept->tokens.assign(batch.tokens.begin(), batch.tokens.end());
  kept->segments.resize(batch.segments.size());
  kept->pages.reserve(count);
  for (int32_t i = first_segment; i < first_segment + count; ++i) {
    SegmentView& segment = kept->segments[i];
    segment = batch.segments[i];
    segment.pages =
        kept->pages.emplace_back(segment.pages.begin(), segment.pages.end());
  }
  kept->view = batch;
  kept->view.tokens = kept->tokens;
  kept->view.segments = kept->segments;
  return kept;
}

LateBackend::Range& LateBackend::Read(absl::string_view what, const void* data,
                                      size_t bytes) {
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(data));
  Range& range = ranges_[begin];
  range.what = std::string(what);
  const size_t known = range.saved.size();
  if (bytes > known) {
    range.saved.insert(range.saved.end(), begin + known, begin + bytes);
    if (range.poisoned) std::fill(begin + known, begin + bytes, kPoison);
  }
  return range;
}

void LateBackend::Write(absl::string_view what, const void* data,
                        size_t bytes) {
  Range& range = Read(what, data, bytes);
  range.poisoned = true;
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(data));
  std::fill(begin, begin + range.saved.size(), kPoison);
}

void LateBackend::ReadPacked(absl::string_view what, const PackedView& packed,
                             size_t bytes) {
  const size_t split = std::min(packed.split, bytes);
  if (split > 0) Read(what, packed.low, split);
  if (split < bytes) Read(what, packed.At(split), bytes - split);
}

void LateBackend::ReadLayer(int layer, const PackedLayer& packed) {
  ReadPacked("weights", packed.view,
             packed.dequantized ? weights_.DequantizedLayerBytes()
                                : weights_.LayerBytes(layer));
}

absl::Status LateBackend::DequantizeLayer(int layer, const PackedView& packed,
                                          std::byte* out) {
  ReadPacked("weights", packed, weights_.LayerBytes(layer));
  Write("a dequantized layer", out, weights_.DequantizedLayerBytes());
  return Later([this, layer, packed, out] {
    return inner_->DequantizeLayer(layer, packed, out);
  });
}

absl::Status LateBackend::Embed(const PackedView& packed,
                                const BatchView& batch, float* x) {
  ReadPacked("the embedding", packed, weights_.EmbeddingBytes());
  Write("activations", x, RowBytes(batch.rows));
  return Later([this, packed, batch = Keep(batch), x] {
    return inner_->Embed(packed, batch->view, x);
  });
}

absl::Status LateBackend::ProjectQkv(int layer, const PackedLayer& packed,
                                     const BatchView& batch, const float* x) {
  ReadLayer(layer, packed);
  Read("activations", x, RowBytes(batch.rows));
  const AttentionRows rows = attention_rows(batch.attention_slot);
  Write("q, k and v", rows.qkv, batch.rows * rows.qkv_bytes);
  return Later([this, layer, packed, batch = Keep(batch), x] {
    return inner_->ProjectQkv(layer, packed, batch->view, x);
  });
}

absl::Status LateBackend::Attend(int layer, const BatchView& batch,
                                 int32_t first_segment, int32_t count) {
  const AttentionRows rows = attention_rows(batch.attention_slot);
  Read("q, k and v", rows.qkv, batch.rows * rows.qkv_bytes);
  for (const SegmentView& segment :
       batch.segments.subspan(first_segment, count)) {
    const int32_t first_written = segment.start / kPageTokens;
    for (size_t i = 0; i < segment.pages.size(); ++i) {
      const std::byte* const page = segment.kv + segment.pages[i] * page_bytes_;
      if (static_cast<int32_t>(i) < first_written) {
        Read("a KV page", page, page_bytes_);
      } else {
        Write("a KV page", page, page_bytes_);
      }
    }
  }
  // The other segments may be another thread's.
  return Later([this, layer, batch = Keep(batch, first_segment, count),
                first_segment, count] {
    return inner_->Attend(layer, batch->view, first_segment, count);
  });
}

absl::Status LateBackend::ProjectOut(int layer, const PackedLayer& packed,
                                     const BatchView& batch, float* x) {
  ReadLayer(layer, packed);
  const AttentionRows rows = attention_rows(batch.attention_slot);
  Read("what attention gave", rows.out, batch.rows * rows.out_bytes);
  Write("activations", x, RowBytes(batch.rows));
  return Later([this, layer, packed, batch = Keep(batch), x] {
    return inner_->ProjectOut(layer, packed, batch->view, x);
  });
}

absl::Status LateBackend::Mlp(int layer, const PackedLayer& packed,
                              const BatchView& batch, float* x) {
  ReadLayer(layer, packed);
  Write("activations", x, RowBytes(batch.rows));
  return Later([this, layer, packed, batch = Keep(batch), x] {
    return inner_->Mlp(layer, packed, batch->view, x);
  });
}

absl::Status LateBackend::Route(int layer, const PackedLayer& packed,
                                const BatchView& batch, const float* x,
                                int32_t at) {
  ReadLayer(layer, packed);
  Read("activations", x, RowBytes(batch.rows));
  return Later([this, layer, packed, batch = Keep(batch), x, at] {
    return inner_->Route(layer, packed, batch->view, x, at);
  });
}

absl::StatusOr<std::span<const int32_t>> LateBackend::RowsOfExperts() {
  SLUICE_RETURN_IF_ERROR(Finish());
  return inner_->RowsOfExperts();
}

absl::Status LateBackend::RunExpert(int layer, int expert,
                                    const PackedView& packed) {
  ReadPacked("an expert", packed, weights_.layer(layer).expert.bytes);
  return Later([this, layer, expert, packed] {
    return inner_->RunExpert(layer, expert, packed);
  });
}

absl::Status LateBackend::AddExperts(int layer, const BatchView& batch,
                                     int32_t at, float* x) {
  Write("activations", x, RowBytes(batch.rows));
  return Later([this, layer, batch = Keep(batch), at, x] {
    return inner_->AddExperts(layer, batch->view, at, x);
  });
}

absl::Status LateBackend::HeadInput(const PackedView& packed,
                                    std::span<const int32_t> rows_of_x,
                                    const float* x, int32_t at) {
  if (rows_of_x.empty()) return absl::OkStatus();
  ReadPacked("the head", packed, weights_.head()[0].bytes);
  Read("activations", x,
       RowBytes(1 + *std::max_element(rows_of_x.begin(), rows_of_x.end())));
  return Later([this, packed,
                rows = std::vector<int32_t>(rows_of_x.begin(), rows_of_x.end()),
                x, at] { return inner_->HeadInput(packed, rows, x, at); });
}

absl::Status LateBackend::FinalRows(const PackedView& packed,
                                    std::span<const int32_t> rows_of_x,
                                    const float* x, float* out) {
  SLUICE_RETURN_IF_ERROR(ComputeAll());
  return inner_->FinalRows(packed, rows_of_x, x, out);
}

absl::Status LateBackend::HeadLogits(const PackedView& packed, int section,
                                     int32_t rows) {
  ReadPacked("the head", packed, weights_.head()[section].bytes);
  return Later([this, packed, section, rows] {
    return inner_->HeadLogits(packed, section, rows);
  });
}

absl::Status LateBackend::TakeLogits(std::span<LogitRow> rows) {
  SLUICE_RETURN_IF_ERROR(ComputeAll());
  return inner_->TakeLogits(rows);
}

absl::Status LateBackend::Later(std::function<absl::Status()> call) {
  if (fail_in_ >= 0 && fail_in_-- == 0) {
    return absl::UnavailableError("a call that was to fail");
  }
  calls_.push_back(std::move(call));
  return absl::OkStatus();
}

absl::Status LateBackend::Finish() {
  if (!calls_.empty()) ++waits_;
  return ComputeAll();
}

absl::Status LateBackend::ComputeAll() {
  const auto calls = std::exchange(calls_, {});
  const auto ranges = std::exchange(ranges_, {});
  absl::Status status;
  for (const auto& [data, range] : ranges) {
    const size_t bytes = range.saved.size();
    const bool same = range.poisoned
                          ? IsPoison(data, bytes)
                          : std::memcmp(data, range.saved.data(), bytes) == 0;
    if (!same) {
      status.Update(absl::InternalError(
          absl::StrCat(range.what, " (", bytes,
                       " bytes) changed before the device had computed")));
    }
    if (range.poisoned) std::memcpy(data, range.saved.data(), bytes);
  }
  SLUICE_RETURN_IF_ERROR(status);
  for (const auto& call : calls) {
    ++computed_;
    SLUICE_RETURN_IF_ERROR(call());
  }
  return absl::OkStatus();
}

}  // namespace sluice
