#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "scheduler/steps/chunk_room.h"
#include "scheduler/steps/workload.h"

// StepsOf: follows a job's steps by counts. What a micro-batch's decoding
// sequences attend grows by one position each in every step, so their number
// and the sum of their positions are all that a step needs to know of them;
// when each ends is known beforehand.

namespace sluice {
namespace {

// The part of a longer job that is followed: `all` requests, of which `start`
// are admitted before it counts as steady. Few slots follow more for each, for
// their sequences' lengths to average out; with many these do so at once.
struct Following {
  int64_t start = 0;
  int64_t all = 0;
};
Following FollowingFor(int64_t slots) {
  constexpr int64_t kManySlots = 2048;
  constexpr int64_t kFewRequests = 2000;
  constexpr int64_t kMaxForSlot = 40;
  if (slots >= kManySlots) return {slots, 3 * slots};
  return {2 * slots,
          std::max(6 * slots, std::min(kFewRequests, kMaxForSlot * slots))};
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Does with the requests what StepScheduler does, at unlimited pages.
class Follower {
 public:
  Follower(const Workload& workload, const BlockShape& block, int64_t requests)
      : block_(block),
        order_(workload),
        waiting_(requests),
        blocks_(block.num_blocks) {
    for (Block& b : blocks_) b.micro_batches.resize(block.num_microbatches);
  }

  int64_t waiting() const { return waiting_; }
  bool Done() const { return waiting_ == 0 && running_ == 0; }

  // The next step of each block that has one, and slices behind them.
  void Round(std::vector<StepShape>* steps) {
    const size_t begin = steps->size();
    for (Block& block : blocks_) {
      EndStep(block);
      ++block.step;
      Form(block, false, steps);
    }
    const auto all = static_cast<size_t>(block_.steps_in_flight);
    size_t in_flight = steps->size() - begin;
    const bool slices = in_flight > 0 && in_flight + 1 < all;
    for (size_t before = 0; slices && in_flight != before;) {
      before = in_flight;
      for (Block& block : blocks_) {
        if (in_flight < all && Form(block, true, steps)) ++in_flight;
      }
    }
    for (size_t i = begin; i < steps->size(); ++i) {
      (*steps)[i].in_flight = static_cast<double>(in_flight);
    }
  }

 private:
  struct Prompt {
    int32_t prompt = 0;
    int32_t output = 0;
    int32_t done = 0;     // positions computed
    int32_t planned = 0;  // in this step
    bool Complete() const { return done == prompt; }
  };
  struct End {
    int64_t step = 0;       // of the block: the sequence's last
    int64_t positions = 0;  // that it would attend in the next one
    friend bool operator>(const End& a, const End& b) {
      return a.step > b.step;
    }
  };
  struct MicroBatch {
    std::deque<Prompt> prompts;  // in order of admission
    int64_t decoding = 0;
    int64_t positions = 0;  // that they attend in their next step
    // The ends of sequences that decode, the next one on top.
    std::priority_queue<End, std::vector<End>, std::greater<End>> ends;
    int64_t ended = 0;  // sequences in their last step, a prompt's
    int64_t size() const {
      return decoding + static_cast<int64_t>(prompts.size()) + ended;
    }
  };
  struct Block {
    std::vector<MicroBatch> micro_batches;
    int64_t sequences = 0;
    int64_t step = 0;
  };

  // Appends a step of the block, or a slice; returns false if there is none.
  bool Form(Block& block, bool slice, std::vector<StepShape>* steps) {
    StepShape step{.count = 1, .micro_batches = 0};
    left_.clear();
    for (MicroBatch& m : block.micro_batches) {
      const int64_t decoding = slice ? 0 : m.decoding;
      ChunkRoom& room =
          left_.emplace_back(block_.max_step_tokens, block_.slice_context,
                             static_cast<int32_t>(std::min<int64_t>(
                                 decoding, block_.max_step_tokens)));
      // Prompts go in order of admission; the first without tokens is the last.
      for (Prompt& prompt : m.prompts) {
        prompt.planned = room.Take(prompt.done, prompt.prompt - prompt.done);
        if (prompt.planned == 0) break;
      }
    }
    Admit(block);
    for (MicroBatch& m : block.micro_batches) Compute(block, m, slice, &step);
    if (step.micro_batches == 0) return false;
    steps->push_back(step);
    return true;
  }

  // The sequences that the step before completed leave.
  void EndStep(Block& block) {
    for (MicroBatch& m : block.micro_batches) {
      int64_t left = std::exchange(m.ended, 0);
      for (; !m.ends.empty() && m.ends.top().step == block.step; m.ends.pop()) {
        --m.decoding;
        m.positions -= m.ends.top().positions;
        ++left;
      }
      block.sequences -= left;
      running_ -= left;
    }
  }

  void Admit(Block& block) {
    if (!block_.refill && block.sequences > 0) return;
    const int64_t limit =
        std::min(int64_t{block_.gbs} * block_.num_microbatches,
                 CeilDiv(running_ + waiting_, block_.num_blocks));
    const int64_t micro_batch_limit = CeilDiv(limit, block_.num_microbatches);
    while (waiting_ > 0 && block.sequences < limit) {
      int32_t best = -1;
      for (int32_t i = 0; i < block_.num_microbatches; ++i) {
        const int64_t size = block.micro_batches[i].size();
        if (size >= micro_batch_limit) continue;
        const LengthClass& next = order_.Head();
        if (block_.refill &&
            left_[i].Fit(next.shared, next.prompt - next.shared) == 0) {
          continue;
        }
        if (best < 0 || size < block.micro_batches[best].size()) best = i;
      }
      if (best < 0) return;
      const LengthClass& head = order_.Head();
      Prompt prompt{
          .prompt = head.prompt, .output = head.output, .done = head.shared};
      prompt.planned = left_[best].Take(head.shared, head.prompt - head.shared);
      block.micro_batches[best].prompts.push_back(prompt);
      order_.Pop();
      --waiting_;
      ++running_;
      ++block.sequences;
    }
  }

  void Compute(const Block& block, MicroBatch& m, bool slice, StepShape* step) {
    bool any = false;
    if (!slice) {
      const auto decoding = static_cast<double>(m.decoding);
      const auto positions = static_cast<double>(m.positions);
      step->decode_rows += decoding;
      step->decode_positions += positions;
      step->read_positions += positions - decoding;
      step->head_rows += decoding;
      any = m.decoding > 0;
      m.positions += m.decoding;
    }
    for (Prompt& prompt : m.prompts) {
      if (prompt.planned == 0) break;
      any = true;
      const double start = prompt.done, rows = prompt.planned;
      step->prefill_rows += rows;
      step->prefill_chunks += 1;
      step->prefill_pairs += rows * start + rows * (rows + 1) / 2;
      step->read_positions += start;
      prompt.done += std::exchange(prompt.planned, 0);
    }
    if (any) step->micro_batches += 1;
    for (; !m.prompts.empty() && m.prompts.front().Complete();
         m.prompts.pop_front()) {
      const Prompt& prompt = m.prompts.front();
      step->head_rows += 1;
      if (prompt.output == 1) {
        ++m.ended;
        continue;
      }
      ++m.decoding;
      m.positions += prompt.prompt + 1;
      m.ends.push({block.step + prompt.output - 1,
                   int64_t{prompt.prompt} + prompt.output});
    }
  }

  const BlockShape block_;
  RequestOrder order_;
  int64_t waiting_;
  int64_t running_ = 0;
  std::vector<Block> blocks_;
  std::vector<ChunkRoom> left_;  // of each micro-batch in this step
};

// The members that add up over steps, but for count.
std::array<double*, 9> Sums(StepShape& step) {
  return {&step.micro_batches,  &step.prefill_rows, &step.prefill_chunks,
          &step.prefill_pairs,  &step.decode_rows,  &step.decode_positions,
          &step.read_positions, &step.head_rows,    &step.in_flight};
}

// Adds `step`'s contents, as often as it says, to `total`'s.
void AddTimes(StepShape step, StepShape* total) {
  const auto from = Sums(step), to = Sums(*total);
  for (size_t i = 0; i < from.size(); ++i) *to[i] += step.count * *from[i];
  total->count += step.count;
}

// Returns what a step's cost depends on, for telling kinds apart.
std::array<double, 3> Contents(const StepShape& step) {
  return {step.prefill_rows, step.decode_rows, step.decode_positions};
}

// Sums over the steps of a kind.
struct Kind {
  StepShape total{.count = 0, .micro_batches = 0};
  std::array<double, 3> Mean() const {
    std::array<double, 3> mean = Contents(total);
    for (double& x : mean) x /= total.count;
    return mean;
  }
};

// Merges kinds whose contents are nearest (Ward's criterion: the least growth
// of the squared differences within kinds), as long as there are too many.
void MergeKinds(const std::array<double, 3>& scale, size_t most,
                std::vector<Kind>* kinds) {
  while (kinds->size() > most) {
    size_t best_a = 0, best_b = 1;
    double least = -1;
    for (size_t a = 0; a < kinds->size(); ++a) {
      const std::array<double, 3> mean = (*kinds)[a].Mean();
      const double n = (*kinds)[a].total.count;
      for (size_t b = a + 1; b < kinds->size(); ++b) {
        const std::array<double, 3> other = (*kinds)[b].Mean();
        const double m = (*kinds)[b].total.count;
        double growth = 0;
        for (size_t i = 0; i < mean.size(); ++i) {
          if (scale[i] == 0) continue;
          const double difference = (mean[i] - other[i]) / scale[i];
          growth += n * m / (n + m) * difference * difference;
        }
        if (least >= 0 && growth >= least) continue;
        least = growth;
        best_a = a;
        best_b = b;
      }
    }
    StepShape merged = (*kinds)[best_b].total;
    const double count = std::exchange(merged.count, 1);
    AddTimes(merged, &(*kinds)[best_a].total);
    (*kinds)[best_a].total.count += count - 1;
    kinds->erase(kinds->begin() + static_cast<ptrdiff_t>(best_b));
  }
}

std::vector<StepShape> Kinds(const std::vector<StepShape>& steps,
                             int max_kinds) {
  // Steps are merged by a grid first, coarse enough for few kinds.
  constexpr std::array<int, 3> kCells = {4, 4, 2};
  std::array<double, 3> scale = {};
  for (const StepShape& step : steps) {
    const std::array<double, 3> x = Contents(step);
    for (size_t i = 0; i < x.size(); ++i) scale[i] = std::max(scale[i], x[i]);
  }
  std::map<std::array<int, 3>, Kind> cells;
  for (const StepShape& step : steps) {
    const std::array<double, 3> x = Contents(step);
    std::array<int, 3> cell = {};
    for (size_t i = 0; i < x.size(); ++i) {
      // Cell 0 is for nothing, which is another kind of step than a little.
      if (x[i] > 0) cell[i] = 1 + static_cast<int>(kCells[i] * x[i] / scale[i]);
    }
    AddTimes(step, &cells[cell].total);
  }
  std::vector<Kind> kinds;
  for (const auto& [cell, kind] : cells) kinds.push_back(kind);
  MergeKinds(scale, static_cast<size_t>(std::max(1, max_kinds)), &kinds);
  std::vector<StepShape> result;
  for (const Kind& kind : kinds) {
    StepShape mean = kind.total;
    for (double* sum : Sums(mean)) *sum /= mean.count;
    result.push_back(mean);
  }
  return result;
}

// Returns what the steps of a job add up to, however they are formed.
StepShape TotalOf(const Workload& workload) {
  StepShape total;
  for (const LengthClass& c : workload.classes) {
    const auto n = static_cast<double>(c.count);
    const double s = c.prompt, steps = c.output - 1, shared = c.shared;
    total.prefill_rows += n * (s - shared);
    total.prefill_pairs += n * (s * (s + 1) - shared * (shared + 1)) / 2;
    total.decode_rows += n * steps;
    total.decode_positions += n * steps * (s + (steps + 1) / 2);
    total.head_rows += n * c.output;
  }
  return total;
}

StepShape TotalOf(const std::vector<StepShape>& steps) {
  StepShape total{.count = 0, .micro_batches = 0};
  for (const StepShape& step : steps) AddTimes(step, &total);
  return total;
}

// Makes the sums over all steps those that the job has, where following only a
// part of it left them a little off.
void Conserve(const StepShape& wanted, std::vector<StepShape>* kinds) {
  const StepShape found = TotalOf(*kinds);
  const auto factor = [](double want, double have) {
    return have > 0 ? want / have : 1;
  };
  const double rows = factor(wanted.prefill_rows, found.prefill_rows);
  const double pairs = factor(wanted.prefill_pairs, found.prefill_pairs);
  const double decode = factor(wanted.decode_rows, found.decode_rows);
  const double positions =
      factor(wanted.decode_positions, found.decode_positions);
  const double head = factor(wanted.head_rows, found.head_rows);
  for (StepShape& kind : *kinds) {
    kind.prefill_rows *= rows;
    kind.prefill_chunks *= rows;
    kind.prefill_pairs *= pairs;
    kind.decode_rows *= decode;
    kind.decode_positions *= positions;
    kind.read_positions *= positions;
    kind.head_rows *= head;
  }
}

// Returns how often steps [begin, end) of `steps`, which stand for the middle
// of a longer job, have to come for all of them to make up `wanted`: by what is
// decoded, for a sequence keeps its place while it decodes.
double TimesOf(const std::vector<StepShape>& steps, size_t begin, size_t end,
               const StepShape& wanted) {
  const StepShape all = TotalOf(steps);
  const StepShape middle = TotalOf(
      std::vector<StepShape>(steps.begin() + static_cast<ptrdiff_t>(begin),
                             steps.begin() + static_cast<ptrdiff_t>(end)));
  const bool decodes = middle.decode_rows > 0;
  const double missing = decodes ? wanted.decode_rows - all.decode_rows
                                 : wanted.prefill_rows - all.prefill_rows;
  const double each = decodes ? middle.decode_rows : middle.prefill_rows;
  return each > 0 ? 1 + std::max(0.0, missing) / each : 1;
}

}  // namespace

std::vector<StepShape> StepsOf(const Workload& workload,
                               const BlockShape& block, int max_kinds) {
  const int64_t requests = workload.requests();
  const int64_t slots =
      int64_t{block.gbs} * block.num_microbatches * block.num_blocks;
  const Following following = FollowingFor(slots);
  const int64_t followed = std::min(requests, following.all);
  Follower job(workload, block, followed);
  std::vector<StepShape> steps;
  // Steps [begin, end) are those between start and end.
  size_t begin = 0, end = 0;
  while (!job.Done()) {
    if (begin == 0 && followed - job.waiting() >= following.start) {
      begin = steps.size();
    }
    job.Round(&steps);
    if (job.waiting() > 0) end = steps.size();
  }
  const StepShape wanted = TotalOf(workload);
  if (followed < requests && begin < end) {
    const double times = TimesOf(steps, begin, end, wanted);
    for (size_t i = begin; i < end; ++i) steps[i].count = times;
  }
  std::vector<StepShape> kinds = Kinds(steps, max_kinds);
  Conserve(wanted, &kinds);
  return kinds;
}

}  // namespace sluice
