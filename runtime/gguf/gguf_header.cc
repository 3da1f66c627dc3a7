#include "runtime/gguf/gguf_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/piece_list.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

// The format is little-endian, as are all supported machines.
static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kMaxTensors = uint64_t{1} << 18;
constexpr uint64_t kMaxKeys = uint64_t{1} << 16;
constexpr uint64_t kMaxKeyBytes = 1024;
constexpr uint64_t kMaxStringBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxListed = uint64_t{1} << 24;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxDim = uint64_t{1} << 40;
constexpr int kMaxNesting = 8;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = int64_t{1} << 24;

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// The least bytes that a value of the type takes; 0 for an unknown type.
uint64_t LeastBytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kUint64:
    case kInt64:
    case kFloat64:
    case kString:
      return 8;
    case kArray:
      return 12;
    default:
      return 0;
  }
}

class HeaderReader {
 public:
  HeaderReader(uint64_t file_bytes, GgufRead read)
      : file_bytes_(file_bytes), read_(read) {}

  absl::StatusOr<GgufHeader> Read() {
    SLUICE_RETURN_IF_ERROR(ReadAll());
    return std::move(header_);
  }

 private:
  absl::Status ReadAll() {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view magic,
                            Bytes(kGgufMagic.size()));
    if (magic != kGgufMagic) {
      return absl::InvalidArgumentError("does not begin with GGUF");
    }
    SLUICE_ASSIGN_OR_RETURN(const auto version, Number<uint32_t>());
    if (version != 2 && version != 3) {
      return Unimplemented(
          "is of version ", version, " of GGUF",
          (version & 0xffff) == 0 && version != 0
              ? ", big-endian: convert the model anew on this machine"
              : "; versions 2 and 3 are read: convert the model anew");
    }
    SLUICE_ASSIGN_OR_RETURN(const auto tensors, Number<uint64_t>());
    SLUICE_ASSIGN_OR_RETURN(const auto keys, Number<uint64_t>());
    if (tensors > kMaxTensors || keys > kMaxKeys) {
      return InvalidArgument("says that it has ", tensors, " tensors and ",
                             keys, " keys; at most ", kMaxTensors, " and ",
                             kMaxKeys, " are accepted");
    }
    for (uint64_t i = 0; i < keys; ++i) {
      where_ = absl::StrCat("metadata key ", i);
      SLUICE_RETURN_IF_ERROR(ReadKey());
    }
    for (uint64_t i = 0; i < tensors; ++i) {
      where_ = absl::StrCat("tensor ", i);
      SLUICE_RETURN_IF_ERROR(ReadTensor());
    }
    SLUICE_RETURN_IF_ERROR(SetDataOffset());
    return CheckPlaces();
  }

  // Returns the next bytes of the file, valid until the next call.
  absl::StatusOr<absl::string_view> Bytes(uint64_t count) {
    if (count > file_bytes_ - pos_) {
      return InvalidArgument(where_, ": the file ends within it, at ",
                             file_bytes_, " bytes: it was cut");
    }
    if (pos_ + count > kMaxGgufHeaderBytes) {
      return InvalidArgument(where_, ": the header has more than ",
                             kMaxGgufHeaderBytes >> 20, " MiB");
    }
    if (pos_ + count > begin_ + buffer_.size()) {
      buffer_.erase(0, pos_ - begin_);
      begin_ = pos_;
      const uint64_t from = begin_ + buffer_.size();
      const uint64_t to =
          std::min(file_bytes_, NumPieces(pos_ + count) * kPieceBytes);
      SLUICE_ASSIGN_OR_RETURN(const std::string more, read_(from, to));
      if (more.size() != to - from) {
        return DataLoss("can't be read at ", from);
      }
      buffer_ += more;
    }
    const absl::string_view bytes(buffer_.data() + (pos_ - begin_), count);
    pos_ += count;
    return bytes;
  }

  template <typename T>
  absl::StatusOr<T> Number() {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view bytes, Bytes(sizeof(T)));
    T number;
    std::memcpy(&number, bytes.data(), sizeof(T));
    return number;
  }

  absl::StatusOr<std::string> String(uint64_t max_bytes) {
    SLUICE_ASSIGN_OR_RETURN(const auto length, Number<uint64_t>());
    if (length > max_bytes) {
      return InvalidArgument(where_, ": a string of ", length,
                             " bytes; at most ", max_bytes, " are accepted");
    }
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view bytes, Bytes(length));
    return std::string(bytes);
  }

  absl::Status ReadKey() {
    SLUICE_ASSIGN_OR_RETURN(std::string key, String(kMaxKeyBytes));
    where_ = absl::StrCat("metadata ", QuoteForMessage(key));
    SLUICE_ASSIGN_OR_RETURN(const auto type, Number<uint32_t>());
    SLUICE_ASSIGN_OR_RETURN(GgufValue value, Value(type, 0));
    if (!header_.metadata.Add(std::move(key), std::move(value))) {
      return InvalidArgument(where_, " appears twice");
    }
    return absl::OkStatus();
  }

  template <typename T, typename As>
  absl::StatusOr<GgufValue> Scalar() {
    SLUICE_ASSIGN_OR_RETURN(const auto number, Number<T>());
    return GgufValue(static_cast<As>(number));
  }

  absl::StatusOr<GgufValue> Value(uint32_t type, int depth) {
    switch (type) {
      case kUint8:
        return Scalar<uint8_t, int64_t>();
      case kInt8:
        return Scalar<int8_t, int64_t>();
      case kUint16:
        return Scalar<uint16_t, int64_t>();
      case kInt16:
        return Scalar<int16_t, int64_t>();
      case kUint32:
        return Scalar<uint32_t, int64_t>();
      case kInt32:
        return Scalar<int32_t, int64_t>();
      case kUint64: {
        SLUICE_ASSIGN_OR_RETURN(const auto number, Number<uint64_t>());
        if (number > INT64_MAX) {
          return InvalidArgument(where_, " is ", number, ", which is too much");
        }
        return GgufValue(static_cast<int64_t>(number));
      }
      case kInt64:
        return Scalar<int64_t, int64_t>();
      case kFloat32:
        return Scalar<float, double>();
      case kFloat64:
        return Scalar<double, double>();
      case kBool: {
        SLUICE_ASSIGN_OR_RETURN(const auto byte, Number<uint8_t>());
        if (byte > 1) {
          return InvalidArgument(where_, " must be true or false, but is byte ",
                                 byte);
        }
        return GgufValue(byte == 1);
      }
      case kString: {
        SLUICE_ASSIGN_OR_RETURN(std::string text, String(kMaxStringBytes));
        return GgufValue(std::move(text));
      }
      case kArray:
        return Array(depth);
      default:
        return InvalidArgument(where_, " has the unknown type ", type);
    }
  }

  absl::StatusOr<GgufValue> Array(int depth) {
    if (depth == kMaxNesting) {
      return InvalidArgument(where_, ": lists are nested more than ",
                             kMaxNesting, " deep");
    }
    SLUICE_ASSIGN_OR_RETURN(const auto type, Number<uint32_t>());
    SLUICE_ASSIGN_OR_RETURN(const auto count, Number<uint64_t>());
    const uint64_t least = LeastBytes(type);
    if (least == 0) {
      return InvalidArgument(where_, " is a list of the unknown type ", type);
    }
    if (count > kMaxListed || count * least > file_bytes_ - pos_) {
      return InvalidArgument(where_, ": a list of ", count,
                             " values, which is more than the file has or ",
                             kMaxListed);
    }
    std::vector<int64_t> ints;
    std::vector<double> numbers;
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < count; ++i) {
      SLUICE_ASSIGN_OR_RETURN(GgufValue value, Value(type, depth + 1));
      if (auto* text = std::get_if<std::string>(&value)) {
        texts.push_back(std::move(*text));
      } else if (const auto* number = std::get_if<double>(&value)) {
        numbers.push_back(*number);
      } else if (const auto* flag = std::get_if<bool>(&value)) {
        ints.push_back(*flag ? 1 : 0);
      } else if (const auto* whole = std::get_if<int64_t>(&value)) {
        ints.push_back(*whole);
      }
    }
    if (type == kArray) return GgufValue();
    if (type == kString) return GgufValue(std::move(texts));
    if (type == kFloat32 || type == kFloat64) {
      return GgufValue(std::move(numbers));
    }
    return GgufValue(std::move(ints));
  }

  absl::Status ReadTensor() {
    GgufTensor tensor;
    SLUICE_ASSIGN_OR_RETURN(tensor.name, String(kMaxKeyBytes));
    where_ = absl::StrCat("tensor ", QuoteForMessage(tensor.name));
    if (!names_.insert(tensor.name).second) {
      return InvalidArgument(where_, " appears twice");
    }
    SLUICE_ASSIGN_OR_RETURN(const auto dims, Number<uint32_t>());
    if (dims == 0 || dims > kMaxDims) {
      return InvalidArgument(where_, " has ", dims, " dimensions; 1 to ",
                             kMaxDims, " are accepted");
    }
    for (uint32_t i = 0; i < dims; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const auto dim, Number<uint64_t>());
      if (dim == 0 || dim > kMaxDim) {
        return InvalidArgument(where_, " has a dimension of ", dim, "; 1 to ",
                               kMaxDim, " are accepted");
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
    }
    SLUICE_ASSIGN_OR_RETURN(const auto type, Number<uint32_t>());
    tensor.type = FindGgufType(type);
    if (tensor.type == nullptr) {
      return Unimplemented(where_, " has type ", type,
                           " of ggml, which is not known");
    }
    SLUICE_ASSIGN_OR_RETURN(tensor.begin, Number<uint64_t>());
    const int64_t columns = tensor.shape.back();
    if (columns % tensor.type->block_elements != 0) {
      return InvalidArgument(where_, " has rows of ", columns,
                             " elements; rows of type ", tensor.type->name,
                             " are multiples of ", tensor.type->block_elements);
    }
    unsigned __int128 bytes =
        static_cast<uint64_t>(columns / tensor.type->block_elements);
    bytes *= static_cast<uint64_t>(tensor.type->block_bytes);
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
      // Each factor has at most 40 bits, so that nothing overflows.
      bytes = std::min<unsigned __int128>(bytes, uint64_t{1} << 62) *
              static_cast<uint64_t>(tensor.shape[i]);
    }
    if (bytes > file_bytes_ || tensor.begin > file_bytes_ ||
        tensor.begin + static_cast<uint64_t>(bytes) > file_bytes_) {
      return InvalidArgument(where_, " of shape [",
                             absl::StrJoin(tensor.shape, ", "), "] at ",
                             tensor.begin, " ends behind the file of ",
                             file_bytes_, " bytes: the file was cut");
    }
    tensor.end = tensor.begin + static_cast<uint64_t>(bytes);
    header_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status SetDataOffset() {
    SLUICE_ASSIGN_OR_RETURN(const auto given,
                            header_.metadata.Int("general.alignment"));
    const int64_t alignment = given.value_or(kDefaultAlignment);
    if (alignment < 1 || alignment > kMaxAlignment ||
        !std::has_single_bit(static_cast<uint64_t>(alignment))) {
      return InvalidArgument("metadata \"general.alignment\" must be a power ",
                             "of two of at most ", kMaxAlignment, ", but is ",
                             alignment);
    }
    alignment_ = static_cast<uint64_t>(alignment);
    header_.data_offset = (pos_ + alignment_ - 1) / alignment_ * alignment_;
    // The padding of a file without tensors may be missing.
    header_.data_offset = std::min(header_.data_offset, file_bytes_);
    return absl::OkStatus();
  }

  // Checks that all tensors lie in the data, and none in another.
  absl::Status CheckPlaces() const {
    const uint64_t data_bytes = file_bytes_ - header_.data_offset;
    std::vector<const GgufTensor*> by_place;
    for (const GgufTensor& tensor : header_.tensors) {
      by_place.push_back(&tensor);
    }
    std::sort(by_place.begin(), by_place.end(),
              [](const GgufTensor* a, const GgufTensor* b) {
                return std::pair(a->begin, a->end) <
                       std::pair(b->begin, b->end);
              });
    const GgufTensor* before = nullptr;
    for (const GgufTensor* tensor : by_place) {
      const std::string name =
          absl::StrCat("tensor ", QuoteForMessage(tensor->name));
      if (tensor->end > data_bytes) {
        return InvalidArgument(name, " ends at ", tensor->end,
                               " of the data, which has ", data_bytes,
                               " bytes: the file was cut");
      }
      if (tensor->begin % alignment_ != 0) {
        return InvalidArgument(name, " begins at ", tensor->begin,
                               " of the data, which is no multiple of ",
                               alignment_);
      }
      if (before != nullptr && tensor->begin < before->end) {
        return InvalidArgument(name, " begins at ", tensor->begin,
                               " of the data, within tensor ",
                               QuoteForMessage(before->name));
      }
      before = tensor;
    }
    return absl::OkStatus();
  }

  const uint64_t file_bytes_;
  const GgufRead read_;
  std::string buffer_;  // of the file, from begin_ on
  uint64_t begin_ = 0;
  uint64_t pos_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::string where_ = "the header";
  std::set<std::string> names_;
  GgufHeader header_;
};

}  // namespace

absl::StatusOr<GgufHeader> ReadGgufHeader(uint64_t file_bytes, GgufRead read) {
  return HeaderReader(file_bytes, read).Read();
}

}  // namespace sluice
