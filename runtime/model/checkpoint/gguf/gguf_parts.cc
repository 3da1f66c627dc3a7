// SafetensorsSource of GGUF files.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/gguf/gguf_blocks.h"
#include "runtime/gguf/gguf_file.h"
#include "runtime/gguf/gguf_header.h"
#include "runtime/model/checkpoint/safetensors_source.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxSmallBytes = uint64_t{1} << 20;

// Turns the blocks of a tensor, which come in parts, into floats.
class BlockWriter {
 public:
  BlockWriter(const GgufType& type, float* out) : type_(type), out_(out) {}

  void Take(absl::string_view part) {
    const auto block = static_cast<size_t>(type_.block_bytes);
    if (!cut_.empty()) {
      // The end of a part may cut a block.
      const size_t rest = std::min(block - cut_.size(), part.size());
      cut_.append(part.data(), rest);
      part.remove_prefix(rest);
      if (cut_.size() < block) return;
      Write(cut_.data(), 1);
      cut_.clear();
    }
    const size_t whole = part.size() / block;
    Write(part.data(), static_cast<int64_t>(whole));
    part.remove_prefix(whole * block);
    cut_.assign(part.data(), part.size());
  }

 private:
  void Write(const char* from, int64_t blocks) {
    DequantizeGguf(type_, from, blocks, out_);
    out_ += blocks * type_.block_elements;
  }

  const GgufType& type_;
  float* out_;
  std::string cut_;
};

}  // namespace

absl::Status SafetensorsSource::OpenGguf(const std::filesystem::path& path,
                                         const KnownPieces& known) {
  dir_ = path.has_parent_path() ? path.parent_path() : ".";
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::filesystem::path> parts,
                          GgufParts(path));
  for (const std::filesystem::path& part : parts) {
    SLUICE_RETURN_IF_ERROR(OpenFile(part, known));
  }
  return JoinGguf();
}

absl::Status SafetensorsSource::ReadGguf(File* file) {
  SLUICE_ASSIGN_OR_RETURN(
      GgufHeader header,
      Annotate(ReadGgufHeader(file->bytes,
                              [&](uint64_t begin, uint64_t end) {
                                return ReadText(*file, begin, end);
                              }),
               file->path));
  file->data_offset = header.data_offset;
  for (GgufTensor& tensor : header.tensors) {
    SafetensorsEntry entry;
    entry.dtype = std::string(tensor.type->name);
    entry.shape = std::move(tensor.shape);
    entry.begin = tensor.begin;
    entry.end = tensor.end;
    file->header.emplace(std::move(tensor.name), std::move(entry));
  }
  file->gguf = std::make_unique<GgufMetadata>(std::move(header.metadata));
  return absl::OkStatus();
}

absl::Status SafetensorsSource::JoinGguf() {
  size_t found = 0;
  int64_t tensors = 0;
  for (const auto& file : files_) {
    if (file->gguf != nullptr) ++found;
    tensors += static_cast<int64_t>(file->header.size());
  }
  if (found == 0) return absl::OkStatus();
  const auto count = static_cast<int64_t>(files_.size());
  for (int64_t i = 0; i < count; ++i) {
    const File& file = *files_[i];
    if (file.gguf == nullptr) {
      return InvalidArgument(file.path, ": is no GGUF file, but ",
                             files_[0]->name, " is");
    }
    SLUICE_ASSIGN_OR_RETURN(const auto number,
                            Annotate(file.gguf->Int("split.no"), file.path));
    SLUICE_ASSIGN_OR_RETURN(const auto parts,
                            Annotate(file.gguf->Int("split.count"), file.path));
    // A part's number is 0 where there is one; a file that is whole has none.
    if (parts.value_or(0) == 0 && count == 1) continue;
    if (parts.value_or(0) != count || number.value_or(0) != i) {
      return InvalidArgument(file.path, ": says that it is part ",
                             number.value_or(0) + 1, " of ", parts.value_or(0),
                             ", but is opened as part ", i + 1, " of ", count,
                             "; give parts the names that they had");
    }
  }
  const File& first = *files_[0];
  SLUICE_ASSIGN_OR_RETURN(
      const auto total,
      Annotate(first.gguf->Int("split.tensors.count"), first.path));
  if (total && *total != tensors) {
    return InvalidArgument(first.path, ": says that the model has ", *total,
                           " tensors, but its parts have ", tensors);
  }
  SLUICE_ASSIGN_OR_RETURN(
      const auto architecture,
      Annotate(first.gguf->String("general.architecture"), first.path));
  if (!architecture) {
    return InvalidArgument(first.path,
                           ": metadata \"general.architecture\" is missing");
  }
  GgufNaming naming{.architecture = *architecture};
  const auto number = [&](const char* key) -> absl::StatusOr<int64_t> {
    SLUICE_ASSIGN_OR_RETURN(
        const std::vector<int64_t> values,
        Annotate(first.gguf->Ints(absl::StrCat(*architecture, ".", key)),
                 first.path));
    return values.empty() ? 0 : values[0];
  };
  SLUICE_ASSIGN_OR_RETURN(naming.head_dim, number("attention.key_length"));
  SLUICE_ASSIGN_OR_RETURN(const int64_t heads, number("attention.head_count"));
  SLUICE_ASSIGN_OR_RETURN(const int64_t width, number("embedding_length"));
  if (naming.head_dim <= 0 && heads > 0) naming.head_dim = width / heads;
  naming.head_dim = std::clamp<int64_t>(naming.head_dim, 0, INT32_MAX);
  SLUICE_ASSIGN_OR_RETURN(naming.experts, number("expert_count"));
  naming.experts = std::clamp<int64_t>(naming.experts, 0, INT32_MAX);
  naming_ = std::move(naming);
  return absl::OkStatus();
}

const GgufMetadata* SafetensorsSource::gguf() const {
  return files_.empty() ? nullptr : files_[0]->gguf.get();
}

TensorRef SafetensorsSource::AsStored(const TensorRef& ref) const {
  return naming_ ? GgufTensorRef(*naming_, ref) : ref;
}

absl::Status SafetensorsSource::CheckGgufType(const Location& at,
                                              const std::string& name) {
  const GgufType* const type = FindGgufType(at.entry->dtype);
  if (type != nullptr && type->runs) return absl::OkStatus();
  return Unimplemented(at.file->path, ": ", name, " has type ", at.entry->dtype,
                       ", which is not supported: take a file of another "
                       "type, as Q4_K, Q6_K or Q8_0");
}

absl::Status SafetensorsSource::ReadBlocks(const Location& at, uint64_t first,
                                           uint64_t count, float* out) const {
  const File& file = *at.file;
  const GgufType& type = *FindGgufType(at.entry->dtype);
  const auto elements = static_cast<uint64_t>(type.block_elements);
  const auto bytes = static_cast<uint64_t>(type.block_bytes);
  if (first % elements != 0 || count % elements != 0) {
    return InvalidArgument(file.path, ": elements ", first, " to ",
                           first + count, " are no whole blocks of type ",
                           type.name);
  }
  const uint64_t begin =
      file.data_offset + at.entry->begin + first / elements * bytes;
  BlockWriter writer(type, out);
  return Read(file, begin, begin + count / elements * bytes,
              file.data_offset + at.entry->end,
              [&](absl::string_view part) { writer.Take(part); });
}

std::optional<std::vector<int64_t>> SafetensorsSource::ShapeOf(
    const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return std::nullopt;
  return it->second.entry->shape;
}

absl::StatusOr<std::vector<float>> SafetensorsSource::ReadSmall(
    const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || it->second.file->gguf == nullptr) {
    return NotFound("no tensor ", name);
  }
  const Location& at = it->second;
  SLUICE_RETURN_IF_ERROR(CheckGgufType(at, name));
  if (at.entry->end - at.entry->begin > kMaxSmallBytes) {
    return InvalidArgument(at.file->path, ": ", name, " has ",
                           at.entry->end - at.entry->begin,
                           " bytes, which is too much");
  }
  uint64_t elements = 1;
  for (const int64_t n : at.entry->shape) elements *= static_cast<uint64_t>(n);
  std::vector<float> values(elements);
  SLUICE_RETURN_IF_ERROR(
      Annotate(ReadBlocks(at, 0, elements, values.data()), name));
  return values;
}

}  // namespace sluice
