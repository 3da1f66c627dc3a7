#include "scheduler/steps/workload.h"

#include <algorithm>
#include <cmath>

#include "common/status_macros.h"

namespace sluice {

int64_t Workload::requests() const {
  int64_t count = 0;
  for (const LengthClass& c : classes) count += c.count;
  return count;
}

double Workload::prompt_tokens() const {
  double tokens = 0;
  for (const LengthClass& c : classes) {
    tokens += static_cast<double>(c.prompt) * static_cast<double>(c.count);
  }
  return tokens;
}

double Workload::shared_tokens() const {
  double tokens = 0;
  for (const LengthClass& c : classes) {
    tokens += static_cast<double>(c.shared) * static_cast<double>(c.count);
  }
  return tokens;
}

double Workload::output_tokens() const {
  double tokens = 0;
  for (const LengthClass& c : classes) {
    tokens += static_cast<double>(c.output) * static_cast<double>(c.count);
  }
  return tokens;
}

int32_t Workload::longest() const {
  int32_t longest = 0;
  for (const LengthClass& c : classes) {
    if (c.count > 0) longest = std::max(longest, c.prompt + c.output);
  }
  return longest;
}

Workload ShareOf(Workload workload, double share) {
  if (share >= 1) return workload;
  for (LengthClass& c : workload.classes) {
    if (c.count <= 0) continue;
    c.count = std::max<int64_t>(
        1, std::llround(static_cast<double>(c.count) * share));
  }
  return workload;
}

absl::Status Workload::Check() const {
  // These are far beyond any model's positions and any job; sums stay exact.
  constexpr int32_t kMaxTokens = int32_t{1} << 28;
  constexpr int64_t kMaxRequests = int64_t{1} << 40;
  for (const LengthClass& c : classes) {
    if (c.prompt < 1 || c.output < 1 || c.count < 0 || c.prompt > kMaxTokens ||
        c.output > kMaxTokens || c.count > kMaxRequests || c.shared < 0 ||
        c.shared >= c.prompt) {
      return InvalidArgument(
          "the workload has ", c.count, " requests of ", c.prompt,
          " prompt tokens, ", c.shared, " of them shared, and ", c.output,
          " generated ones; each must have at least one of both, and one that "
          "it does not share");
    }
  }
  if (requests() < 1) {
    return absl::InvalidArgumentError("the workload has no requests");
  }
  if (requests() > kMaxRequests) {
    return InvalidArgument("the workload has ", requests(),
                           " requests; at most ", kMaxRequests,
                           " can be planned for");
  }
  return absl::OkStatus();
}

std::vector<StepShape> BlockSteps(const Workload& workload,
                                  const BlockShape& block) {
  const auto requests = static_cast<double>(workload.requests());
  const double size = static_cast<double>(block.gbs) * block.num_microbatches;
  const double runs = std::ceil(requests / size);
  const double micro_batches = std::ceil(requests / runs / block.gbs);
  StepShape prefill{.count = runs, .micro_batches = micro_batches};
  StepShape decode{.count = 0, .micro_batches = micro_batches};
  int32_t longest = 0;
  for (const LengthClass& c : workload.classes) {
    if (c.count == 0) continue;
    const auto n = static_cast<double>(c.count);
    const double s = c.prompt;
    const double steps = c.output - 1;  // the first token is prefill's
    longest = std::max(longest, c.output);
    prefill.prefill_rows += n * s;
    prefill.prefill_chunks += n;
    prefill.prefill_pairs += n * s * (s + 1) / 2;
    prefill.head_rows += n;
    decode.decode_rows += n * steps;
    decode.decode_positions += n * steps * (s + (steps + 1) / 2);
  }
  decode.count = runs * (longest - 1);
  decode.read_positions = decode.decode_positions - decode.decode_rows;
  decode.head_rows = decode.decode_rows;
  std::vector<StepShape> kinds;
  for (StepShape kind : {prefill, decode}) {
    if (kind.count == 0) continue;
    for (double* sum :
         {&kind.prefill_rows, &kind.prefill_chunks, &kind.prefill_pairs,
          &kind.decode_rows, &kind.decode_positions, &kind.read_positions,
          &kind.head_rows}) {
      *sum /= kind.count;
    }
    kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace sluice
