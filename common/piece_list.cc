#include "common/piece_list.h"

#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/content_hash.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kFileHashBytes = 1 + 2 * sizeof(PieceHash);

}  // namespace

PieceHash HashPiece(absl::string_view piece) {
  ContentHash content;
  content.Add(piece);
  const std::string bytes = content.Bytes();
  PieceHash hash;
  std::memcpy(hash.data(), bytes.data(), hash.size());
  return hash;
}

absl::StatusOr<PieceList> PieceList::Create(uint64_t file_bytes,
                                            absl::string_view hashes) {
  if (file_bytes > kMaxPiecedFileBytes) {
    return InvalidArgument("a file of ", file_bytes, " bytes; the most is ",
                           kMaxPiecedFileBytes);
  }
  const uint64_t count = NumPieces(file_bytes);
  if (hashes.size() != count * sizeof(PieceHash)) {
    return InvalidArgument("hashes of ", hashes.size(), " bytes for a file of ",
                           count, " pieces");
  }
  std::vector<PieceHash> list(count);
  if (count > 0) std::memcpy(list.data(), hashes.data(), hashes.size());
  return PieceList(file_bytes, std::move(list));
}

PieceList::PieceList(uint64_t file_bytes, std::vector<PieceHash> hashes)
    : file_bytes_(file_bytes), hashes_(std::move(hashes)) {}

std::string PieceList::FileHash() const {
  ContentHash content;
  content.Add(
      absl::StrCat("sluice pieces 1\n", kPieceBytes, "\n", file_bytes_, "\n"));
  content.Add(packed());
  return absl::StrCat("p", content.Hex());
}

bool IsPieceListHash(absl::string_view hash) {
  if (hash.size() != kFileHashBytes || hash[0] != 'p') return false;
  for (const char c : hash.substr(1)) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c)) &&
        (c < 'a' || c > 'f')) {
      return false;
    }
  }
  return true;
}

}  // namespace sluice
