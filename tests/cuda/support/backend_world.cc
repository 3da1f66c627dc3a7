#include "tests/cuda/support/backend_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "runtime/kernels/backend_parts.h"
#include "runtime/kernels/cuda/cuda_backend.h"

namespace sluice {
namespace {

constexpr size_t kBlock = 4096;

void ExpectOk(const absl::Status& status) {
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace

std::unique_ptr<BackendWorld> BackendWorld::Create(const DecoderSpec& spec,
                                                   const TensorSource& source,
                                                   const WorldOptions& options,
                                                   Device* device,
                                                   cudaStream_t stream) {
  std::unique_ptr<BackendWorld> world(new BackendWorld(spec, options, device));
  BackendOptions backend_options;
  backend_options.layers = {0, spec.num_layers};
  backend_options.dtype = options.dtype;
  backend_options.weight_format = options.weight_format;
  backend_options.kv_format = options.kv_format;
  backend_options.sparsity = options.sparsity;
  backend_options.max_rows = options.max_rows;
  backend_options.head_rows = options.head_rows;
  backend_options.max_model_len = options.max_model_len;
  backend_options.threads = 2;
  backend_options.attention_slots = options.attention_slots;
  backend_options.budget = &world->memory_;
  backend_options.device = device;
  auto backend = device == nullptr
                     ? CreateBackend(BackendKind::kCpu, spec, backend_options)
                     : CudaBackend::Create(spec, backend_options, {0, stream});
  if (!backend.ok()) {
    ADD_FAILURE() << backend.status();
    return nullptr;
  }
  world->parts_ = *std::move(backend);
  world->backend_ = world->parts_.backend.get();
  world->Load(source);
  return world;
}

BackendWorld::Piece BackendWorld::Allocate(size_t bytes) {
  Piece piece;
  if (device_ != nullptr) {
    auto buffer = device_->Allocate("world", bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    piece.device = *std::move(buffer);
  } else {
    auto buffer = HostBuffer::Create("world", bytes, &memory_);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    piece.host = *std::move(buffer);
  }
  return piece;
}

void BackendWorld::Write(const Piece& to, const std::byte* from, size_t bytes) {
  if (device_ == nullptr) {
    std::memcpy(to.data(), from, bytes);
    return;
  }
  IoCompletion done;
  done.Expect(1);
  device_->CopyIn({to.data(), bytes}, {from, bytes}, &done);
  ExpectOk(done.Wait());
}

std::vector<float> BackendWorld::Read(const Piece& from, size_t count) {
  ExpectOk(backend_->Finish());
  std::vector<float> out(count);
  const auto bytes = std::as_writable_bytes(std::span(out));
  if (device_ == nullptr) {
    std::memcpy(bytes.data(), from.data(), bytes.size());
    return out;
  }
  IoCompletion done;
  done.Expect(1);
  device_->CopyOut(bytes, {from.data(), bytes.size()}, &done);
  ExpectOk(done.Wait());
  return out;
}

template <typename Pack>
BackendWorld::Packed BackendWorld::Load(size_t bytes,
                                        const PartBegin& part_begin,
                                        const Pack& pack) {
  auto whole = HostBuffer::Create("packed", bytes, &memory_);
  EXPECT_TRUE(whole.ok()) << whole.status();
  const auto* data = whole->as<std::byte>();
  ExpectOk(pack([](uint64_t) { return absl::OkStatus(); },
                PackedWindow::Whole(whole->as<std::byte>(), bytes)));
  Packed packed;
  random_ = random_ * 1664525 + 1013904223;
  const size_t split = options_.cut_packed && part_begin != nullptr
                           ? part_begin((random_ >> 8) % bytes)
                           : 0;
  const size_t high = split / kBlock * kBlock;
  packed.low = Allocate(std::max<size_t>(split, 1));
  packed.high = Allocate(bytes - high);
  Write(packed.low, data, split);
  Write(packed.high, data + high, bytes - high);
  packed.view = {packed.low.data(), packed.high.data(), split, high};
  return packed;
}

void BackendWorld::Load(const TensorSource& source) {
  PackedWeights& b = *parts_.weights;
  random_ = options_.seed;
  embedding_ = Load(b.EmbeddingBytes(), nullptr, [&](auto progress, auto to) {
    return b.PackEmbedding(source, progress, to);
  });
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    layers_.push_back(Load(
        b.LayerBytes(layer),
        [&](size_t at) { return b.layer(layer).PartBegin(at); },
        [&](auto progress, auto to) {
          return b.PackLayer(layer, source, progress, to);
        }));
  }
  for (int section = 0; section < b.num_head_sections(); ++section) {
    head_.push_back(Load(
        b.head()[section].bytes,
        [&](size_t at) { return b.head()[section].PartBegin(at); },
        [&](auto progress, auto to) {
          return b.PackHead(section, source, progress, to);
        }));
  }
  if (options_.dequantize) dequantized_ = Allocate(b.DequantizedLayerBytes());
  std::mt19937 random(options_.seed);
  const int sequence_pages =
      (options_.max_model_len + kPageTokens - 1) / kPageTokens;
  std::vector<int32_t> pages(options_.num_sequences * sequence_pages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    pages_.push_back(
        Allocate(pages.size() * parts_.kv_layout.layer_page_bytes() +
                 KvLayout::kSlackBytes));
  }
  for (int s = 0; s < options_.num_sequences; ++s) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.pages.assign(pages.begin() + s * sequence_pages,
                          pages.begin() + (s + 1) * sequence_pages);
    for (int32_t i = 0; i < options_.max_model_len; ++i) {
      sequence.tokens.push_back(
          static_cast<int32_t>(random() % spec_.vocab_size));
    }
  }
}

WorldOutput BackendWorld::Run(const WorldStep& step) {
  std::vector<std::vector<SegmentView>> segments(step.size());
  std::vector<std::vector<int32_t>> tokens(step.size());
  std::vector<BatchView> batches;
  std::vector<Piece>& x = x_;
  std::vector<float*> rows_of;
  for (size_t k = 0; k < step.size(); ++k) {
    int32_t row = 0;
    for (const WorldSegment& segment : step[k]) {
      const Sequence& sequence = sequences_[segment.sequence];
      const int32_t end = segment.start + segment.num_tokens;
      segments[k].push_back(
          {.row = row,
           .start = segment.start,
           .num_tokens = segment.num_tokens,
           .pages = std::span(sequence.pages)
                        .first((end + kPageTokens - 1) / kPageTokens)});
      tokens[k].insert(tokens[k].end(), sequence.tokens.begin() + segment.start,
                       sequence.tokens.begin() + end);
      row += segment.num_tokens + segment.padding;
      tokens[k].resize(row, 1);
    }
    batches.push_back(
        {.rows = row, .tokens = tokens[k], .segments = segments[k]});
    if (x.size() <= k) {
      x.push_back(Allocate(size_t{4} * options_.max_rows * spec_.hidden_size));
    }
    rows_of.push_back(reinterpret_cast<float*>(x[k].data()));
    ExpectOk(backend_->Embed(embedding_.view, batches[k],
                             reinterpret_cast<float*>(x[k].data())));
  }
  const auto replayed = backend_->ReplayLayers(batches, rows_of);
  EXPECT_TRUE(replayed.ok()) << replayed.status();
  if (!replayed.ok()) return {};
  if (!*replayed) {
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      RunLayer(layer, batches, segments, x);
    }
    ExpectOk(backend_->EndLayers());
  }
  WorldOutput out;
  for (size_t k = 0; k < step.size(); ++k) {
    const std::vector<float> all =
        Read(x[k], size_t{1} * batches[k].rows * spec_.hidden_size);
    std::vector<float>& rows = out.x.emplace_back();
    for (const SegmentView& segment : segments[k]) {
      const auto first = all.begin() + segment.row * spec_.hidden_size;
      rows.insert(rows.end(), first,
                  first + segment.num_tokens * spec_.hidden_size);
    }
  }
  out.logits = Logits(segments, x);
  return out;
}

void BackendWorld::RunLayer(int layer, std::vector<BatchView>& batches,
                            std::vector<std::vector<SegmentView>>& segments,
                            std::vector<Piece>& x) {
  Backend::PackedLayer packed = {layers_[layer].view, false};
  if (options_.dequantize) {
    ExpectOk(
        backend_->DequantizeLayer(layer, packed.view, dequantized_.data()));
    packed = {PackedView::Whole(dequantized_.data()), true};
  }
  const auto slot = [&](size_t k) {
    return static_cast<int32_t>(k % options_.attention_slots);
  };
  const auto finish = [&](size_t k) {
    auto* rows = reinterpret_cast<float*>(x[k].data());
    ExpectOk(backend_->ProjectOut(layer, packed, batches[k], rows));
    ExpectOk(backend_->Mlp(layer, packed, batches[k], rows));
  };
  for (size_t k = 0; k < batches.size(); ++k) {
    batches[k].attention_slot = slot(k);
    for (SegmentView& segment : segments[k]) segment.kv = pages_[layer].data();
    ExpectOk(backend_->ProjectQkv(layer, packed, batches[k],
                                  reinterpret_cast<float*>(x[k].data())));
    // With two slots, a micro-batch is projected before the one before it goes
    // on.
    if (options_.attention_slots > 1 && k > 0) finish(k - 1);
    // Attention is computed in two goes, sometimes; but not in steps that may
    // be replayed.
    const auto count = static_cast<int32_t>(segments[k].size());
    const bool generates = std::all_of(
        segments[k].begin(), segments[k].end(),
        [](const SegmentView& segment) { return segment.num_tokens == 1; });
    const int32_t first = count > 2 && !generates ? count / 3 : 0;
    ExpectOk(backend_->Attend(layer, batches[k], first, count - first));
    if (first > 0) ExpectOk(backend_->Attend(layer, batches[k], 0, first));
    if (options_.attention_slots == 1) finish(k);
  }
  if (options_.attention_slots > 1) finish(batches.size() - 1);
}

void BackendWorld::TakeLogits(std::vector<Backend::LogitRow>& rows) {
  for (int section = 0; section < parts_.weights->num_head_sections();
       ++section) {
    ExpectOk(backend_->HeadLogits(head_[section].view, section,
                                  static_cast<int32_t>(rows.size())));
  }
  ExpectOk(backend_->TakeLogits(rows));
}

void BackendWorld::AppendLogits(int32_t rows, std::vector<float>* logits) {
  // Logits are taken once with samples from some of them, and then as they are.
  std::vector<Backend::LogitRow> asked(rows);
  std::vector<std::vector<float>> brought;
  if (device_ != nullptr) {
    for (Backend::LogitRow& row : asked) {
      if (requests_.Coin()) {
        row.request = RandomRequest(requests_, spec_.vocab_size);
      }
    }
    TakeLogits(asked);
    for (const Backend::LogitRow& row : asked) {
      brought.emplace_back(row.logits.begin(), row.logits.end());
    }
  }
  std::vector<Backend::LogitRow> taken(rows);
  TakeLogits(taken);
  for (int32_t i = 0; i < rows; ++i) {
    const std::span<const float> row = taken[i].logits;
    ASSERT_EQ(row.size(), static_cast<size_t>(spec_.vocab_size));
    logits->insert(logits->end(), row.begin(), row.end());
    if (device_ == nullptr) continue;
    ASSERT_EQ(asked[i].sampled(), asked[i].request.has_value());
    if (asked[i].sampled()) {
      judge_.Expect(*asked[i].request, row, asked[i].sample);
    } else {
      EXPECT_TRUE(std::equal(row.begin(), row.end(), brought[i].begin(),
                             brought[i].end()));
    }
  }
}

std::vector<float> BackendWorld::Logits(
    const std::vector<std::vector<SegmentView>>& step,
    const std::vector<Piece>& x) {
  std::vector<float> all;
  int32_t pending = 0;
  const auto flush = [&] {
    AppendLogits(pending, &all);
    pending = 0;
  };
  for (size_t k = 0; k < step.size(); ++k) {
    std::vector<int32_t> rows;
    for (const SegmentView& segment : step[k]) {
      rows.push_back(segment.row + segment.num_tokens - 1);
    }
    const auto* values = reinterpret_cast<const float*>(x[k].data());
    for (size_t i = 0; i < rows.size();) {
      const size_t count =
          std::min<size_t>(rows.size() - i, options_.head_rows - pending);
      ExpectOk(backend_->HeadInput(
          head_[0].view, std::span(rows).subspan(i, count), values, pending));
      pending += static_cast<int32_t>(count);
      i += count;
      if (pending == options_.head_rows) flush();
    }
  }
  if (pending > 0) flush();
  return all;
}

}  // namespace sluice
