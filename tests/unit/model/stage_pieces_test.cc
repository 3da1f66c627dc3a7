#include "runtime/model/pieces/stage_pieces.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/piece_list.h"
#include "gmock/gmock.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/decoder_spec.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

// A Llama whose matrices of 512 x 512 float32 take a piece each.
std::string Config(bool tied) {
  return absl::StrCat(
      R"({"model_type":"llama","hidden_size":512,"num_hidden_layers":3,)",
      R"("num_attention_heads":4,"num_key_value_heads":4,)",
      R"("intermediate_size":512,"vocab_size":512,"hidden_act":"silu",)",
      R"("max_position_embeddings":64,"rms_norm_eps":1e-5,)",
      R"("tie_word_embeddings":)", tied ? "true" : "false", "}");
}

class StagePiecesTest : public ::testing::Test {
 protected:
  // Writes a checkpoint in the order embedding, layers, norm, head; the headers
  // are padded to a piece.
  std::unique_ptr<SafetensorsSource> Write(bool tied, bool head) {
    spec_ = *ParseDecoderSpec(Config(tied));
    std::vector<RawTensor> tensors;
    const auto add = [&](const TensorRef& ref, const std::string& name) {
      size_t bytes = 4;
      for (const int64_t dim : ref.shape) bytes *= static_cast<size_t>(dim);
      tensors.push_back({name, "F32", ref.shape, std::string(bytes, '\1')});
    };
    for (const TensorRef& ref : EmbeddingTensors(spec_)) add(ref, ref.name);
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      for (const TensorRef& ref : LayerTensors(spec_, layer)) {
        if (ref.shape.size() == 2) add(ref, ref.name);
      }
    }
    for (const TensorRef& ref : HeadTensors(spec_)) {
      if (ref.role != TensorRole::kHead) continue;
      if (head) add(ref, "lm_head.weight");
    }
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      for (const TensorRef& ref : LayerTensors(spec_, layer)) {
        if (ref.shape.size() == 1) add(ref, ref.name);
      }
    }
    for (const TensorRef& ref : HeadTensors(spec_)) {
      if (ref.role == TensorRole::kFinalNormWeight) add(ref, ref.name);
    }
    std::string header = SafetensorsOf(tensors);
    std::string data;
    for (const RawTensor& tensor : tensors) data += tensor.data;
    header = header.substr(8, header.size() - 8 - data.size());
    header.append(kPieceBytes - 8 - header.size(), ' ');
    WriteFile(dir_ / "model.safetensors", SafetensorsBytes(header, data));
    auto source = SafetensorsSource::Open(dir_.path());
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }

  std::vector<uint64_t> Of(const SafetensorsSource& source, int begin,
                           int end) {
    auto pieces = StagePieces(spec_, {begin, end}, source);
    EXPECT_TRUE(pieces.ok()) << pieces.status();
    return pieces->at("model.safetensors");
  }

  TempDir dir_;
  DecoderSpec spec_;
};

using ::testing::ElementsAre;

// Piece 0 is the header, 1 the embedding, then seven matrices for each of three
// layers, the head, and all norms in the last piece.
TEST_F(StagePiecesTest, AStageNeedsItsTensorsAndTheHeader) {
  const auto source = Write(/*tied=*/false, /*head=*/true);
  EXPECT_THAT(Of(*source, 0, 1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 24));
  EXPECT_THAT(Of(*source, 1, 2), ElementsAre(0, 9, 10, 11, 12, 13, 14, 15, 24));
  EXPECT_THAT(Of(*source, 2, 3),
              ElementsAre(0, 16, 17, 18, 19, 20, 21, 22, 23, 24));
  EXPECT_EQ(Of(*source, 0, 3).size(), 25u);
}

TEST_F(StagePiecesTest, ATiedHeadIsTheEmbedding) {
  const auto source = Write(/*tied=*/true, /*head=*/false);
  EXPECT_THAT(Of(*source, 2, 3),
              ElementsAre(0, 1, 16, 17, 18, 19, 20, 21, 22, 23));
  // Whether two tensors are one is found out where the head is.
  const auto both = Write(/*tied=*/true, /*head=*/true);
  EXPECT_THAT(Of(*both, 2, 3),
              ElementsAre(0, 1, 16, 17, 18, 19, 20, 21, 22, 23, 24));
  EXPECT_THAT(Of(*both, 0, 1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 24));
}

TEST_F(StagePiecesTest, AModelWithoutItsHeadIsTakenAsTied) {
  const auto source = Write(/*tied=*/false, /*head=*/false);
  EXPECT_THAT(Of(*source, 2, 3),
              ElementsAre(0, 1, 16, 17, 18, 19, 20, 21, 22, 23));
}

TEST_F(StagePiecesTest, AMissingTensorIsNamed) {
  const auto source = Write(/*tied=*/false, /*head=*/true);
  spec_.num_layers = 4;
  const auto pieces = StagePieces(spec_, {3, 4}, *source);
  EXPECT_EQ(pieces.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(pieces.status().message()),
              ::testing::HasSubstr("no tensor model.layers.3."));
}

}  // namespace
}  // namespace sluice
