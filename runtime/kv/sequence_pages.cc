#include "runtime/kv/sequence_pages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {

absl::Status PageTables::Admit(SequenceId id, int32_t max_tokens) {
  if (tables_.contains(id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence ", id.value(), " is admitted already"));
  }
  SequencePages table;
  table.capacity = max_tokens;
  SLUICE_RETURN_IF_ERROR(Annotate(
      pool_.Take((int64_t{max_tokens} + kPageTokens - 1) / kPageTokens,
                 &table.pages),
      absl::StrCat("sequence ", id.value(), " of ", max_tokens, " positions")));
  tables_.emplace(id, std::move(table));
  return absl::OkStatus();
}

absl::Status PageTables::Release(SequenceId id) {
  auto it = tables_.find(id);
  if (it == tables_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence ", id.value(), " is not known here"));
  }
  pool_.GiveBack(it->second.pages);
  tables_.erase(it);
  return absl::OkStatus();
}

void PageTables::Clear() {
  for (const auto& [id, table] : tables_) pool_.GiveBack(table.pages);
  tables_.clear();
}

SequencePages* PageTables::Find(SequenceId id) {
  auto it = tables_.find(id);
  return it == tables_.end() ? nullptr : &it->second;
}

}  // namespace sluice
