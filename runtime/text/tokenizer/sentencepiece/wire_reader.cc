#include "runtime/text/tokenizer/sentencepiece/wire_reader.h"

#include "common/status_macros.h"

namespace sluice {
namespace {

uint64_t LittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

}  // namespace

absl::StatusOr<uint64_t> WireReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) return InvalidArgument("the message is cut short");
    const auto byte = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return InvalidArgument("a number has more than 64 bits");
}

absl::StatusOr<absl::string_view> WireReader::Take(uint64_t size) {
  if (size > rest_.size()) return InvalidArgument("the message is cut short");
  const absl::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

absl::StatusOr<std::optional<WireReader::Field>> WireReader::Next() {
  if (rest_.empty()) return std::nullopt;
  SLUICE_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
  Field field{tag >> 3, static_cast<Type>(tag & 7), 0, ""};
  if (field.number == 0) return InvalidArgument("a field has the number 0");
  switch (field.type) {
    case Type::kVarint: {
      SLUICE_ASSIGN_OR_RETURN(field.value, Varint());
      return field;
    }
    case Type::kFixed64:
    case Type::kFixed32: {
      SLUICE_ASSIGN_OR_RETURN(field.bytes,
                              Take(field.type == Type::kFixed64 ? 8 : 4));
      field.value = LittleEndian(field.bytes);
      return field;
    }
    case Type::kBytes: {
      SLUICE_ASSIGN_OR_RETURN(const uint64_t size, Varint());
      SLUICE_ASSIGN_OR_RETURN(field.bytes, Take(size));
      return field;
    }
  }
  return InvalidArgument("field ", field.number, " has the unknown type ",
                         tag & 7);
}

}  // namespace sluice
