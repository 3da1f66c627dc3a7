#include "runtime/model/checkpoint/safetensors_source.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/float16.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "runtime/gguf/gguf_header.h"
#include "runtime/model/checkpoint/content_hashes.h"
#include "runtime/model/checkpoint/whole_file.h"

namespace sluice {
namespace {

// The format is little-endian, as are all supported machines.
static_assert(std::endian::native == std::endian::little);

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kTokenEmbedding[] = "embed_tokens.weight";
constexpr char kHeadName[] = "lm_head.weight";
constexpr char kGgufEmbedding[] = "token_embd.weight";
constexpr absl::string_view kWeightSuffix = ".weight";
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr uint64_t kPointerBytes = 32;  // of a Git LFS pointer's beginning

// Reads exactly `bytes` at `offset`.
absl::Status ReadAt(int fd, const std::string& path, uint64_t offset,
                    size_t bytes, void* out) {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = pread(fd, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return DataLoss(path, ": cannot read: ", std::strerror(errno));
    }
    if (n == 0) {
      return DataLoss(path, ": ends at ", offset,
                      ", where more data was expected");
    }
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    EVP_DigestInit_ex(context_, EVP_sha256(), nullptr);
  }
  ~Sha256() { EVP_MD_CTX_free(context_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  // The length comes first, so that neighbouring fields stay distinct.
  void AddField(absl::string_view field) {
    const uint64_t size = field.size();
    EVP_DigestUpdate(context_, &size, sizeof(size));
    EVP_DigestUpdate(context_, field.data(), field.size());
  }
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_, digest, &size);
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(digest), size));
  }

 private:
  EVP_MD_CTX* context_;
};

std::string HeaderDigest(absl::string_view text, uint64_t file_bytes) {
  Sha256 digest;
  digest.AddField(text);
  digest.AddField(absl::StrCat(file_bytes));
  return digest.Hex();
}

// Turns the bytes of a tensor, which come in parts, into floats.
class FloatWriter {
 public:
  FloatWriter(absl::string_view dtype, float* out) : dtype_(dtype), out_(out) {}

  void Take(absl::string_view part) {
    if (dtype_ == "F32") {
      std::memcpy(reinterpret_cast<char*>(out_) + done_, part.data(),
                  part.size());
      done_ += part.size();
      return;
    }
    // The end of a part may cut an element.
    if (cut_ && !part.empty()) {
      const char element[2] = {half_, part[0]};
      Convert(element, 1);
      part.remove_prefix(1);
      cut_ = false;
    }
    Convert(part.data(), part.size() / 2);
    if (part.size() % 2 == 0) return;
    half_ = part.back();
    cut_ = true;
  }

 private:
  void Convert(const char* from, size_t count) {
    const auto bits = [from](size_t i) {
      uint16_t element;
      std::memcpy(&element, from + 2 * i, sizeof(element));
      return element;
    };
    float* const out = out_;
    if (dtype_ == "BF16") {
      for (size_t i = 0; i < count; ++i) out[i] = BFloat16ToFloat(bits(i));
    } else {
      for (size_t i = 0; i < count; ++i) out[i] = Float16ToFloat(bits(i));
    }
    out_ += count;
  }

  const absl::string_view dtype_;
  float* out_;
  size_t done_ = 0;  // bytes of out_, if they are copied
  bool cut_ = false;
  char half_ = 0;
};

// Whether tensors of this dtype are read.
bool IsFloat(absl::string_view dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

}  // namespace

SafetensorsSource::SafetensorsSource(QuantizationConfig quantization)
    : stored_(*this),
      quantized_(std::make_unique<QuantizedWeights>(std::move(quantization),
                                                    &stored_)) {}

SafetensorsSource::~SafetensorsSource() {
  for (const auto& file : files_) {
    if (file->fd >= 0) close(file->fd);
  }
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> SafetensorsSource::Open(
    const std::filesystem::path& model, const KnownPieces& known,
    QuantizationConfig quantization) {
  std::unique_ptr<SafetensorsSource> source(
      new SafetensorsSource(std::move(quantization)));
  source->dir_ = model;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(model, ignored)) {
    SLUICE_RETURN_IF_ERROR(source->OpenGguf(model, known));
    SLUICE_RETURN_IF_ERROR(source->ListTensors({}));
  } else if (std::filesystem::exists(model / kSingleFile, ignored)) {
    SLUICE_RETURN_IF_ERROR(source->OpenFile(model / kSingleFile, known));
    SLUICE_RETURN_IF_ERROR(source->ListTensors({}));
  } else if (std::filesystem::exists(model / kShardIndexFile, ignored)) {
    SLUICE_RETURN_IF_ERROR(
        source->OpenShards(model, model / kShardIndexFile, known));
  } else {
    const bool pickled =
        std::filesystem::exists(model / "pytorch_model.bin", ignored) ||
        std::filesystem::exists(model / "pytorch_model.bin.index.json",
                                ignored);
    return NotFound(
        model.string(), ": no weights: neither ", kSingleFile, " nor ",
        kShardIndexFile,
        pickled ? " (pytorch_model.bin is not read: save the model with "
                  "safe_serialization=True)"
                : "");
  }
  return source;
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>>
SafetensorsSource::OpenPieces(
    const std::filesystem::path& model_dir,
    const std::map<std::string, std::shared_ptr<PieceReader>>& files,
    absl::string_view copies, QuantizationConfig quantization) {
  SLUICE_ASSIGN_OR_RETURN(const TensorsByFile ignored, ParseCopiesText(copies));
  std::unique_ptr<SafetensorsSource> source(
      new SafetensorsSource(std::move(quantization)));
  source->dir_ = model_dir;
  for (const auto& [name, pieces] : files) {
    auto file = std::make_unique<File>();
    file->number = source->files_.size();
    file->name = name;
    file->path = pieces->path();
    file->bytes = pieces->list().file_bytes();
    source->files_.push_back(std::move(file));
    {
      MutexLock lock(&source->mu_);
      source->pieces_.push_back(pieces);
    }
    SLUICE_RETURN_IF_ERROR(source->ReadHeader());
  }
  SLUICE_RETURN_IF_ERROR(source->JoinGguf());
  SLUICE_RETURN_IF_ERROR(source->ListTensors(ignored));
  return source;
}

absl::Status SafetensorsSource::OpenFile(const std::filesystem::path& path,
                                         const KnownPieces& known) {
  auto file = std::make_unique<File>();
  file->number = files_.size();
  file->name = path.filename().string();
  file->path = path.string();
  // With O_NONBLOCK, opening a FIFO does not wait for a writer.
  file->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd < 0) {
    return InvalidArgument(file->path, ": cannot open: ", std::strerror(errno));
  }
  files_.push_back(std::move(file));
  File& f = *files_.back();
  struct stat info;
  if (fstat(f.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return InvalidArgument(f.path, ": not a regular file");
  }
  f.bytes = static_cast<uint64_t>(info.st_size);
  {
    MutexLock lock(&mu_);
    pieces_.emplace_back();
  }
  if (const auto it = known.find(f.name); it != known.end()) {
    SLUICE_RETURN_IF_ERROR(CheckBy(f, it->second));
  }
  return ReadHeader();
}

absl::Status SafetensorsSource::ReadHeader() {
  File& f = *files_.back();
  uint64_t header_bytes = 0;
  if (f.bytes >= kGgufMagic.size()) {
    SLUICE_ASSIGN_OR_RETURN(const std::string magic,
                            ReadText(f, 0, kGgufMagic.size()));
    if (magic == kGgufMagic) {
      SLUICE_RETURN_IF_ERROR(ReadGguf(&f));
      SLUICE_ASSIGN_OR_RETURN(const std::string header, HeaderText(f));
      f.header_digest = HeaderDigest(header, f.bytes);
      return absl::OkStatus();
    }
  }
  if (absl::EndsWithIgnoreCase(f.name, ".gguf")) {
    SLUICE_ASSIGN_OR_RETURN(
        const std::string beginning,
        ReadText(f, 0, std::min<uint64_t>(f.bytes, kPointerBytes)));
    return InvalidArgument(f.path, IsLfsPointer(beginning)
                                       ? absl::StrCat(": ", kLfsPointerAdvice)
                                       : ": does not begin with GGUF");
  }
  if (f.bytes < sizeof(header_bytes)) {
    return InvalidArgument(f.path, ": ", f.bytes,
                           " bytes are too few for a safetensors file");
  }
  SLUICE_ASSIGN_OR_RETURN(std::string text,
                          ReadText(f, 0, sizeof(header_bytes)));
  std::memcpy(&header_bytes, text.data(), sizeof(header_bytes));
  if (header_bytes > f.bytes - sizeof(header_bytes) ||
      header_bytes > kMaxSafetensorsHeaderBytes) {
    // A Git LFS pointer's first letters, read as a length, exceed any file.
    SLUICE_ASSIGN_OR_RETURN(
        const std::string beginning,
        ReadText(f, 0, std::min<uint64_t>(f.bytes, kPointerBytes)));
    if (IsLfsPointer(beginning)) {
      return InvalidArgument(f.path, ": ", kLfsPointerAdvice);
    }
    return InvalidArgument(
        f.path, ": header length ", header_bytes, " is beyond the file (",
        f.bytes, " bytes) or the limit of ", kMaxSafetensorsHeaderBytes);
  }
  f.data_offset = sizeof(header_bytes) + header_bytes;
  SLUICE_ASSIGN_OR_RETURN(text, HeaderText(f));
  SLUICE_ASSIGN_OR_RETURN(
      f.header,
      Annotate(ParseSafetensorsHeader(text, f.bytes - f.data_offset), f.path));
  f.header_digest = HeaderDigest(text, f.bytes);
  return absl::OkStatus();
}

absl::Status SafetensorsSource::ListTensors(const TensorsByFile& ignored) {
  for (const auto& file : files_) {
    const auto of_file = ignored.find(file->name);
    for (const auto& [name, entry] : file->header) {
      if (of_file != ignored.end() && of_file->second.contains(name)) continue;
      const auto [it, inserted] =
          tensors_.emplace(name, Location{file.get(), &entry});
      if (!inserted) {
        return InvalidArgument(file->path, ": ", name, " is also in ",
                               it->second.file->path);
      }
    }
  }
  copies_ = CopiesText(ignored);
  if (copies_.size() > kMaxCopiesBytes) {
    return InvalidArgument(dir_.string(), ": too many tensors are in several ",
                           "files; remove the files that are not the model's");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SafetensorsSource::HeaderText(
    const File& file) const {
  return ReadText(file, sizeof(uint64_t), file.data_offset);
}

absl::Status SafetensorsSource::CheckBy(const File& file,
                                        PieceListPtr list) const {
  if (list->file_bytes() != file.bytes) {
    return DataLoss(file.path, ": has ", file.bytes,
                    " bytes; when it was hashed, it had ", list->file_bytes());
  }
  const int fd = fcntl(file.fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) {
    return DataLoss(file.path, ": cannot open: ", std::strerror(errno));
  }
  auto pieces = std::make_shared<WholeFile>(file.path, fd, std::move(list));
  MutexLock lock(&mu_);
  pieces_[file.number] = std::move(pieces);
  return absl::OkStatus();
}

std::shared_ptr<PieceReader> SafetensorsSource::PiecesOf(
    const File& file) const {
  MutexLock lock(&mu_);
  return pieces_[file.number];
}

absl::Status SafetensorsSource::Read(
    const File& file, uint64_t begin, uint64_t end, uint64_t ahead_end,
    absl::FunctionRef<void(absl::string_view)> take) const {
  if (const std::shared_ptr<PieceReader> pieces = PiecesOf(file)) {
    absl::Status status = checked_.Read(*pieces, begin, end, ahead_end, take);
    if (absl::IsDataLoss(status)) {
      MutexLock lock(&mu_);
      if (!hash_cache_.empty()) {
        ContentHashes(hash_cache_).Forget(file.path, file.fd);
      }
    }
    return status;
  }
  std::string chunk(std::min<uint64_t>(end - begin, kChunkBytes), '\0');
  while (begin < end) {
    const size_t bytes = std::min<uint64_t>(end - begin, chunk.size());
    SLUICE_RETURN_IF_ERROR(
        ReadAt(file.fd, file.path, begin, bytes, chunk.data()));
    take({chunk.data(), bytes});
    begin += bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SafetensorsSource::ReadText(const File& file,
                                                        uint64_t begin,
                                                        uint64_t end) const {
  std::string text;
  text.reserve(end - begin);
  SLUICE_RETURN_IF_ERROR(Read(
      file, begin, end, end,
      [&](absl::string_view part) { text.append(part.data(), part.size()); }));
  return text;
}

absl::Status SafetensorsSource::OpenShards(
    const std::filesystem::path& model_dir,
    const std::filesystem::path& index_path, const KnownPieces& known) {
  SLUICE_ASSIGN_OR_RETURN(ShardIndex index, ReadShardIndex(index_path));
  size_t number = 0;
  for (const std::string& shard : index.shards) {
    ++number;
    std::error_code ignored;
    const std::filesystem::path path = model_dir / shard;
    if (std::filesystem::symlink_status(path, ignored).type() ==
        std::filesystem::file_type::not_found) {
      return InvalidArgument(path.string(), " is missing: it is shard ", number,
                             " of ", index.shards.size(), " that ",
                             kShardIndexFile, " names; the download was cut, ",
                             "go on with it");
    }
    SLUICE_RETURN_IF_ERROR(
        Annotate(OpenFile(path, known),
                 absl::StrCat("shard ", number, " of ", index.shards.size())));
  }
  TensorsByFile files;
  for (const auto& file : files_) {
    std::set<std::string>& names = files[file->name];
    for (const auto& [name, entry] : file->header) names.insert(name);
  }
  SLUICE_RETURN_IF_ERROR(ListTensors(CopiesThatDoNotCount(files, index)));
  index_ = std::move(index.shard_of);
  return absl::OkStatus();
}

SafetensorsSource::Location SafetensorsSource::FindName(
    const std::string& name) const {
  const auto find = [&](absl::string_view prefix, absl::string_view rest) {
    const auto it = tensors_.find(absl::StrCat(prefix, rest));
    return it == tensors_.end() ? Location{} : it->second;
  };
  Location found = find("", name);
  // Models are saved with or without their head, and within a model that takes
  // images, too.
  absl::string_view bare = name;
  if (found.file == nullptr && (absl::ConsumePrefix(&bare, "model.") ||
                                absl::ConsumePrefix(&bare, "transformer.") ||
                                absl::ConsumePrefix(&bare, "gpt_neox."))) {
    found = find("", bare);
    for (const char* prefix :
         {"model.language_model.", "language_model.model."}) {
      if (found.file == nullptr) found = find(prefix, bare);
    }
  }
  if (found.file == nullptr) found = find("language_model.", name);
  return found;
}

bool SafetensorsSource::Has(const std::string& name) const {
  return FindName(name).file != nullptr;
}

bool SafetensorsSource::HasHead() const {
  const std::string module(absl::StripSuffix(kHeadName, kWeightSuffix));
  return Has(kHeadName) ||
         (StoredByInputs(quantization().method) && Has(module + ".qweight")) ||
         Has(module + ".weight_packed");
}

bool SafetensorsSource::HasNameThatEnds(absl::string_view end) const {
  return std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& tensor) {
    return absl::EndsWith(tensor.first, end);
  });
}

std::optional<StoredTensors::Place> SafetensorsSource::Stored::Find(
    const std::string& name) const {
  const Location at = source_.FindName(name);
  if (at.file == nullptr) return std::nullopt;
  return Place{at.file->path, at.entry};
}

absl::Status SafetensorsSource::Stored::Read(const std::string& name,
                                             uint64_t begin, uint64_t end,
                                             char* out) const {
  const Location at = source_.FindName(name);
  const File& file = *at.file;
  const uint64_t first = file.data_offset + at.entry->begin;
  if (source_.PiecesOf(file) == nullptr) {
    return ReadAt(file.fd, file.path, first + begin, end - begin, out);
  }
  return source_.Read(file, first + begin, first + end,
                      file.data_offset + at.entry->end,
                      [&](absl::string_view part) {
                        std::memcpy(out, part.data(), part.size());
                        out += part.size();
                      });
}

std::optional<WeightPlace> SafetensorsSource::QuantizedPlace(
    const TensorRef& ref) const {
  absl::string_view module = ref.name;
  const QuantizationConfig& config = quantization();
  // Experts' tensors may have names that do not end so.
  const bool named = absl::ConsumeSuffix(&module, kWeightSuffix);
  if (!config.quantized() || ref.shape.size() != 2 ||
      (ref.transposed && !FindsTransposed(config.method)) ||
      (!named && ref.stack == 0)) {
    return std::nullopt;
  }
  return WeightPlace{std::string(module),
                     ref.tensor_rows > 0 ? ref.tensor_rows : ref.shape[0],
                     ref.shape[1], ref.stack, ref.in_stack};
}

std::map<std::string, size_t> SafetensorsSource::PartsBesideText() const {
  std::map<std::string, size_t> parts;
  bool within = false;
  for (const auto& [name, location] : tensors_) {
    absl::string_view part = name;
    absl::ConsumePrefix(&part, "model.");
    part = part.substr(0, part.find('.'));
    if (part == "language_model") {
      within = true;
    } else if (part != "lm_head") {
      ++parts[std::string(part)];
    }
  }
  if (!within) parts.clear();
  return parts;
}

std::optional<int64_t> SafetensorsSource::Parameters() const {
  int64_t parameters = 0;
  for (const auto& [name, location] : tensors_) {
    const SafetensorsEntry& entry = *location.entry;
    if (entry.dtype == "I64" || entry.dtype == "BOOL") continue;
    if (naming_) {
      int64_t elements = 1;
      for (const int64_t n : entry.shape) elements *= n;
      parameters += elements;
      continue;
    }
    if (!IsFloat(entry.dtype)) return std::nullopt;
    parameters += static_cast<int64_t>(entry.end - entry.begin) /
                  SafetensorsElementBytes(entry.dtype);
  }
  return parameters;
}

absl::StatusOr<SafetensorsSource::Location> SafetensorsSource::Find(
    const TensorRef& ref) const {
  Location location = FindName(ref.name);
  // Tied weights are one tensor, which a saver may have kept under the head's
  // name.
  if (location.file == nullptr &&
      (ref.role == TensorRole::kEmbedding || ref.role == TensorRole::kHead) &&
      absl::EndsWith(ref.name, kTokenEmbedding)) {
    location = FindName(kHeadName);
  }
  if (location.file == nullptr && naming_ && ref.role == TensorRole::kHead) {
    location = FindName(kGgufEmbedding);
  }
  if (location.file == nullptr && IsBias(ref.role)) return location;
  if (location.file == nullptr) {
    const auto named = index_.find(ref.name);
    return NotFound(
        named == index_.end() && (files_.size() == 1 || naming_)
            ? files_[0]->path
            : (dir_ / kShardIndexFile).string(),
        ": no tensor ", ref.name,
        QuantizedPlace(ref) ? ", plain or quantized" : "",
        named == index_.end()
            ? ""
            : absl::StrCat(", though it is named there in ", named->second));
  }
  const SafetensorsEntry& entry = *location.entry;
  if (location.file->gguf != nullptr) {
    SLUICE_RETURN_IF_ERROR(CheckGgufType(location, ref.name));
  } else if (!IsFloat(entry.dtype)) {
    return InvalidArgument(location.file->path, ": ", ref.name, " has dtype ",
                           entry.dtype, "; F32, F16 and BF16 are supported");
  }
  // A GGUF file may have a row as a vector.
  const bool row = naming_ && ref.shape.size() == 2 && ref.shape[0] == 1 &&
                   entry.shape == std::vector<int64_t>{ref.shape[1]};
  if (entry.shape != ref.tensor_shape() && !row) {
    return InvalidArgument(location.file->path, ": ", ref.name, " has shape ",
                           ShapeText(entry.shape),
                           naming_ ? ", but the metadata asks for "
                                   : ", but config.json asks for ",
                           ShapeText(ref.tensor_shape()));
  }
  return location;
}

absl::Status SafetensorsSource::Check(const TensorRef& ref) const {
  return Locate(ref).status();
}

absl::Status SafetensorsSource::ReadRows(const TensorRef& described,
                                         int64_t row_begin, int64_t row_end,
                                         float* out) const {
  const TensorRef ref = AsStored(described);
  if (ref.tensor_each_head) {
    for (const TensorRef& head : ref.Tensors()) {
      SLUICE_RETURN_IF_ERROR(ReadRows(head, row_begin, row_end, out));
      out += ref.head_rows;
    }
    return absl::OkStatus();
  }
  std::shared_ptr<const QuantizedWeight> quantized;
  if (const std::optional<WeightPlace> place = QuantizedPlace(ref)) {
    SLUICE_ASSIGN_OR_RETURN(quantized, quantized_->Get(*place));
  }
  Location location;
  if (quantized != nullptr) {
    location = FindName(quantized->parts()[0]);
  } else {
    SLUICE_ASSIGN_OR_RETURN(location, Find(ref));
  }
  if (location.file == nullptr) {
    if (row_begin < row_end) std::fill_n(out, ref.shape.back(), 0.0f);
    return absl::OkStatus();
  }
  const File& file = *location.file;
  const int64_t rows = ref.shape.size() < 2 ? 1 : ref.shape[0];
  if (row_begin < 0 || row_begin > row_end || row_end > rows) {
    return InvalidArgument(file.path, ": ", ref.name, ": rows [", row_begin,
                           ", ", row_end, ") of ", rows);
  }
  if (row_begin == row_end) return absl::OkStatus();
  int64_t elements = 1;
  for (const int64_t n : ref.shape) elements *= n;
  if (quantized != nullptr) {
    elements = ref.shape[1];
    const auto read = [&](int64_t row, int64_t first, int64_t count) {
      return quantized->ReadRows(stored_, first, first + count,
                                 out + (row - row_begin) * elements);
    };
    SLUICE_RETURN_IF_ERROR(Annotate(ForRuns(ref, row_begin, row_end, read),
                                    absl::StrCat("tensor ", ref.name)));
    Adjust(ref, elements * (row_end - row_begin), out);
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(Annotate(
      ref.shape.size() < 2 ? ReadVector(location, ref, elements, out)
      : ref.transposed     ? ReadColumns(location, ref, row_begin, row_end, out)
                           : ReadRuns(location, ref, row_begin, row_end, out),
      absl::StrCat("tensor ", ref.name)));
  if (rows > 1) elements = elements / rows * (row_end - row_begin);
  Adjust(ref, elements, out);
  return absl::OkStatus();
}

void SafetensorsSource::Adjust(const TensorRef& ref, int64_t elements,
                               float* out) {
  if (ref.scale == 1 && ref.add == 0) return;
  for (int64_t i = 0; i < elements; ++i) out[i] = ref.scale * out[i] + ref.add;
}

absl::Status SafetensorsSource::ReadElements(const Location& at, uint64_t first,
                                             uint64_t count, float* out) const {
  const File& file = *at.file;
  if (file.gguf != nullptr) return ReadBlocks(at, first, count, out);
  const uint64_t element = at.entry->dtype == "F32" ? 4 : 2;
  const uint64_t begin = file.data_offset + at.entry->begin + first * element;
  const uint64_t end = begin + count * element;
  if (at.entry->dtype == "F32" && PiecesOf(file) == nullptr) {
    return ReadAt(file.fd, file.path, begin, end - begin, out);
  }
  FloatWriter writer(at.entry->dtype, out);
  return Read(file, begin, end, file.data_offset + at.entry->end,
              [&](absl::string_view part) { writer.Take(part); });
}

absl::Status SafetensorsSource::ReadVector(const Location& at,
                                           const TensorRef& ref,
                                           int64_t elements, float* out) const {
  const int64_t base = ref.first_element();
  if (ref.block_rows == 0 && ref.interleaved == 0) {
    return ReadElements(at, base + ref.first_row, elements, out);
  }
  std::vector<float> whole(ref.tensor_rows > 0 ? ref.tensor_rows : elements);
  SLUICE_RETURN_IF_ERROR(ReadElements(at, base, whole.size(), whole.data()));
  for (int64_t i = 0; i < elements; ++i) out[i] = whole[ref.StoredRow(i)];
  return absl::OkStatus();
}

absl::Status SafetensorsSource::ReadRuns(const Location& at,
                                         const TensorRef& ref, int64_t begin,
                                         int64_t end, float* out) const {
  const int64_t base = ref.first_element();
  const int64_t columns = ref.shape[1];
  return ForRuns(
      ref, begin, end, [&](int64_t row, int64_t first, int64_t count) {
        return ReadElements(at, base + first * columns, count * columns,
                            out + (row - begin) * columns);
      });
}

absl::Status SafetensorsSource::ReadColumns(const Location& at,
                                            const TensorRef& ref, int64_t begin,
                                            int64_t end, float* out) const {
  const int64_t rows = ref.tensor_rows > 0 ? ref.tensor_rows : ref.shape[0];
  const int64_t inputs = ref.shape[1];
  // All that lies between the rows is read with them: they may be every other
  // one.
  int64_t first = rows, last = -1;
  for (int64_t row = begin; row < end; ++row) {
    first = std::min(first, ref.StoredRow(row));
    last = std::max(last, ref.StoredRow(row));
  }
  std::vector<float> run(last + 1 - first);
  const int64_t base = ref.first_element() + first;
  for (int64_t input = 0; input < inputs; ++input) {
    SLUICE_RETURN_IF_ERROR(
        ReadElements(at, base + input * rows, run.size(), run.data()));
    for (int64_t row = begin; row < end; ++row) {
      out[(row - begin) * inputs + input] = run[ref.StoredRow(row) - first];
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SafetensorsSource::ContentId(
    const std::string& cache_file, Progress progress) const {
  ContentHashes hashes(cache_file);
  Sha256 id;
  // Files are opened in order of name.
  for (const auto& file : files_) {
    if (const std::shared_ptr<PieceReader> pieces = PiecesOf(*file)) {
      id.AddField(pieces->list().FileHash());
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const ContentHashes::File hashed,
                            hashes.Of(file->path, file->fd, progress));
    {
      MutexLock lock(&mu_);
      hash_cache_ = cache_file;
    }
    SLUICE_RETURN_IF_ERROR(CheckBy(*file, hashed.pieces));
    // The header was read before.
    SLUICE_ASSIGN_OR_RETURN(const std::string header, HeaderText(*file));
    if (HeaderDigest(header, file->bytes) != file->header_digest) {
      return absl::AbortedError(
          absl::StrCat(file->path, ": it was changed while it was read"));
    }
    id.AddField(hashed.hash);
  }
  if (!copies_.empty()) id.AddField(copies_);
  if (quantization().quantized()) id.AddField(quantization().Key());
  return id.Hex();
}

bool SafetensorsSource::HasHead(const DecoderSpec& spec) const {
  for (const TensorRef& ref : HeadTensors(spec)) {
    // One that an index names is missing, not left out.
    if (ref.role == TensorRole::kHead) {
      return Has(ref) || HasHead() || index_.contains(ref.name);
    }
  }
  return false;
}

absl::StatusOr<DecoderSpec> SafetensorsSource::HeadAsFound(
    DecoderSpec spec) const {
  const Location embedding = FindName(EmbeddingTensors(spec)[0].name);
  if (!spec.tied_embeddings) {
    spec.headless = embedding.file != nullptr && !HasHead(spec);
    spec.tied_embeddings = spec.headless;
    return spec;
  }
  const Location head = FindName(kHeadName);
  if (embedding.file != nullptr && head.file == nullptr && HasHead()) {
    spec.tied_embeddings = false;  // the head is quantized
  }
  if (embedding.file == nullptr || head.file == nullptr) return spec;
  SLUICE_ASSIGN_OR_RETURN(spec.tied_embeddings, SameData(embedding, head));
  return spec;
}

absl::StatusOr<bool> SafetensorsSource::SameData(const Location& x,
                                                 const Location& y) const {
  if (x.entry->dtype != y.entry->dtype || x.entry->shape != y.entry->shape) {
    return false;
  }
  const auto read = [&](const Location& at, uint64_t done, uint64_t bytes) {
    const uint64_t begin = at.file->data_offset + at.entry->begin + done;
    return ReadText(*at.file, begin, begin + bytes);
  };
  const uint64_t total = x.entry->end - x.entry->begin;
  for (uint64_t done = 0; done < total; done += kChunkBytes) {
    const uint64_t bytes = std::min<uint64_t>(kChunkBytes, total - done);
    SLUICE_ASSIGN_OR_RETURN(const std::string left, read(x, done, bytes));
    SLUICE_ASSIGN_OR_RETURN(const std::string right, read(y, done, bytes));
    if (left != right) return false;
  }
  return true;
}

std::string SafetensorsSource::Fingerprint(absl::string_view config) const {
  Sha256 digest;
  digest.AddField(config);
  // Files are opened in order of name.
  for (const auto& file : files_) {
    digest.AddField(file->name);
    digest.AddField(file->header_digest);
  }
  if (!copies_.empty()) digest.AddField(copies_);
  return digest.Hex();
}

}  // namespace sluice
