#include "runtime/text/tokenizer/sentencepiece/model_file.h"

#include <bit>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/tokenizer/models/token_model.h"
#include "runtime/text/tokenizer/sentencepiece/wire_reader.h"

namespace sluice {
namespace {

using Field = WireReader::Field;
using Model = SentencePieceModel;
using Type = WireReader::Type;

// Pieces are cut at all places in search of their halves: longer ones would
// take too long. SentencePiece makes none of more than 16 characters.
constexpr size_t kMaxPieceBytes = 4096;

// Calls set(field) for each field of a message. Fields of an unexpected type
// are left out, as by protobuf.
template <typename Set>
absl::Status ForEachField(absl::string_view message, Set set) {
  WireReader reader(message);
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const auto field, reader.Next());
    if (!field) return absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(set(*field));
  }
}

void SetBool(const Field& field, bool* value) {
  if (field.type == Type::kVarint) *value = field.value != 0;
}
void SetInt(const Field& field, int32_t* value) {
  if (field.type == Type::kVarint) *value = static_cast<int32_t>(field.value);
}
void SetText(const Field& field, std::string* value) {
  if (field.type == Type::kBytes) *value = std::string(field.bytes);
}

absl::Status ReadPiece(absl::string_view message, Model* model) {
  Model::Piece piece;
  SLUICE_RETURN_IF_ERROR(ForEachField(message, [&](const Field& field) {
    if (field.number == 1) SetText(field, &piece.text);
    if (field.number == 2 && field.type == Type::kFixed32) {
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    }
    if (field.number == 3 && field.type == Type::kVarint && field.value >= 1 &&
        field.value <= 6) {
      piece.type = static_cast<Model::PieceType>(field.value);
    }
    return absl::OkStatus();
  }));
  model->pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

absl::Status ReadTrainer(absl::string_view message, Model* model) {
  return ForEachField(message, [&](const Field& field) {
    switch (field.number) {
      case 3:
        if (field.type == Type::kVarint && field.value >= 1 &&
            field.value <= 4) {
          model->model_type = static_cast<Model::ModelType>(field.value);
        }
        break;
      case 24:
        SetBool(field, &model->treat_whitespace_as_suffix);
        break;
      case 35:
        SetBool(field, &model->byte_fallback);
        break;
      case 40:
        SetInt(field, &model->unk_id);
        break;
      case 41:
        SetInt(field, &model->bos_id);
        break;
      case 42:
        SetInt(field, &model->eos_id);
        break;
      case 45:
        SetText(field, &model->unk_piece);
        break;
      case 46:
        SetText(field, &model->bos_piece);
        break;
      case 47:
        SetText(field, &model->eos_piece);
        break;
      default:
        break;
    }
    return absl::OkStatus();
  });
}

absl::Status ReadNormalizer(absl::string_view message, Model* model) {
  return ForEachField(message, [&](const Field& field) {
    if (field.number == 2) SetText(field, &model->precompiled_charsmap);
    if (field.number == 3) SetBool(field, &model->add_dummy_prefix);
    if (field.number == 4) SetBool(field, &model->remove_extra_whitespaces);
    if (field.number == 5) SetBool(field, &model->escape_whitespaces);
    return absl::OkStatus();
  });
}

absl::Status ReadDenormalizer(absl::string_view message, Model* model) {
  return ForEachField(message, [&](const Field& field) {
    if (field.number == 2 && field.type == Type::kBytes) {
      model->denormalizes = !field.bytes.empty();
    }
    return absl::OkStatus();
  });
}

absl::Status Check(const Model& model) {
  if (model.pieces.empty()) return InvalidArgument("has no pieces");
  if (model.pieces.size() > size_t{TokenModel::kMaxId} + 1) {
    return InvalidArgument("has more than ", TokenModel::kMaxId + 1, " pieces");
  }
  absl::flat_hash_set<absl::string_view> known;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Model::Piece& piece = model.pieces[i];
    const auto invalid = [&](absl::string_view what) {
      return InvalidArgument("pieces[", i, "] ", what);
    };
    if (piece.text.empty()) return invalid("is empty");
    if (piece.text.size() > kMaxPieceBytes) return invalid("is too long");
    if (FindInvalidUtf8(piece.text)) return invalid("is not valid UTF-8");
    if (!known.insert(piece.text).second) return invalid("is there twice");
    if (!std::isfinite(piece.score)) return invalid("has no finite score");
  }
  for (const std::string* name :
       {&model.unk_piece, &model.bos_piece, &model.eos_piece}) {
    if (FindInvalidUtf8(*name)) {
      return InvalidArgument("trainer_spec names a piece not in UTF-8");
    }
  }
  if (model.model_type == Model::ModelType::kWord ||
      model.model_type == Model::ModelType::kChar) {
    return Unimplemented(
        "trainer_spec.model_type ",
        model.model_type == Model::ModelType::kWord ? "WORD" : "CHAR",
        " is not supported, only UNIGRAM and BPE are");
  }
  if (model.treat_whitespace_as_suffix) {
    return Unimplemented(
        "trainer_spec.treat_whitespace_as_suffix is not supported");
  }
  if (model.denormalizes) {
    return Unimplemented(
        "denormalizer_spec.precompiled_charsmap is not supported");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceModel> SentencePieceModel::Parse(
    absl::string_view bytes) {
  SentencePieceModel model;
  SLUICE_RETURN_IF_ERROR(ForEachField(bytes, [&](const Field& field) {
    if (field.type != Type::kBytes) return absl::OkStatus();
    if (field.number == 1) return ReadPiece(field.bytes, &model);
    if (field.number == 2) return ReadTrainer(field.bytes, &model);
    if (field.number == 3) return ReadNormalizer(field.bytes, &model);
    if (field.number == 5) return ReadDenormalizer(field.bytes, &model);
    return absl::OkStatus();
  }));
  SLUICE_RETURN_IF_ERROR(Check(model));
  return model;
}

}  // namespace sluice
