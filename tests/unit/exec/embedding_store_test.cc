// The rows that come from a table on disk are those of the table in memory.

#include "runtime/exec/weights/embedding_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "runtime/kernels/backend_parts.h"
#include "runtime/kv/batch_view.h"
#include "tests/parity/random_source.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

constexpr int32_t kStepRows = 300;

struct Model {
  const char* name;
  DType dtype;
  int32_t hidden;
  int32_t embed_dim;
  bool learned_positions;
};

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

class EmbeddingStoreTest : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    const Model& model = GetParam();
    spec_ = LlamaSpec(2, model.hidden, 4, 2, 64, 5003);
    spec_.embed_dim = model.embed_dim;
    if (model.learned_positions) {
      spec_.positions = PositionKind::kLearned;
      spec_.rotaries.clear();
      spec_.position_offset = 2;
      spec_.max_positions = 700;
    }
    BackendOptions options;
    options.layers = {0, 1};
    options.dtype = model.dtype;
    options.max_rows = kStepRows;
    options.max_model_len = 600;
    options.threads = 2;
    options.budget = &memory_;
    auto backend = CreateBackend(BackendKind::kCpu, spec_, options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    parts_ = *std::move(backend);
    auto io = IoEngine::Create({});
    ASSERT_TRUE(io.ok()) << io.status();
    io_ = *std::move(io);
    ASSERT_NO_FATAL_FAILURE(OpenStore(&disk_));
  }

  // Opens `packed_files_` again, its files charged to `disk`.
  void OpenStore(MemoryBudget* disk) {
    auto packed_files =
        PackedStore::Create({.weights = parts_.weights.get(),
                             .source = &source_,
                             .disk_dir = dir_.path(),
                             .memory = &memory_,
                             .disk = disk},
                            [](uint64_t) { return absl::OkStatus(); });
    ASSERT_TRUE(packed_files.ok()) << packed_files.status();
    packed_files_ = *std::move(packed_files);
  }

  absl::StatusOr<std::unique_ptr<EmbeddingStore>> Load(bool on_disk) {
    EmbeddingStore::Options options;
    options.weights = parts_.weights.get();
    options.source = &source_;
    options.max_rows = kStepRows;
    options.memory = &memory_;
    options.packed_files = on_disk ? packed_files_.get() : nullptr;
    options.io = io_.get();
    progress_ = 0;
    return EmbeddingStore::Load(options, [&](uint64_t bytes) {
      progress_ += bytes;
      return absl::OkStatus();
    });
  }

  std::vector<float> Embed(EmbeddingStore& store,
                           const std::vector<int32_t>& tokens) {
    const auto rows = static_cast<int32_t>(tokens.size());
    std::vector<float> x(tokens.size() * spec_.hidden_size);
    const std::vector<SegmentView> segments = {
        {.row = 0, .start = 5, .num_tokens = rows}};
    const auto gathered = store.Gather(tokens);
    EXPECT_TRUE(gathered.ok()) << gathered.status();
    if (!gathered.ok()) return x;
    const absl::Status status = parts_.backend->Embed(
        gathered->packed,
        {.rows = rows, .tokens = gathered->tokens, .segments = segments},
        x.data());
    EXPECT_TRUE(status.ok()) << status;
    return x;
  }

  std::string PackedPath() {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(dir_.path())) {
      if (entry.path().filename() == "embedding.img") return entry.path();
    }
    return "";
  }

  TempDir dir_ = TempDir::OnDisk();
  DecoderSpec spec_;
  RandomSource source_{7};
  MemoryBudget memory_{Tier::kHost, uint64_t{1} << 30};
  MemoryBudget disk_{Tier::kDisk, uint64_t{1} << 30};
  BackendParts parts_;
  std::unique_ptr<IoEngine> io_;
  std::unique_ptr<PackedStore> packed_files_;
  uint64_t progress_ = 0;
};

TEST_P(EmbeddingStoreTest, RowsOnDiskAreTheRows) {
  auto resident = Load(false);
  ASSERT_TRUE(resident.ok()) << resident.status();
  EXPECT_EQ((*resident)->resident_bytes(), (*resident)->bytes());
  EXPECT_EQ(progress_, (*resident)->bytes());
  std::mt19937 random(1);
  for (int round = 0; round < 2; ++round) {  // made, then found
    SCOPED_TRACE(round);
    const uint64_t before = memory_.used_bytes();
    auto store = Load(true);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(progress_, (*store)->bytes());
    EXPECT_EQ((*store)->bytes(), (*resident)->bytes());
    // What is kept on disk counts, also when it was there before.
    EXPECT_EQ(disk_.used_bytes(), PackedFileBytes((*store)->bytes()));
    EXPECT_EQ(
        memory_.used_bytes() - before,
        EmbeddingOnDiskBytes(
            MakeEmbeddingLayout(spec_, 600, PanelRules::Cpu(GetParam().dtype)),
            kStepRows));
    for (const size_t count : {1, 2, 255, 256, 257, kStepRows}) {
      std::vector<int32_t> tokens = {spec_.vocab_size - 1, 0};
      tokens.resize(count);
      for (size_t i = 2; i < count; ++i) {
        tokens[i] = static_cast<int32_t>(random() % spec_.vocab_size);
      }
      EXPECT_EQ(Embed(**store, tokens), Embed(**resident, tokens)) << count;
    }
    EXPECT_GT((*store)->totals().stall_seconds, 0);
  }
}

TEST_P(EmbeddingStoreTest, DamageIsMended) {
  ASSERT_TRUE(Load(true).ok());
  const std::string path = PackedPath();
  ASSERT_FALSE(path.empty());
  const auto flip = [&](uint64_t from_end) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-static_cast<std::streamoff>(from_end), std::ios::end);
    const char byte = static_cast<char>(file.get());
    file.seekp(-static_cast<std::streamoff>(from_end), std::ios::end);
    file.put(static_cast<char>(byte ^ 16));
  };
  auto resident = Load(false);
  ASSERT_TRUE(resident.ok());
  for (const uint64_t from_end : {1u, 200'000u}) {
    flip(from_end);
    auto store = Load(true);
    ASSERT_TRUE(store.ok()) << store.status();
    const std::vector<int32_t> tokens = {3, 4999, 5002, 17, 2500};
    EXPECT_EQ(Embed(**store, tokens), Embed(**resident, tokens));
  }
}

TEST_P(EmbeddingStoreTest, ARowThatChangesAfterLoadingIsFound) {
  auto store = Load(true);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<int32_t> tokens = {4999};
  ASSERT_TRUE((*store)->Gather(tokens).ok());
  const std::string path = PackedPath();
  // The row is zeroed, with what lies beside it.
  const uint64_t row = parts_.weights->EmbeddingRowBytes();
  const uint64_t header = std::filesystem::file_size(path) - (*store)->bytes();
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(header + row * 4999));
    file << std::string(row, '\0');
  }
  const absl::Status status = (*store)->Gather(tokens).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(status.message().find(path), std::string::npos) << status;
  // It is made anew.
  EXPECT_TRUE(Load(true).ok());
  EXPECT_TRUE((*Load(true))->Gather(tokens).ok());
}

TEST_P(EmbeddingStoreTest, NoRoomOnDisk) {
  MemoryBudget small{Tier::kDisk, 4096};
  ASSERT_NO_FATAL_FAILURE(OpenStore(&small));
  const auto store = Load(true);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kResourceExhausted)
      << store.status();
  EXPECT_EQ(PackedPath(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Models, EmbeddingStoreTest,
    testing::Values(Model{"blocks", DType::kFloat32, 1024, 1024, false},
                    Model{"odd_rows", DType::kBFloat16, 132, 132, false},
                    Model{"positions", DType::kFloat32, 72, 72, true},
                    Model{"projected", DType::kFloat32, 96, 40, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice
