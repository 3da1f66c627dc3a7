#include "runtime/model/checkpoint/gguf/gguf_names.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {
namespace {

using Role = TensorRole;

// How an architecture's tensors differ from those of its family's checkpoints.
struct Differences {
  absl::string_view architecture;
  bool rotated_neighbours = false;  // of Q and K, which are halves elsewhere
  bool one_qkv = false;             // Q, K and V are one tensor
  bool whole_norms = false;         // the 1 of Gemma's norms is in the weights
  bool norm2_of_attention = false;  // the norm before the MLP has another name
};
constexpr Differences kDifferences[] = {
    {.architecture = "bloom", .one_qkv = true},
    {.architecture = "falcon", .one_qkv = true},
    {.architecture = "gemma", .whole_norms = true},
    {.architecture = "gemma2", .whole_norms = true},
    {.architecture = "gemma3", .whole_norms = true},
    {.architecture = "glm4moe", .norm2_of_attention = true},
    {.architecture = "gpt-oss", .norm2_of_attention = true},
    {.architecture = "gpt2", .one_qkv = true},
    {.architecture = "gptneox", .one_qkv = true},
    {.architecture = "granite", .rotated_neighbours = true},
    {.architecture = "granitemoe", .rotated_neighbours = true},
    {.architecture = "llama", .rotated_neighbours = true},
    {.architecture = "phi3", .one_qkv = true},
    {.architecture = "smollm3", .rotated_neighbours = true},
};

Differences DifferencesOf(absl::string_view architecture) {
  for (const Differences& differences : kDifferences) {
    if (differences.architecture == architecture) return differences;
  }
  return {};
}

// The name of a layer's tensor, behind "blk.N.".
absl::string_view OfLayer(Role role) {
  switch (role) {
    case Role::kNorm1Weight:
      return "attn_norm.weight";
    case Role::kNorm1Bias:
      return "attn_norm.bias";
    case Role::kQWeight:
      return "attn_q.weight";
    case Role::kQBias:
      return "attn_q.bias";
    case Role::kKWeight:
      return "attn_k.weight";
    case Role::kKBias:
      return "attn_k.bias";
    case Role::kVWeight:
      return "attn_v.weight";
    case Role::kVBias:
      return "attn_v.bias";
    case Role::kQNormWeight:
      return "attn_q_norm.weight";
    case Role::kKNormWeight:
      return "attn_k_norm.weight";
    case Role::kOutWeight:
      return "attn_output.weight";
    case Role::kOutBias:
      return "attn_output.bias";
    case Role::kOutNormWeight:
      return "post_attention_norm.weight";
    case Role::kNorm2Weight:
      return "ffn_norm.weight";
    case Role::kNorm2Bias:
      return "ffn_norm.bias";
    case Role::kGateWeight:
      return "ffn_gate.weight";
    case Role::kGateBias:
      return "ffn_gate.bias";
    case Role::kUpWeight:
      return "ffn_up.weight";
    case Role::kUpBias:
      return "ffn_up.bias";
    case Role::kDownWeight:
      return "ffn_down.weight";
    case Role::kDownBias:
      return "ffn_down.bias";
    case Role::kDownNormWeight:
      return "post_ffw_norm.weight";
    case Role::kSinks:
      return "attn_sinks.weight";
    case Role::kRouterWeight:
      return "ffn_gate_inp.weight";
    case Role::kRouterBias:
      return "ffn_gate_inp.bias";
    case Role::kChoiceBias:
      return "exp_probs_b.bias";
    case Role::kExpertGateWeight:
      return "ffn_gate_exps.weight";
    case Role::kExpertGateBias:
      return "ffn_gate_exps.bias";
    case Role::kExpertUpWeight:
      return "ffn_up_exps.weight";
    case Role::kExpertUpBias:
      return "ffn_up_exps.bias";
    case Role::kExpertDownWeight:
      return "ffn_down_exps.weight";
    case Role::kExpertDownBias:
      return "ffn_down_exps.bias";
    case Role::kSharedGateWeight:
      return "ffn_gate_shexp.weight";
    case Role::kSharedUpWeight:
      return "ffn_up_shexp.weight";
    case Role::kSharedDownWeight:
      return "ffn_down_shexp.weight";
    case Role::kSharedScoreWeight:
      return "ffn_gate_inp_shexp.weight";
    default:
      return "";
  }
}

// The name of a tensor that no layer has.
absl::string_view OfModel(Role role) {
  switch (role) {
    case Role::kEmbedding:
      return "token_embd.weight";
    case Role::kPositionEmbedding:
      return "position_embd.weight";
    case Role::kEmbedNormWeight:
      return "token_embd_norm.weight";
    case Role::kEmbedNormBias:
      return "token_embd_norm.bias";
    case Role::kFinalNormWeight:
      return "output_norm.weight";
    case Role::kFinalNormBias:
      return "output_norm.bias";
    case Role::kHead:
      return "output.weight";
    case Role::kHeadBias:
      return "output.bias";
    default:
      return "(none)";
  }
}

bool IsQkv(Role role) {
  return role == Role::kQWeight || role == Role::kQBias ||
         role == Role::kKWeight || role == Role::kKBias ||
         role == Role::kVWeight || role == Role::kVBias;
}

// Sets where Q, K or V lie in the tensor that has all three.
void SetOfThree(TensorRef* ref) {
  const Role role = ref->role;
  const bool bias =
      role == Role::kQBias || role == Role::kKBias || role == Role::kVBias;
  ref->name = absl::StrCat("blk.", ref->layer,
                           bias ? ".attn_qkv.bias" : ".attn_qkv.weight");
  ref->block_rows = ref->block_stride = 0;
  const int64_t rows = ref->shape[0];
  if (role == Role::kQWeight || role == Role::kQBias) {
    ref->first_row = 0;
  } else if (role == Role::kKWeight || role == Role::kKBias) {
    ref->first_row = ref->tensor_rows - 2 * rows;
  } else {
    ref->first_row = ref->tensor_rows - rows;
  }
}

bool IsOfExpert(Role role) {
  switch (role) {
    case Role::kExpertGateWeight:
    case Role::kExpertGateBias:
    case Role::kExpertUpWeight:
    case Role::kExpertUpBias:
    case Role::kExpertDownWeight:
    case Role::kExpertDownBias:
      return true;
    default:
      return false;
  }
}

bool IsOfShared(Role role) {
  return role == Role::kSharedGateWeight || role == Role::kSharedUpWeight ||
         role == Role::kSharedDownWeight;
}

// A family's tensors that hold gate and up have their rows in GGUF's, too.
bool GateIsInUp(const TensorRef& ref) {
  return (ref.role == Role::kGateWeight || ref.role == Role::kUpWeight) &&
         ref.tensor_rows > 0;
}

}  // namespace

TensorRef GgufTensorRef(const GgufNaming& naming, const TensorRef& ref) {
  const Differences differs = DifferencesOf(naming.architecture);
  TensorRef own = ref;
  own.transposed = false;
  if (own.tensor_each_head) {
    // Heads' own norms lie in one tensor, [heads, head_rows].
    own.tensor_each_head = false;
    own.by_head = true;
  }
  const absl::string_view of_layer = OfLayer(ref.role);
  if (of_layer.empty()) {
    own.name = std::string(OfModel(ref.role));
  } else if (differs.one_qkv && IsQkv(ref.role)) {
    SetOfThree(&own);
  } else {
    own.name = absl::StrCat("blk.", ref.layer, ".",
                            GateIsInUp(ref) ? "ffn_up.weight" : of_layer);
  }
  const bool rotates = ref.role == Role::kQWeight || ref.role == Role::kQBias ||
                       ref.role == Role::kKWeight || ref.role == Role::kKBias;
  if (differs.rotated_neighbours && rotates) {
    own.interleaved = static_cast<int32_t>(naming.head_dim);
    own.head_rows = static_cast<int32_t>(naming.head_dim);
  }
  if (differs.whole_norms) own.add = 0;
  if (differs.norm2_of_attention && ref.role == Role::kNorm2Weight) {
    own.name = absl::StrCat("blk.", ref.layer, ".post_attention_norm.weight");
  }
  if (IsOfExpert(ref.role)) {
    own.stack = naming.experts;
    own.in_stack = ref.expert;
  }
  if (IsOfExpert(ref.role) || IsOfShared(ref.role)) {
    // Gate, up and down are tensors each, whatever the family has.
    own.first_row = own.tensor_rows = own.block_rows = own.block_stride = 0;
  }
  // Of Falcon's two norms, the one before attention is the second there.
  const char* const side = IsBias(ref.role) ? "bias" : "weight";
  if (absl::StrContains(ref.name, ".ln_attn.")) {
    own.name = absl::StrCat("blk.", ref.layer, ".attn_norm_2.", side);
  } else if (absl::StrContains(ref.name, ".ln_mlp.")) {
    own.name = absl::StrCat("blk.", ref.layer, ".attn_norm.", side);
  }
  return own;
}

}  // namespace sluice
