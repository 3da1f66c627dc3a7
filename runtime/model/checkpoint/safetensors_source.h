#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/piece_reader.h"
#include "common/threads/mutex.h"
#include "runtime/gguf/gguf_metadata.h"
#include "runtime/model/checkpoint/checked_pieces.h"
#include "runtime/model/checkpoint/gguf/gguf_names.h"
#include "runtime/model/checkpoint/quantization/quantized_weights.h"
#include "runtime/model/checkpoint/safetensors_header.h"
#include "runtime/model/checkpoint/shard_index.h"
#include "runtime/model/checkpoint/tensor_source.h"

namespace sluice {

// The pieces of files, by the files' names.
using KnownPieces = std::map<std::string, PieceListPtr>;

// Tensors of model.safetensors, or else of the shards that
// model.safetensors.index.json names, or of a GGUF file and the other parts of
// its model. F32, F16 and BF16 are read as float32, and so are GGUF's types
// that run (gguf_types.h), and quantized matrices, which several tensors hold
// (quantization/). Of a tensor that several shards hold, one counts
// (shard_index.h); GGUF's have other names and orders (gguf_names.h).
//
// Names are looked up as given and then in the spelling of other savers:
// without the leading "model." (a bare backbone), and, for a tied pair, under
// the other's name. A bias that is under none is 0, as in transformers.
//
// As soon as the hashes of a file's pieces are known, no byte of it is used
// that was not hashed as it was read (CheckedPieces): they come with the files,
// or ContentId() finds them. kDataLoss names a file that is not what was
// hashed.
class SafetensorsSource final : public TensorSource {
 public:
  // Opens all files and checks all headers: those of a directory, or a GGUF
  // file, with the other parts if its name ends in -00001-of-00003.gguf.
  // kNotFound if the directory has no weights, kInvalidArgument for a header or
  // index that breaks the format or for a shard that is missing.
  //
  // `known`: the pieces of files, by name; kDataLoss if a file's header is not
  // what was hashed. `quantization`: what config.json says of it.
  static absl::StatusOr<std::unique_ptr<SafetensorsSource>> Open(
      const std::filesystem::path& model, const KnownPieces& known = {},
      QuantizationConfig quantization = {});
  // Opens files, by their names, of which only some pieces need be there: the
  // headers' and those of the tensors that are read. `copies` is Copies() of
  // the source whose files they are.
  static absl::StatusOr<std::unique_ptr<SafetensorsSource>> OpenPieces(
      const std::filesystem::path& model_dir,
      const std::map<std::string, std::shared_ptr<PieceReader>>& files,
      absl::string_view copies, QuantizationConfig quantization = {});
  ~SafetensorsSource() override;

  absl::Status ReadRows(const TensorRef& ref, int64_t row_begin,
                        int64_t row_end, float* out) const override;
  absl::Status Check(const TensorRef& ref) const override;
  absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                        Progress progress) const override;

  // Whether the checkpoint has a tensor of this name (or its other spelling).
  bool Has(const std::string& name) const;
  // Whether it has the tensor in which this weight is.
  bool Has(const TensorRef& ref) const { return Has(AsStored(ref).name); }
  // Whether it has the head as a matrix of its own, plain or quantized.
  bool HasHead() const;
  // What config.json says of quantized weights.
  const QuantizationConfig& quantization() const {
    return quantized_->config();
  }
  // Whether a tensor's name ends so.
  bool HasNameThatEnds(absl::string_view end) const;
  // Of a model that takes more than text, the parts of its tensors' names that
  // are not the text's ("vision_tower"), and how many tensors each has.
  std::map<std::string, size_t> PartsBesideText() const;
  // Returns `spec` with the head that the checkpoint has: untied if it has both
  // tensors of a tied pair and these differ, as both are meant then in
  // transformers; headless if the head should be a tensor of its own, and
  // neither a file nor an index names it.
  absl::StatusOr<DecoderSpec> HeadAsFound(DecoderSpec spec) const;
  // The number of elements of all tensors that count, but for indices and masks
  // (I64, BOOL); nothing if some may be packed, as quantized ones are, so that
  // elements are no parameters.
  std::optional<int64_t> Parameters() const;
  // The metadata of a GGUF file, that of the first part; null for others.
  const GgufMetadata* gguf() const;
  // Returns the shape of a tensor, by its name in the file; nothing if there is
  // none.
  std::optional<std::vector<int64_t>> ShapeOf(const std::string& name) const;
  // Reads a tensor of at most 1 MiB of numbers, by its name in the file.
  // kNotFound if there is none, kInvalidArgument if its type is not read.
  absl::StatusOr<std::vector<float>> ReadSmall(const std::string& name) const;
  // Sets the formats of the weights that may stay coded as the files have them,
  // and null for others.
  void SetCodes(DecoderSpec* spec) const;
  absl::Status ReadCodes(const TensorRef& ref, const CodeFormat& format,
                         int64_t row_begin, int64_t row_end,
                         std::byte* out) const override;
  // The bytes of tensors by their type ("BF16", "Q4_K"). With a spec, those of
  // all that a weight is made of that has a format there, by the format's name.
  std::map<std::string, uint64_t> BytesByType(
      const DecoderSpec* spec = nullptr) const;
  struct FileInfo {
    std::string name;
    std::string path;
    int fd;  // open as long as the source lives; -1 after OpenPieces()
    uint64_t bytes;
  };
  // The files in order of name.
  std::vector<FileInfo> Files() const;
  // Bytes [begin, end) of a file.
  struct Extent {
    std::string file;  // name
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // Returns where a weight's tensors are; nothing for a bias that is 0. The
  // errors of Check.
  absl::StatusOr<std::vector<Extent>> Locate(const TensorRef& ref) const;
  // Where the headers are, with their lengths, in order of name.
  std::vector<Extent> Headers() const;
  // The CopiesText of the tensors that are in these files and do not count.
  const std::string& Copies() const { return copies_; }
  // The hex SHA-256 over `config` and, per file in order of name, its name,
  // header and size, and over Copies().
  std::string Fingerprint(absl::string_view config) const;

 private:
  struct File {
    size_t number = 0;  // in files_
    std::string name;
    std::string path;
    int fd = -1;
    uint64_t bytes = 0;
    uint64_t data_offset = 0;
    std::string header_digest;
    SafetensorsHeader header;
    std::unique_ptr<GgufMetadata> gguf;  // null unless it is a GGUF file
  };
  struct Location {
    const File* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  // The tensors as the methods of quantization see them.
  class Stored final : public StoredTensors {
   public:
    explicit Stored(const SafetensorsSource& source) : source_(source) {}
    std::optional<Place> Find(const std::string& name) const override;
    absl::Status Read(const std::string& name, uint64_t begin, uint64_t end,
                      char* out) const override;

   private:
    const SafetensorsSource& source_;
  };

  explicit SafetensorsSource(QuantizationConfig quantization);
  absl::Status OpenFile(const std::filesystem::path& path,
                        const KnownPieces& known);
  absl::Status OpenShards(const std::filesystem::path& model_dir,
                          const std::filesystem::path& index_path,
                          const KnownPieces& known);
  absl::Status OpenGguf(const std::filesystem::path& path,
                        const KnownPieces& known);
  // Reads the header of files_'s last file.
  absl::Status ReadHeader();
  absl::Status ReadGguf(File* file);
  // Checks that the files are all parts of one GGUF model, and sets naming_.
  absl::Status JoinGguf();
  // Fills tensors_, once all headers are read.
  absl::Status ListTensors(const TensorsByFile& ignored);
  // Reads the bytes of a header.
  absl::StatusOr<std::string> HeaderText(const File& file) const;
  // Whether a file or the index names the head of `spec`.
  bool HasHead(const DecoderSpec& spec) const;
  // From now on, bytes of the file are those of the list.
  absl::Status CheckBy(const File& file, PieceListPtr list) const;
  std::shared_ptr<PieceReader> PiecesOf(const File& file) const;
  // Takes bytes [begin, end) of a file in consecutive parts.
  absl::Status Read(const File& file, uint64_t begin, uint64_t end,
                    uint64_t ahead_end,
                    absl::FunctionRef<void(absl::string_view)> take) const;
  absl::StatusOr<std::string> ReadText(const File& file, uint64_t begin,
                                       uint64_t end) const;
  // Whether two tensors have the same dtype, shape and bytes.
  absl::StatusOr<bool> SameData(const Location& x, const Location& y) const;
  // kUnimplemented, with the tensor's name, for a type that does not run.
  static absl::Status CheckGgufType(const Location& at,
                                    const std::string& name);
  Location FindName(const std::string& name) const;
  Extent ExtentOf(const Location& at) const;
  // Returns what a weight must be if it is quantized; nothing if it can't be.
  std::optional<WeightPlace> QuantizedPlace(const TensorRef& ref) const;
  // Returns where these files have what `ref` describes.
  TensorRef AsStored(const TensorRef& ref) const;
  // Finds what AsStored() returned. Returns no location for a bias that is 0.
  absl::StatusOr<Location> Find(const TensorRef& ref) const;
  // Returns the format of a matrix's rows if they can stay as they are, or
  // null; that of GGUF files, and of quantized weights.
  const CodeFormat* KeptCodes(const TensorRef& ref) const;
  const CodeFormat* GgufCodes(const TensorRef& ref) const;
  const CodeFormat* QuantizedCodes(const TensorRef& ref) const;
  // Returns the groups of a quantized matrix's inputs; none if no tensor has
  // them.
  std::vector<int32_t> OrderOf(const TensorRef& ref) const;
  // Calls take(row, stored, count) for runs of a weight's rows [begin, end) of
  // which the tensor has `count` one after the other, from row `stored` on.
  static absl::Status ForRuns(
      const TensorRef& ref, int64_t begin, int64_t end,
      absl::FunctionRef<absl::Status(int64_t, int64_t, int64_t)> take);
  // Reads elements [first, first + count) of a tensor as it is stored.
  absl::Status ReadElements(const Location& at, uint64_t first, uint64_t count,
                            float* out) const;
  // Does so of a GGUF file's tensor, of which whole blocks are read.
  absl::Status ReadBlocks(const Location& at, uint64_t first, uint64_t count,
                          float* out) const;
  // Read a vector, or rows [begin, end) of a matrix, stored by rows or by
  // columns, without scale and add.
  absl::Status ReadVector(const Location& at, const TensorRef& ref,
                          int64_t elements, float* out) const;
  absl::Status ReadRuns(const Location& at, const TensorRef& ref, int64_t begin,
                        int64_t end, float* out) const;
  absl::Status ReadColumns(const Location& at, const TensorRef& ref,
                           int64_t begin, int64_t end, float* out) const;
  // Multiplies and adds what `ref` says.
  static void Adjust(const TensorRef& ref, int64_t elements, float* out);

  const Stored stored_;
  const std::unique_ptr<QuantizedWeights> quantized_;
  std::filesystem::path dir_;
  std::vector<std::unique_ptr<File>> files_;
  absl::flat_hash_map<std::string, Location> tensors_;
  std::string copies_;
  std::optional<GgufNaming> naming_;  // of GGUF files
  std::map<std::string, std::string>
      index_;  // shards, by tensor; if one is read
  mutable CheckedPieces checked_;
  mutable Mutex mu_;
  // By the file's number; null if its pieces are not known.
  mutable std::vector<std::shared_ptr<PieceReader>> pieces_
      ABSL_GUARDED_BY(mu_);
  // Where ContentId() found hashes, which are forgotten if they prove wrong.
  mutable std::string hash_cache_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
