#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Reads the fields of a message in protobuf's wire format
// (protobuf.dev/programming-guides/encoding), one by one. The runtime has no
// protobuf library: a SentencePiece file is the only message that it reads.
// Borrows the bytes.
class WireReader {
 public:
  enum class Type { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  struct Field {
    uint64_t number;
    Type type;
    uint64_t value;           // of numbers
    absl::string_view bytes;  // of kBytes: a text or a message
  };

  explicit WireReader(absl::string_view message) : rest_(message) {}

  // Returns the next field, or nullopt at the end. kInvalidArgument if the
  // message is cut short or not of this format.
  absl::StatusOr<std::optional<Field>> Next();

 private:
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<absl::string_view> Take(uint64_t size);

  absl::string_view rest_;
};

}  // namespace sluice
