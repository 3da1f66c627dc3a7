#include "runtime/exec/stage_work.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {

void StepWork::Begin(StepInputs* step_inputs) {
  num_batches = 0;
  items.clear();
  turns.clear();
  inputs = step_inputs;
  alone_.clear();
}

void StepWork::AdmitTo(KvGroup group, const Segment& segment,
                       const SequencePages& table,
                       const std::array<int64_t, kNumTiers>& max_run_pages,
                       KvWork* kv) {
  const SequencePages::OfGroup& of = table.groups[group];
  // Pages behind the last new position are of no use yet.
  const KvSegment added = {
      .sequence = segment.sequence,
      .pages = std::span<const int32_t>(of.pages).first(
          PagesOf(segment.start + segment.num_tokens)),
      .first_page = groups_.FirstPage(group, segment.start),
      .start = segment.start,
      .num_tokens = segment.num_tokens};
  if (kv->runs.empty() || kv->runs.back().tier != of.tier ||
      kv->runs.back().pages + added.num_pages() >
          max_run_pages[static_cast<size_t>(of.tier)]) {
    kv->runs.push_back(
        {static_cast<int32_t>(kv->segments.size()), 0, of.tier, 0});
  }
  ++kv->runs.back().count;
  kv->runs.back().pages += added.num_pages();
  kv->segments.push_back(added);
}

absl::Status StepWork::Admit(
    const MicroBatch& batch, const PlanLimits& limits,
    const std::array<int64_t, kNumTiers>& max_run_pages, PageTables* tables) {
  SLUICE_RETURN_IF_ERROR(CheckMicroBatch(batch, limits));
  if (batches.size() == num_batches) batches.emplace_back();
  BatchWork& work = batches[num_batches++];
  work.segments.clear();
  for (KvWork& kv : work.kv) {
    kv.segments.clear();
    kv.runs.clear();
  }
  work.padded_tokens.clear();
  size_t tokens = 0;
  for (const Segment& segment : batch.segments) {
    SequencePages* const table = tables->Find(segment.sequence);
    SLUICE_RETURN_IF_ERROR(CheckSegment(segment, table, limits));
    const int32_t end = segment.start + segment.num_tokens;
    SLUICE_RETURN_IF_ERROR(
        Annotate(tables->Grow(table, end),
                 absl::StrCat("sequence ", segment.sequence.value())));
    table->length = end;
    tokens += segment.num_tokens;
    bool on_disk = false;
    for (const KvGroup group : kKvGroups) {
      if (groups_.sizes[group] == 0) continue;
      on_disk = on_disk || table->groups[group].tier == Tier::kDisk;
      AdmitTo(group, segment, *table, max_run_pages, &work.kv[group]);
    }
    // On disk each segment would be staged with pages of its own; in a window
    // the positions of one would lie where the other still looks.
    if ((on_disk || groups_.sizes[KvGroup::kWindow] > 0) &&
        !alone_.insert(segment.sequence).second) {
      return InvalidArgument("sequence ", segment.sequence.value(),
                             " has two segments in a step, but its KV cache ",
                             on_disk ? "is on disk" : "has a window");
    }
  }
  const SegmentRows rows(batch, limits.packing);
  SLUICE_RETURN_IF_ERROR(CheckRows(batch, tokens, rows.total(), limits));
  for (KvWork& kv : work.kv) {
    std::sort(kv.runs.begin(), kv.runs.end(),
              [](const SegmentRun& a, const SegmentRun& b) {
                return std::tie(a.tier, a.first) < std::tie(b.tier, b.first);
              });
  }
  int32_t row = 0;
  auto token = batch.tokens.begin();
  const KvGroup shown =
      groups_.sizes[KvGroup::kAll] > 0 ? KvGroup::kAll : KvGroup::kWindow;
  for (const KvSegment& kv : work.kv[shown].segments) {
    work.segments.push_back({row, kv.start, kv.num_tokens, kv.pages});
    row += rows.Of(kv.num_tokens);
    if (limits.packing || !limits.first) continue;
    // Rows of padding compute some token, whose results nobody looks at.
    work.padded_tokens.insert(work.padded_tokens.end(), token,
                              token + kv.num_tokens);
    work.padded_tokens.resize(row, *token);
    token += kv.num_tokens;
  }
  work.view = {.rows = row,
               .tokens = limits.packing ? batch.tokens : work.padded_tokens,
               .segments = work.segments};
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ActivationBuffer>> StepWork::TakeInput(
    size_t k, int64_t hidden_size) {
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<ActivationBuffer> input,
                          inputs->Take(static_cast<int32_t>(k)));
  SLUICE_RETURN_IF_ERROR(
      Annotate(CheckInput(input.get(), batches[k].view.rows, hidden_size),
               absl::StrCat("micro-batch ", k)));
  return input;
}

void StepWork::Order(int32_t layers, bool row_by_row, bool head, bool added) {
  head_ = head;
  const auto count = static_cast<int32_t>(num_batches);
  for (int32_t a = 0; a < (row_by_row ? count : layers); ++a) {
    for (int32_t b = 0; b < (row_by_row ? layers : count); ++b) {
      items.push_back(row_by_row ? Item{b, a} : Item{a, b});
    }
  }
  for (const Item& item : items) turns.push_back(item.batch);
  for (int32_t k = 0; (head || added) && k < count; ++k) turns.push_back(k);
}

}  // namespace sluice
