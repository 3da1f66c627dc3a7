#include "proto/convert.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "common/policy.h"
#include "common/status_macros.h"

namespace sluice {

void ToProto(const SamplingParams& params, v1::SamplingParams* out) {
  out->set_temperature(params.temperature);
  out->set_top_k(params.top_k);
  out->set_top_p(params.top_p);
  out->set_min_p(params.min_p);
  out->set_repetition_penalty(params.repetition_penalty);
  out->set_presence_penalty(params.presence_penalty);
  out->set_frequency_penalty(params.frequency_penalty);
  for (const auto& [token, bias] : params.logit_bias) {
    out->add_logit_bias_token(token);
    out->add_logit_bias_value(bias);
  }
  out->set_seed(params.seed);
  out->set_logprobs(params.logprobs);
}

absl::StatusOr<SamplingParams> FromProto(const v1::SamplingParams& in) {
  if (in.logit_bias_token_size() != in.logit_bias_value_size()) {
    return InvalidArgument("sampling.logit_bias: ", in.logit_bias_token_size(),
                           " tokens but ", in.logit_bias_value_size(),
                           " values");
  }
  if (in.logprobs() < -1 || in.logprobs() > kMaxBeamCandidates) {
    return InvalidArgument("sampling.logprobs: ", in.logprobs(),
                           " is not between -1 and ", kMaxBeamCandidates);
  }
  SamplingParams params;
  params.temperature = in.temperature();
  params.top_k = in.top_k();
  params.top_p = in.top_p();
  params.min_p = in.min_p();
  params.repetition_penalty = in.repetition_penalty();
  params.presence_penalty = in.presence_penalty();
  params.frequency_penalty = in.frequency_penalty();
  params.logit_bias.reserve(in.logit_bias_token_size());
  for (int i = 0; i < in.logit_bias_token_size(); ++i) {
    params.logit_bias.emplace_back(in.logit_bias_token(i),
                                   in.logit_bias_value(i));
  }
  params.seed = in.seed();
  params.logprobs = in.logprobs();
  return params;
}

namespace {

void ToProto(const SharedPrefix& prefix, v1::SharedPrefix* out) {
  out->set_source(prefix.source.value());
  out->set_positions(prefix.positions);
}

absl::StatusOr<SharedPrefix> FromProto(const v1::SharedPrefix& in) {
  if (in.positions() > 0)
    return SharedPrefix{SequenceId(in.source()), in.positions()};
  return InvalidArgument("step plan: a prefix of sequence ", in.source(),
                         " with ", in.positions(), " positions");
}

}  // namespace

void ToProto(const StepPlan& plan, v1::StepPlan* out) {
  out->set_epoch(plan.epoch.value());
  out->set_block(plan.block.value());
  out->set_step(plan.step);
  for (const KeptPrefix& keep : plan.keep) {
    v1::KeptPrefix* k = out->add_keep();
    k->set_id(keep.id.value());
    ToProto(keep.prefix, k->mutable_prefix());
  }
  for (SequenceId id : plan.release) out->add_release(id.value());
  for (const SequenceAdmission& admission : plan.admit) {
    v1::SequenceAdmission* a = out->add_admit();
    a->set_sequence(admission.sequence.value());
    a->set_prompt_tokens(admission.prompt_tokens);
    a->set_max_positions(admission.max_positions);
    ToProto(admission.sampling, a->mutable_sampling());
    a->set_pooling(static_cast<v1::Pooling>(admission.pooling));
    if (admission.prefix.positions > 0) {
      ToProto(admission.prefix, a->mutable_prefix());
    }
  }
  for (const MicroBatch& batch : plan.micro_batches) {
    v1::MicroBatch* b = out->add_micro_batches();
    for (const Segment& segment : batch.segments) {
      v1::Segment* s = b->add_segments();
      s->set_sequence(segment.sequence.value());
      s->set_start(segment.start);
      s->set_num_tokens(segment.num_tokens);
      s->set_sample(segment.sample);
      if (segment.score_begin == segment.score_end) continue;
      s->set_score_begin(segment.score_begin);
      s->set_score_end(segment.score_end);
      if (segment.next_token >= 0) s->set_next_token(segment.next_token);
    }
    b->mutable_tokens()->Add(batch.tokens.begin(), batch.tokens.end());
  }
}

absl::StatusOr<StepPlan> FromProto(const v1::StepPlan& in) {
  if (in.block() < 0 || in.step() < 0) {
    return InvalidArgument("step plan: block ", in.block(), " and step ",
                           in.step(), " must not be negative");
  }
  StepPlan plan;
  plan.epoch = PlanEpoch(in.epoch());
  plan.block = BlockId(in.block());
  plan.step = in.step();
  for (const v1::KeptPrefix& k : in.keep()) {
    if (k.id() >= 0) {
      return InvalidArgument("step plan: a kept prefix has the id ", k.id(),
                             ", which is not below 0");
    }
    KeptPrefix& keep = plan.keep.emplace_back();
    keep.id = SequenceId(k.id());
    SLUICE_ASSIGN_OR_RETURN(keep.prefix, FromProto(k.prefix()));
  }
  plan.release.reserve(in.release_size());
  for (int64_t id : in.release()) plan.release.emplace_back(id);
  plan.admit.reserve(in.admit_size());
  for (const v1::SequenceAdmission& a : in.admit()) {
    if (a.prompt_tokens() < 0 || a.max_positions() <= 0) {
      return InvalidArgument("step plan: sequence ", a.sequence(),
                             " admitted with prompt_tokens ", a.prompt_tokens(),
                             " and max_positions ", a.max_positions());
    }
    SequenceAdmission& admission = plan.admit.emplace_back();
    admission.sequence = SequenceId(a.sequence());
    admission.prompt_tokens = a.prompt_tokens();
    admission.max_positions = a.max_positions();
    SLUICE_ASSIGN_OR_RETURN(admission.sampling, FromProto(a.sampling()));
    if (a.pooling() < 0 || a.pooling() > static_cast<int>(kLastPooling)) {
      return InvalidArgument("step plan: sequence ", a.sequence(),
                             " has the unknown pooling ", a.pooling());
    }
    admission.pooling = static_cast<Pooling>(a.pooling());
    if (a.has_prefix()) {
      SLUICE_ASSIGN_OR_RETURN(admission.prefix, FromProto(a.prefix()));
    }
  }
  plan.micro_batches.reserve(in.micro_batches_size());
  for (const v1::MicroBatch& b : in.micro_batches()) {
    MicroBatch& batch = plan.micro_batches.emplace_back();
    int64_t tokens = 0;
    batch.segments.reserve(b.segments_size());
    for (const v1::Segment& s : b.segments()) {
      if (s.start() < 0 || s.num_tokens() <= 0 ||
          s.start() > INT32_MAX - s.num_tokens()) {
        return InvalidArgument("step plan: sequence ", s.sequence(),
                               " has a segment with start ", s.start(),
                               " and num_tokens ", s.num_tokens());
      }
      // Scored positions, if any, are ones that the segment's rows predict.
      if (s.score_begin() != s.score_end() &&
          (s.score_begin() <= s.start() || s.score_end() <= s.score_begin() ||
           int64_t{s.score_end()} - s.start() > int64_t{s.num_tokens()} + 1)) {
        return InvalidArgument("step plan: sequence ", s.sequence(),
                               " has a segment with start ", s.start(),
                               " and num_tokens ", s.num_tokens(),
                               " that scores the positions ", s.score_begin(),
                               " to ", s.score_end());
      }
      batch.segments.push_back({SequenceId(s.sequence()), s.start(),
                                s.num_tokens(), s.sample(), s.score_begin(),
                                s.score_end(),
                                s.has_next_token() ? s.next_token() : -1});
      tokens += s.num_tokens();
    }
    if (tokens != b.tokens_size()) {
      return InvalidArgument("step plan: a micro-batch's segments have ",
                             tokens, " tokens in all, but it carries ",
                             b.tokens_size());
    }
    batch.tokens.assign(b.tokens().begin(), b.tokens().end());
  }
  return plan;
}

namespace {

void SetHead(const StepResult& result, v1::StepResult* out) {
  out->set_epoch(result.epoch.value());
  out->set_block(result.block.value());
  out->set_step(result.step);
}

// Adds the tokens [begin, end) of `scores`.
void AddScores(const TokenScores& scores, int64_t begin, int64_t end,
               v1::StepResult* out) {
  v1::TokenScores* s = out->add_scores();
  s->set_sequence(scores.sequence.value());
  s->set_begin(static_cast<int32_t>(scores.begin + begin));
  s->mutable_logprobs()->Add(scores.logprobs.begin() + begin,
                             scores.logprobs.begin() + end);
  s->set_num_top(scores.num_top);
  s->mutable_top_tokens()->Reserve((end - begin) * scores.num_top);
  s->mutable_top_logprobs()->Reserve((end - begin) * scores.num_top);
  for (int64_t i = begin * scores.num_top; i < end * scores.num_top; ++i) {
    s->add_top_tokens(scores.top[i].token);
    s->add_top_logprobs(scores.top[i].logprob);
  }
}

void AddPooled(const PooledVector& pooled, v1::StepResult* out) {
  v1::PooledVector* p = out->add_pooled();
  p->set_sequence(pooled.sequence.value());
  p->mutable_values()->Add(pooled.values.begin(), pooled.values.end());
}

void AddToken(const SampledToken& token, v1::StepResult* out) {
  v1::SampledToken* t = out->add_tokens();
  t->set_sequence(token.sequence.value());
  t->set_token(token.token);
  t->set_logprob(token.logprob);
  for (const TokenLogprob& top : token.top) {
    v1::TokenLogprob* l = t->add_top();
    l->set_token(top.token);
    l->set_logprob(top.logprob);
  }
}

}  // namespace

void ToProto(const StepResult& result, v1::StepResult* out) {
  SetHead(result, out);
  out->set_more(result.more);
  for (const SampledToken& token : result.tokens) AddToken(token, out);
  for (const TokenScores& scores : result.scores) {
    AddScores(scores, 0, static_cast<int64_t>(scores.logprobs.size()), out);
  }
  for (const PooledVector& pooled : result.pooled) AddPooled(pooled, out);
}

std::vector<v1::StepResult> ToProtoParts(const StepResult& result,
                                         int64_t max_values) {
  // A sequence, a position or token, and the lengths of their fields.
  constexpr int64_t kHeadValues = 4;
  std::vector<v1::StepResult> parts(1);
  SetHead(result, &parts.back());
  int64_t room = max_values;
  // Begins a new part if this one has no room for `values` more numbers.
  const auto make_room = [&](int64_t values) {
    if (room >= values || room == max_values) return;
    parts.back().set_more(true);
    SetHead(result, &parts.emplace_back());
    room = max_values;
  };
  for (const TokenScores& scores : result.scores) {
    const int64_t values = 1 + 2 * int64_t{scores.num_top};  // of one token
    const auto size = static_cast<int64_t>(scores.logprobs.size());
    for (int64_t begin = 0; begin < size;) {
      make_room(kHeadValues + values);
      const int64_t end = std::min(
          size, begin + std::max<int64_t>((room - kHeadValues) / values, 1));
      AddScores(scores, begin, end, &parts.back());
      room -= kHeadValues + (end - begin) * values;
      begin = end;
    }
  }
  for (const PooledVector& pooled : result.pooled) {
    const auto values =
        kHeadValues + static_cast<int64_t>(pooled.values.size());
    make_room(values);
    AddPooled(pooled, &parts.back());
    room -= values;
  }
  for (const SampledToken& token : result.tokens) {
    const int64_t values =
        kHeadValues + 2 * static_cast<int64_t>(token.top.size());
    make_room(values);
    AddToken(token, &parts.back());
    room -= values;
  }
  parts.back().set_more(result.more);
  return parts;
}

absl::StatusOr<StepResult> FromProto(const v1::StepResult& in) {
  StepResult result;
  result.epoch = PlanEpoch(in.epoch());
  result.block = BlockId(in.block());
  result.step = in.step();
  result.more = in.more();
  result.scores.reserve(in.scores_size());
  for (const v1::TokenScores& s : in.scores()) {
    const int64_t top = int64_t{s.num_top()} * s.logprobs_size();
    if (s.begin() < 0 || s.num_top() < 0 || s.num_top() > kMaxTopLogprobs ||
        s.begin() > INT32_MAX - s.logprobs_size() ||
        s.top_tokens_size() != top || s.top_logprobs_size() != top) {
      return InvalidArgument(
          "step result: sequence ", s.sequence(), " has ", s.logprobs_size(),
          " scores from position ", s.begin(), ", ", s.num_top(),
          " alternatives each, but ", s.top_tokens_size(), " tokens and ",
          s.top_logprobs_size(), " log-probabilities of these");
    }
    TokenScores& scores = result.scores.emplace_back();
    scores.sequence = SequenceId(s.sequence());
    scores.begin = s.begin();
    scores.logprobs.assign(s.logprobs().begin(), s.logprobs().end());
    scores.num_top = s.num_top();
    scores.top.reserve(top);
    for (int i = 0; i < top; ++i) {
      scores.top.push_back({s.top_tokens(i), s.top_logprobs(i)});
    }
  }
  result.pooled.reserve(in.pooled_size());
  for (const v1::PooledVector& p : in.pooled()) {
    result.pooled.push_back(
        {SequenceId(p.sequence()), {p.values().begin(), p.values().end()}});
  }
  result.tokens.reserve(in.tokens_size());
  for (const v1::SampledToken& t : in.tokens()) {
    SampledToken& token = result.tokens.emplace_back();
    token.sequence = SequenceId(t.sequence());
    token.token = t.token();
    token.logprob = t.logprob();
    token.top.reserve(t.top_size());
    for (const v1::TokenLogprob& l : t.top())
      token.top.push_back({l.token(), l.logprob()});
  }
  return result;
}

namespace {

void ToProto(const TierFractions& fractions, v1::TierFractions* out) {
  out->set_device(fractions.device);
  out->set_host(fractions.host);
  out->set_disk(fractions.disk);
}

TierFractions FromProto(const v1::TierFractions& in) {
  return {in.device(), in.host(), in.disk()};
}

constexpr std::pair<DType, v1::DType> kDTypes[] = {
    {DType::kFloat32, v1::DTYPE_FLOAT32},
    {DType::kBFloat16, v1::DTYPE_BFLOAT16},
    {DType::kFloat16, v1::DTYPE_FLOAT16}};

v1::NumberFormat ToProto(WeightFormat format) {
  if (format == WeightFormat::kInt8) return v1::NUMBER_FORMAT_INT8;
  if (format == WeightFormat::kInt4) return v1::NUMBER_FORMAT_INT4;
  return v1::NUMBER_FORMAT_FULL;
}

absl::StatusOr<WeightFormat> FromProto(v1::NumberFormat format,
                                       absl::string_view name) {
  if (format == v1::NUMBER_FORMAT_FULL) return WeightFormat::kFull;
  if (format == v1::NUMBER_FORMAT_INT8) return WeightFormat::kInt8;
  if (format == v1::NUMBER_FORMAT_INT4) return WeightFormat::kInt4;
  return InvalidArgument("policy: ", name, " ", format, " is unknown");
}

}  // namespace

void ToProto(const Policy& policy, v1::Policy* out) {
  out->set_gbs(policy.gbs);
  out->set_num_microbatches(policy.num_microbatches);
  out->set_max_step_tokens(policy.max_step_tokens);
  ToProto(policy.weights, out->mutable_weights());
  ToProto(policy.kv_cache, out->mutable_kv_cache());
  ToProto(policy.activations, out->mutable_activations());
  for (const auto& [dtype, proto] : kDTypes) {
    if (dtype == policy.dtype) out->set_dtype(proto);
  }
  out->set_compute_threads(policy.compute_threads);
  out->set_ranks(policy.ranks);
  out->set_explicit_weights(!policy.automatic_weights);
  out->set_explicit_kv_cache(!policy.automatic_kv_cache);
  out->set_explicit_activations(!policy.automatic_activations);
  out->set_compress_weights(ToProto(policy.compress_weights));
  out->set_compress_kv(ToProto(policy.compress_kv));
  out->set_attention_site(policy.attention_site == AttentionSite::kHost
                              ? v1::ATTENTION_SITE_HOST
                              : v1::ATTENTION_SITE_DEVICE);
  out->set_sparsity(policy.sparsity);
  out->set_schedule(policy.schedule == Schedule::kZigZag
                        ? v1::SCHEDULE_ZIG_ZAG
                        : v1::SCHEDULE_ROW_BY_ROW);
  out->set_no_overlap(!policy.overlap);
  out->set_no_packing(!policy.packing);
  out->set_link_dtype(policy.link_dtype == DType::kFloat32
                          ? v1::DTYPE_FLOAT32
                          : v1::DTYPE_BFLOAT16);
}

absl::StatusOr<Policy> FromProto(const v1::Policy& in) {
  Policy policy;
  if (in.gbs() <= 0 || in.num_microbatches() <= 0 ||
      in.max_step_tokens() <= 0 || in.compute_threads() < 0) {
    return InvalidArgument("policy: gbs ", in.gbs(), ", num_microbatches ",
                           in.num_microbatches(), ", max_step_tokens ",
                           in.max_step_tokens(), ", compute_threads ",
                           in.compute_threads(), ": sizes must be positive");
  }
  policy.gbs = in.gbs();
  policy.num_microbatches = in.num_microbatches();
  policy.max_step_tokens = in.max_step_tokens();
  for (const auto& [name, fractions] : {std::pair{"weights", &in.weights()},
                                        {"kv_cache", &in.kv_cache()},
                                        {"activations", &in.activations()}}) {
    const double sum =
        fractions->device() + fractions->host() + fractions->disk();
    if (!(fractions->device() >= 0 && fractions->host() >= 0 &&
          fractions->disk() >= 0 && std::abs(sum - 1) < 1e-6)) {
      return InvalidArgument("policy: the shares of ", name, " (",
                             fractions->device(), ", ", fractions->host(), ", ",
                             fractions->disk(), ") must add up to 1");
    }
  }
  policy.weights = FromProto(in.weights());
  policy.kv_cache = FromProto(in.kv_cache());
  policy.activations = FromProto(in.activations());
  const auto* const known =
      std::find_if(std::begin(kDTypes), std::end(kDTypes),
                   [&](const auto& pair) { return pair.second == in.dtype(); });
  if (known == std::end(kDTypes)) {
    return InvalidArgument("policy: dtype ", in.dtype(), " is unknown");
  }
  policy.dtype = known->first;
  policy.compute_threads = in.compute_threads();
  if (in.ranks() < 0 || in.ranks() > kMaxRanks) {
    return InvalidArgument("policy: ", in.ranks(), " ranks are not within 0..",
                           kMaxRanks);
  }
  policy.ranks = in.ranks();
  policy.automatic_weights = !in.explicit_weights();
  policy.automatic_kv_cache = !in.explicit_kv_cache();
  policy.automatic_activations = !in.explicit_activations();
  SLUICE_ASSIGN_OR_RETURN(policy.compress_weights,
                          FromProto(in.compress_weights(), "compress_weights"));
  SLUICE_ASSIGN_OR_RETURN(policy.compress_kv,
                          FromProto(in.compress_kv(), "compress_kv"));
  if (in.attention_site() != v1::ATTENTION_SITE_HOST &&
      in.attention_site() != v1::ATTENTION_SITE_DEVICE) {
    return InvalidArgument("policy: attention_site ", in.attention_site(),
                           " is unknown");
  }
  policy.attention_site = in.attention_site() == v1::ATTENTION_SITE_HOST
                              ? AttentionSite::kHost
                              : AttentionSite::kDevice;
  if (!(in.sparsity() >= 0 && in.sparsity() <= 1)) {
    return InvalidArgument("policy: sparsity ", in.sparsity(),
                           " is not a share from 0 to 1");
  }
  policy.sparsity = in.sparsity() == 0 ? 1 : in.sparsity();
  if (in.schedule() != v1::SCHEDULE_ZIG_ZAG &&
      in.schedule() != v1::SCHEDULE_ROW_BY_ROW) {
    return InvalidArgument("policy: schedule ", in.schedule(), " is unknown");
  }
  policy.schedule = in.schedule() == v1::SCHEDULE_ZIG_ZAG ? Schedule::kZigZag
                                                          : Schedule::kRowByRow;
  policy.overlap = !in.no_overlap();
  policy.packing = !in.no_packing();
  if (in.link_dtype() == v1::DTYPE_BFLOAT16) {
    policy.link_dtype = DType::kBFloat16;
  } else if (in.link_dtype() != v1::DTYPE_UNSPECIFIED &&
             in.link_dtype() != v1::DTYPE_FLOAT32) {
    return InvalidArgument("policy: link_dtype ", in.link_dtype(),
                           " is none that links have");
  }
  return policy;
}

}  // namespace sluice
