#include "runtime/model/checkpoint/model_content.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/piece_list.h"

namespace sluice {
namespace {

// A file's hash, the one that earlier versions had stored with jobs, and a
// substitute for it (sizes and times) have forms of their own.
int FormOf(const std::string& hash) {
  if (IsPieceListHash(hash)) return 0;
  return hash.find('-') == std::string::npos ? 1 : 2;
}

// Only hashes of one form are compared.
bool Comparable(const std::string& a, const std::string& b) {
  return !a.empty() && !b.empty() && FormOf(a) == FormOf(b);
}

}  // namespace

bool ModelContent::known() const {
  return !files.empty() &&
         std::none_of(files.begin(), files.end(),
                      [](const File& f) { return f.hash.empty(); });
}

std::string DifferenceOf(const ModelContent& mine, const ModelContent& other) {
  std::string first;
  int more = 0;
  const auto differ = [&](std::string what) {
    if (first.empty()) {
      first = std::move(what);
    } else {
      ++more;
    }
  };
  auto a = mine.files.begin();
  auto b = other.files.begin();
  while (a != mine.files.end() || b != other.files.end()) {
    if (b == other.files.end() ||
        (a != mine.files.end() && a->name < b->name)) {
      differ(absl::StrCat(a->name, " should not be there"));
      ++a;
    } else if (a == mine.files.end() || b->name < a->name) {
      differ(absl::StrCat(b->name, " is missing"));
      ++b;
    } else {
      if (a->bytes != b->bytes) {
        differ(
            absl::StrCat(a->name, " has ", a->bytes, " bytes, not ", b->bytes));
      } else if (Comparable(a->hash, b->hash) && a->hash != b->hash) {
        differ(absl::StrCat(a->name, " differs"));
      }
      ++a;
      ++b;
    }
  }
  if (mine.copies != other.copies) {
    differ("model.safetensors.index.json names other files for some tensors");
  }
  if (more > 0) {
    absl::StrAppend(&first, ", and ", more, more == 1 ? " other" : " others");
  }
  return first;
}

}  // namespace sluice
