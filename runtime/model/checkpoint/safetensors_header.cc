#include "runtime/model/checkpoint/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

constexpr size_t kMaxDims = 16;

// Names come from the file: keep messages short and printable.
std::string Quote(const std::string& name) {
  std::string quoted = "\"";
  for (const char c : name.substr(0, 200)) {
    quoted += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return quoted + "\"";
}

// Builds the header straight from parse events: a header can be 100 MB, and a
// document tree of it many times that.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader Take() { return std::move(header_); }
  const absl::Status& status() const { return status_; }

  bool start_object(std::size_t) override {
    switch (where_) {
      case Where::kStart:
        where_ = Where::kTop;
        return true;
      case Where::kTopValue:
        if (name_ == "__metadata__") {
          where_ = Where::kMetadata;
          return true;
        }
        where_ = Where::kTensor;
        entry_ = {};
        has_dtype_ = has_shape_ = has_offsets_ = false;
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(string_t& key) override {
    if (where_ == Where::kTop) {
      name_ = key;
      where_ = Where::kTopValue;
      const bool is_new = name_ == "__metadata__"
                              ? !std::exchange(has_metadata_, true)
                              : !header_.contains(name_);
      return is_new || Fail("appears twice");
    }
    if (where_ == Where::kMetadata) return true;
    if (key == "dtype" && !has_dtype_) {
      has_dtype_ = true;
      where_ = Where::kDtype;
    } else if (key == "shape" && !has_shape_) {
      has_shape_ = true;
      where_ = Where::kShape;
    } else if (key == "data_offsets" && !has_offsets_) {
      has_offsets_ = true;
      where_ = Where::kOffsets;
    } else {
      return Fail("has an unknown or repeated key ", Quote(key));
    }
    return true;
  }

  bool end_object() override {
    if (where_ == Where::kMetadata) {
      where_ = Where::kTop;
      return true;
    }
    if (where_ == Where::kTensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) {
        return Fail("needs dtype, shape and data_offsets");
      }
      header_.emplace(name_, std::move(entry_));
      where_ = Where::kTop;
      return true;
    }
    where_ = Where::kEnd;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ == Where::kShape) {
      where_ = Where::kShapeValues;
    } else if (where_ == Where::kOffsets) {
      where_ = Where::kOffsetValues;
      num_offsets_ = 0;
    } else {
      return Unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    if (where_ == Where::kOffsetValues && num_offsets_ != 2) {
      return Fail("must have two data_offsets");
    }
    where_ = Where::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ == Where::kShapeValues) {
      if (entry_.shape.size() == kMaxDims) return Fail("has too many dims");
      if (value > (uint64_t{1} << 62)) return Fail("has too large a dimension");
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (where_ == Where::kOffsetValues) {
      if (num_offsets_ == 2) return Fail("must have two data_offsets");
      (num_offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return Unexpected("a number");
  }

  bool string(string_t& value) override {
    if (where_ == Where::kMetadata) return true;
    if (where_ != Where::kDtype) return Unexpected("a string");
    entry_.dtype = value;
    where_ = Where::kTensor;
    return true;
  }

  bool number_integer(number_integer_t) override {
    return Unexpected("a negative number");
  }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a fraction");
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& e) override {
    status_ = InvalidArgument("header is not JSON: ", JsonErrorText(e.what()));
    return false;
  }

 private:
  enum class Where {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kTensor,
    kDtype,
    kShape,
    kShapeValues,
    kOffsets,
    kOffsetValues,
    kEnd,
  };

  bool Fail(const auto&... problem) {
    status_ = InvalidArgument("header: ", Quote(name_), " ", problem...);
    return false;
  }
  bool Unexpected(const char* what) {
    if (where_ == Where::kStart) {
      status_ = absl::InvalidArgumentError("header: must be a JSON object");
      return false;
    }
    return Fail("has ", what, " where the format has none");
  }

  Where where_ = Where::kStart;
  std::string name_;
  SafetensorsEntry entry_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  bool has_metadata_ = false;
  int num_offsets_ = 0;
  SafetensorsHeader header_;
  absl::Status status_;
};

// Checks the product of the shape and the element size against the offsets.
absl::Status CheckSize(const std::string& name, const SafetensorsEntry& entry) {
  const int element_bytes = SafetensorsElementBytes(entry.dtype);
  if (element_bytes == 0) return absl::OkStatus();  // never read
  unsigned __int128 bytes = element_bytes;
  for (const int64_t dim : entry.shape) {
    bytes *= static_cast<uint64_t>(dim);
    // A later dimension of 0 still makes the product 0.
    if (bytes > (uint64_t{1} << 62)) bytes = (uint64_t{1} << 62) + 1;
  }
  if (bytes != entry.end - entry.begin) {
    return InvalidArgument("header: ", Quote(name), " has ",
                           entry.end - entry.begin,
                           " bytes, which does not fit its dtype and shape");
  }
  return absl::OkStatus();
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

int SafetensorsElementBytes(absl::string_view dtype) {
  static constexpr std::pair<absl::string_view, int> kSizes[] = {
      {"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},     {"BF16", 2},
      {"I32", 4},     {"U32", 4}, {"F32", 4}, {"I64", 8},     {"U64", 8},
      {"F64", 8},     {"C64", 8},
  };
  for (const auto& [name, bytes] : kSizes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text,
                                                         uint64_t data_bytes) {
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text.data(), text.data() + text.size(),
                                 &reader)) {
    return reader.status().ok()
               ? absl::InvalidArgumentError("header is not JSON")
               : reader.status();
  }
  SafetensorsHeader header = reader.Take();

  std::vector<const SafetensorsHeader::value_type*> by_offset;
  by_offset.reserve(header.size());
  for (const auto& tensor : header) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const auto* a, const auto* b) {
              return std::pair(a->second.begin, a->second.end) <
                     std::pair(b->second.begin, b->second.end);
            });
  uint64_t covered = 0;
  for (const auto* tensor : by_offset) {
    const SafetensorsEntry& entry = tensor->second;
    if (entry.begin > entry.end || entry.end > data_bytes) {
      return InvalidArgument("header: ", Quote(tensor->first),
                             " has data_offsets [", entry.begin, ", ",
                             entry.end, "], but the data has ", data_bytes,
                             " bytes (is the file truncated?)");
    }
    if (entry.begin != covered) {
      return InvalidArgument("header: ", Quote(tensor->first), " begins at ",
                             entry.begin, ", but the data before it ends at ",
                             covered, " (holes and overlaps are not allowed)");
    }
    SLUICE_RETURN_IF_ERROR(CheckSize(tensor->first, entry));
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return InvalidArgument("tensors end at ", covered, ", but the data has ",
                           data_bytes, " bytes");
  }
  return header;
}

}  // namespace sluice
