#include "worker/weights/model_fetcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "common/threads/clock.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/gguf/gguf_header.h"
#include "runtime/model/checkpoint/checked_pieces.h"
#include "runtime/model/checkpoint/dummy_source.h"
#include "runtime/model/checkpoint/safetensors_header.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/pieces/stage_pieces.h"
#include "worker/weights/weights_client.h"

namespace sluice {
namespace {

constexpr char kConfig[] = "config.json";
// The attempts to load from a cache that others keep changing.
constexpr int kMaxLoads = 5;

std::vector<std::string> WeightFiles(const ModelContent& content) {
  std::vector<std::string> names;
  for (const ModelContent::File& file : content.files) {
    if (file.name != kConfig) names.push_back(file.name);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFetcher>> ModelFetcher::Create(
    Options options) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<ModelCache> cache,
                          ModelCache::Create(options.cache));
  return std::unique_ptr<ModelFetcher>(
      new ModelFetcher(std::move(options), std::move(cache)));
}

absl::StatusOr<std::shared_ptr<PieceReader>> ModelFetcher::Find(
    const PiecedFile& file) {
  std::shared_ptr<CachedModel> model;
  {
    MutexLock lock(&mu_);
    model = model_;
  }
  std::shared_ptr<PieceFile> found;
  if (model != nullptr) found = model->Find(file.name);
  if (found == nullptr || found->list().file_bytes() != file.bytes ||
      found->list().FileHash() != file.hash) {
    return NotFound("nothing of ", file.name, " is here");
  }
  return found;
}

absl::StatusOr<std::shared_ptr<CachedModel>> ModelFetcher::OpenModel(
    const AssignedModel& model) {
  {
    MutexLock lock(&mu_);
    if (model_ != nullptr && model_->content() == model.content &&
        model_->InPlace()) {
      return model_;
    }
    model_ = nullptr;  // so that its pieces may make room
  }
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<CachedModel> opened,
                          cache_->Open(model.content, model.config));
  MutexLock lock(&mu_);
  model_ = opened;
  return opened;
}

FetchOptions ModelFetcher::Fetching(const AssignedModel& model,
                                    CachedModel* cached,
                                    const StageOptions& stage,
                                    const StageExecutor::Progress& fetching,
                                    const std::atomic<bool>* cancelled) const {
  FetchOptions fetch;
  fetch.model = cached;
  fetch.progress = fetching;
  fetch.marks = stage.marks;
  fetch.cancelled = cancelled;
  const auto add = [&](const std::string& address, const std::string& name) {
    fetch.sources.push_back(
        MakeWeightsClient(options_.channels, address, name));
  };
  if (model.coordinator) add(options_.coordinator_address, "the coordinator");
  for (const std::string& address : model.peers) {
    add(address, absl::StrCat("the worker at ", address));
  }
  fetch.num_full = fetch.sources.size();
  for (const std::string& address : model.fetchers) {
    add(address, absl::StrCat("the worker at ", address));
  }
  const size_t first_peer = model.coordinator ? 1 : 0;
  fetch.on_fetched = [counters = counters_, first_peer](size_t source,
                                                        uint64_t n) {
    Counter* const counter =
        source < first_peer ? counters.from_coordinator : counters.from_peers;
    if (counter != nullptr) counter->Add(static_cast<double>(n));
  };
  fetch.on_refused = [counters = counters_](size_t) {
    if (counters.refused_pieces != nullptr) {
      counters.refused_pieces->Increment();
    }
  };
  return fetch;
}

absl::Status ModelFetcher::FetchGgufHeader(const FetchOptions& fetch,
                                           const std::string& name,
                                           PieceFile& file) {
  // Only the header itself tells where it ends.
  const auto read = [&](uint64_t begin,
                        uint64_t end) -> absl::StatusOr<std::string> {
    const uint64_t first = begin / kPieceBytes;
    PiecesByFile wanted;
    for (uint64_t i = first; i < NumPieces(end); ++i) wanted[name].push_back(i);
    SLUICE_RETURN_IF_ERROR(FetchPieces(fetch, wanted));
    std::string bytes;
    for (uint64_t i = first; i < NumPieces(end); ++i) {
      std::string piece(file.list().bytes(i), '\0');
      SLUICE_RETURN_IF_ERROR(ReadCheckedPiece(file, i, piece.data()));
      bytes += piece;
    }
    return bytes.substr(begin - first * kPieceBytes, end - begin);
  };
  return Annotate(ReadGgufHeader(file.list().file_bytes(), read).status(),
                  name);
}

absl::Status ModelFetcher::FetchHeaders(
    const FetchOptions& fetch, const std::vector<std::string>& names) const {
  SLUICE_RETURN_IF_ERROR(FetchLists(fetch, names));
  PiecesByFile wanted;
  for (const std::string& name : names) wanted[name] = {0};
  SLUICE_RETURN_IF_ERROR(FetchPieces(fetch, wanted));
  for (const std::string& name : names) {
    const std::shared_ptr<PieceFile> file = fetch.model->Find(name);
    std::string first(file->list().bytes(0), '\0');
    SLUICE_RETURN_IF_ERROR(ReadCheckedPiece(*file, 0, first.data()));
    if (absl::StartsWith(first, kGgufMagic)) {
      SLUICE_RETURN_IF_ERROR(FetchGgufHeader(fetch, name, *file));
      continue;
    }
    uint64_t length = 0;
    if (first.size() < sizeof(length)) {
      return InvalidArgument(name, " is too short for a safetensors file");
    }
    std::memcpy(&length, first.data(), sizeof(length));
    if (length > kMaxSafetensorsHeaderBytes ||
        length > file->list().file_bytes() - sizeof(length)) {
      return InvalidArgument(name, " has no safetensors header");
    }
    for (uint64_t i = 1; i < NumPieces(sizeof(length) + length); ++i) {
      wanted[name].push_back(i);
    }
  }
  return FetchPieces(fetch, wanted);
}

absl::Status ModelFetcher::FetchStage(const FetchOptions& fetch,
                                      const AssignedModel& model,
                                      const StageOptions& stage) {
  const std::vector<std::string> names = WeightFiles(model.content);
  SLUICE_RETURN_IF_ERROR(FetchHeaders(fetch, names));
  PiecesByFile wanted;
  {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsSource> headers,
                            fetch.model->OpenTensors(names));
    SLUICE_ASSIGN_OR_RETURN(wanted,
                            StagePieces(model.spec, stage.layers, *headers));
  }
  SLUICE_RETURN_IF_ERROR(cache_->Reserve(fetch.model, wanted, fetch.cancelled));
  const absl::Duration began = Clock::Real()->Monotonic();
  std::atomic<uint64_t> bytes{0};
  FetchOptions counted = fetch;
  counted.on_fetched = [&](size_t source, uint64_t n) {
    bytes += n;
    fetch.on_fetched(source, n);
  };
  SLUICE_RETURN_IF_ERROR(FetchPieces(counted, wanted));
  for (const auto& [name, pieces] : wanted) {
    SLUICE_RETURN_IF_ERROR(fetch.model->Find(name)->Settle());
    AddMark(fetch.marks);
  }
  if (bytes == 0) return absl::OkStatus();
  const double seconds =
      absl::ToDoubleSeconds(Clock::Real()->Monotonic() - began);
  LogInfo("fetched ", BytesText(static_cast<double>(bytes)),
          " of weights into ", fetch.model->path().string(), " in ",
          absl::StrFormat(
              "%.1f s, %.0f MB/s", seconds,
              static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-3)));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StageExecutor>> ModelFetcher::Load(
    const AssignedModel& model, const StageOptions& stage,
    const StageExecutor::Progress& fetching,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(CheckFetchable(model.content, model.config));
  if (WeightFiles(model.content).empty()) {
    return LoadStage(model.spec, DummySource(), stage, progress, cancelled);
  }
  if (options_.dummy_weights) {
    return absl::InvalidArgumentError(
        "this worker was started with --load-format dummy, but the cluster's "
        "model has weights; start it without, or the coordinator with");
  }
  for (int attempt = 1;; ++attempt) {
    SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<CachedModel> cached,
                            OpenModel(model));
    absl::StatusOr<std::unique_ptr<StageExecutor>> loaded =
        LoadFrom(cached.get(), model, stage, fetching, progress, cancelled);
    const absl::Status& status = loaded.status();
    const bool changed = absl::IsDataLoss(status) || !cached->InPlace();
    if (loaded.ok() || absl::IsCancelled(status) || !changed ||
        attempt == kMaxLoads) {
      return loaded;
    }
    LogWarning("the cache was changed (", status.message(),
               "); what is wrong or missing there is fetched again");
    cached->Doubt();
  }
}

absl::StatusOr<std::unique_ptr<StageExecutor>> ModelFetcher::LoadFrom(
    CachedModel* cached, const AssignedModel& model, const StageOptions& stage,
    const StageExecutor::Progress& fetching,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(FetchStage(
      Fetching(model, cached, stage, fetching, cancelled), model, stage));
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsSource> tensors,
                          cached->OpenTensors(WeightFiles(model.content)));
  DecoderSpec spec = model.spec;
  if (stage.layers.end == spec.num_layers) {
    SLUICE_ASSIGN_OR_RETURN(spec, tensors->HeadAsFound(std::move(spec)));
  }
  return LoadStage(spec, *tensors, stage, progress, cancelled);
}

}  // namespace sluice
