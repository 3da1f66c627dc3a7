#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// What encoding needs of a SentencePiece model file: the message ModelProto of
// sentencepiece_model.proto (github.com/google/sentencepiece), whose names and
// defaults these are.
struct SentencePieceModel {
  enum class PieceType : uint8_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  enum class ModelType : uint8_t {
    kUnigram = 1,
    kBpe = 2,
    kWord = 3,
    kChar = 4
  };

  std::vector<Piece> pieces;  // by id

  // trainer_spec
  ModelType model_type = ModelType::kUnigram;
  bool treat_whitespace_as_suffix = false;
  bool byte_fallback = false;
  int32_t unk_id = 0;
  int32_t bos_id = 1;
  int32_t eos_id = 2;
  std::string unk_piece = "<unk>";
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";

  // normalizer_spec
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  // denormalizer_spec
  bool denormalizes = false;  // it has a charsmap

  // kInvalidArgument if the file is broken: cut short, or with an empty piece,
  // a piece that is there twice or that is not UTF-8. kUnimplemented, with the
  // name of the field, for what is not supported.
  static absl::StatusOr<SentencePieceModel> Parse(absl::string_view bytes);
};

}  // namespace sluice
