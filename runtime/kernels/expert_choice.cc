#include "runtime/kernels/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace sluice {
namespace {

// The order and the weights follow what transformers computes in float32:
// Qwen3MoeTopKRouter and MixtralTopKRouter for kSoftmax, GptOssTopKRouter for
// kChosenSoftmax, Glm4MoeMoE::route_tokens_to_experts for kSigmoid.

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Divides by their sum what exp(x - max x) gives.
template <typename Values, typename Get>
void Softmax(Values& values, const Get& get) {
  float most = get(values[0]);
  for (auto& value : values) most = std::max(most, get(value));
  float sum = 0;
  for (auto& value : values) {
    get(value) = std::exp(get(value) - most);
    sum += get(value);
  }
  for (auto& value : values) get(value) /= sum;
}

// Marks the `count` greatest of `scores`, of equal ones the first.
void MarkGreatest(std::span<const float> scores, int32_t count,
                  std::vector<uint8_t>* marks) {
  marks->assign(scores.size(), 0);
  for (int32_t i = 0; i < count; ++i) {
    size_t best = scores.size();
    for (size_t e = 0; e < scores.size(); ++e) {
      if ((*marks)[e] != 0) continue;
      if (best == scores.size() || scores[e] > scores[best]) best = e;
    }
    (*marks)[best] = 1;
  }
}

// Sets to minus infinity the scores of all experts but those of the best
// groups.
void KeepGroups(const MixtureSpec& mixture, std::span<float> scores,
                std::vector<uint8_t>* marks) {
  const size_t size = scores.size() / mixture.groups;
  std::vector<float> of_groups;
  for (int32_t g = 0; g < mixture.groups; ++g) {
    const auto group = scores.subspan(g * size, size);
    MarkGreatest(group, static_cast<int32_t>(std::min<size_t>(2, size)), marks);
    float sum = 0;
    for (size_t e = 0; e < size; ++e) sum += (*marks)[e] != 0 ? group[e] : 0;
    of_groups.push_back(sum);
  }
  MarkGreatest(of_groups, mixture.chosen_groups, marks);
  for (int32_t g = 0; g < mixture.groups; ++g) {
    if ((*marks)[g] != 0) continue;
    const auto group = scores.subspan(g * size, size);
    std::fill(group.begin(), group.end(),
              -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void ChooseExperts(const MixtureSpec& mixture, std::span<float> logits,
                   const float* choice_bias, std::span<ExpertChoice> out) {
  if (mixture.router == RouterKind::kSoftmax) {
    Softmax(logits, [](float& x) -> float& { return x; });
  } else if (mixture.router == RouterKind::kSigmoid) {
    for (float& x : logits) x = Sigmoid(x);
  }
  std::vector<uint8_t> marks;
  std::vector<float> scores(logits.begin(), logits.end());
  for (size_t e = 0; choice_bias != nullptr && e < scores.size(); ++e) {
    scores[e] += choice_bias[e];
  }
  if (mixture.groups > 1) KeepGroups(mixture, scores, &marks);
  MarkGreatest(scores, mixture.experts_per_token, &marks);
  size_t next = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    if (marks[e] != 0) out[next++] = {static_cast<int32_t>(e), logits[e]};
  }
  if (mixture.router == RouterKind::kChosenSoftmax) {
    Softmax(out, [](ExpertChoice& choice) -> float& { return choice.weight; });
  }
  if (mixture.normalize) {
    float sum = 0;
    for (const ExpertChoice& choice : out) sum += choice.weight;
    sum = std::max(sum, mixture.least_sum);
    for (ExpertChoice& choice : out) {
      if (sum != 0) choice.weight /= sum;
    }
  }
  if (mixture.scale != 1) {
    for (ExpertChoice& choice : out) choice.weight *= mixture.scale;
  }
}

}  // namespace sluice
