#include "runtime/kernels/cuda/attention/attention.h"

#include <algorithm>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/kernels/cuda/device/launch.h"
#include "runtime/placement/gpu_limits.h"

namespace sluice {
namespace {

// The bytes that the driver takes of a block's share of shared memory.
constexpr size_t kReservedSharedBytes = 1 << 10;
constexpr int32_t kMmaRows = 16;
constexpr int64_t kMaxGridY = 65535;
constexpr float kLog2E = 1.44269504088896340736f;

MmaType TypeOf(const AttentionDevice& device) {
  return device.capability >= 80 ? MmaType::kBFloat16 : MmaType::kHalf;
}

// Returns the bytes of a decode block's shared memory.
size_t DecodeShared(const AttentionShape& shape, bool scores_only,
                    int32_t chunk_heads, int32_t warps, int32_t stages) {
  const KvBlock block = MakeKvBlock(shape.kv);
  const size_t head_dim = block.head_dim;
  if (shape.TensorCores()) {
    const size_t queries =
        2 * kMmaRows * (KernelHeadDim(shape.kv.format, block.head_dim) + 8) * 2;
    const size_t pages = static_cast<size_t>(warps) * stages *
                         (scores_only ? block.v : block.bytes);
    const size_t results =
        scores_only ? 0 : warps * kMmaRows * (head_dim + 2) * sizeof(float);
    return queries + std::max(pages, results);
  }
  const size_t rows = chunk_heads == 1 ? 1 : kFmaRows;
  const size_t queries = rows * ((head_dim + 3) / 4 * 4);
  if (scores_only) return queries * sizeof(float);
  return (queries + warps * rows * (kPageTokens + head_dim + 2)) *
         sizeof(float);
}

absl::Status CheckDevice(const AttentionDevice& device) {
  if (device.processors <= 0 || device.capability < 75) {
    return FailedPrecondition(
        "attention needs a device of compute capability 7.5; "
        "this one has ",
        device.capability / 10, ".", device.capability % 10);
  }
  return absl::OkStatus();
}

absl::Status TooLittleShared(const AttentionShape& shape, size_t shared_bytes) {
  return Unimplemented(
      "attention with heads of ", shape.kv.head_dim, " elements in ",
      std::string(KvFormatName(shape.kv.format)), " needs more than the ",
      shared_bytes, " bytes of shared memory that a block of this device has");
}

// Chooses warps and stages, and with them the shared memory.
absl::Status ChooseDecodeBlock(const AttentionShape& shape,
                               const AttentionDevice& device, bool scores_only,
                               DecodePlan* plan) {
  if (!shape.TensorCores()) {
    plan->warps = kDecodeThreads / 32;
    plan->stages = 0;
    plan->shared_bytes = DecodeShared(shape, scores_only, plan->chunk_heads,
                                      plan->warps, plan->stages);
    if (plan->shared_bytes <= device.shared_bytes) return absl::OkStatus();
    return TooLittleShared(shape, device.shared_bytes);
  }
  struct Choice {
    int32_t warps, stages;
    int32_t blocks;  // that a multiprocessor should have room for
  };
  // The first that fits is chosen. With two blocks, one loads while the other
  // begins or ends; devices that copy in the background want several stages.
  constexpr Choice kChoices[] = {{4, 4, 2}, {4, 3, 2}, {4, 2, 2}, {3, 2, 2},
                                 {2, 2, 2}, {4, 2, 1}, {2, 2, 1}, {4, 1, 1},
                                 {2, 1, 1}, {1, 1, 1}};
  for (const Choice& choice : kChoices) {
    if (device.capability < 80 && choice.stages > 1) continue;
    const size_t bytes = DecodeShared(shape, scores_only, plan->chunk_heads,
                                      choice.warps, choice.stages);
    if (bytes > device.shared_bytes) continue;
    if ((bytes + kReservedSharedBytes) * choice.blocks >
        device.shared_bytes + kReservedSharedBytes) {
      continue;
    }
    plan->warps = choice.warps;
    plan->stages = choice.stages;
    plan->shared_bytes = bytes;
    return absl::OkStatus();
  }
  return TooLittleShared(shape, device.shared_bytes);
}

absl::StatusOr<DecodePlan> Plan(const AttentionShape& shape,
                                const AttentionDevice& device,
                                int32_t sequences, int32_t max_context,
                                bool scores_only, size_t workspace_limit) {
  SLUICE_RETURN_IF_ERROR(shape.Validate());
  SLUICE_RETURN_IF_ERROR(CheckDevice(device));
  if (sequences < 0 || max_context <= 0) {
    return InvalidArgument("attention of ", sequences, " sequences over up to ",
                           max_context, " positions");
  }
  DecodePlan plan;
  plan.sequences = sequences;
  const int32_t rows = shape.TensorCores() ? kMmaRows : kFmaRows;
  plan.chunk_heads = std::min(shape.group(), rows);
  plan.chunks = (shape.group() + plan.chunk_heads - 1) / plan.chunk_heads;
  SLUICE_RETURN_IF_ERROR(ChooseDecodeBlock(shape, device, scores_only, &plan));
  // A window may begin within a page.
  const int32_t pages = PagesOf(max_context) + 1;
  const int64_t blocks = std::max<int64_t>(
      1, int64_t{sequences} * shape.kv.num_kv_heads * plan.chunks);
  const int64_t wanted =
      int64_t{GpuLimits::kBlocksPerProcessor} * device.processors;
  const int64_t splits = (wanted + blocks - 1) / blocks;
  plan.pages_per_split = static_cast<int32_t>(std::clamp<int64_t>(
      (pages + splits - 1) / splits, GpuLimits::kMinSplitPages * plan.warps,
      GpuLimits::kMaxSplitPages));
  plan.splits = (pages + plan.pages_per_split - 1) / plan.pages_per_split;
  if (plan.splits == 1 || scores_only || sequences == 0) return plan;
  const size_t split_bytes =
      sizeof(float) * sequences * shape.num_heads * (shape.kv.head_dim + 2);
  if (plan.splits * split_bytes > workspace_limit) {
    const auto max = static_cast<int32_t>(
        std::max<size_t>(1, workspace_limit / split_bytes));
    plan.pages_per_split = (pages + max - 1) / max;
    plan.splits = (pages + plan.pages_per_split - 1) / plan.pages_per_split;
  }
  if (plan.splits > 1) plan.workspace_bytes = plan.splits * split_bytes;
  return plan;
}

AttentionArgs CommonArgs(const AttentionShape& shape,
                         const AttentionData& data) {
  AttentionArgs args;
  args.block = MakeKvBlock(shape.kv);
  args.kv = data.kv;
  args.segments = data.segments;
  args.pages = data.pages;
  args.q = data.q;
  args.q_stride = data.q_stride;
  args.out = data.out;
  args.out_type = shape.dtype;
  args.num_heads = shape.num_heads;
  args.group = shape.group();
  args.window = data.window;
  args.scale = shape.scale * data.scale * kLog2E;
  args.cap = shape.cap * kLog2E;
  args.alibi_heads = shape.alibi_heads;
  args.rounded_alibi = shape.rounded_alibi;
  args.first_head = shape.first_head;
  return args;
}

absl::Status CheckData(const AttentionShape& shape, const AttentionData& data) {
  if (data.q == nullptr || data.out == nullptr || data.kv == nullptr ||
      data.segments == nullptr || data.pages == nullptr) {
    return absl::InvalidArgumentError("attention without its data");
  }
  if (shape.TensorCores() &&
      (reinterpret_cast<uintptr_t>(data.q) % 8 != 0 || data.q_stride % 2 != 0 ||
       reinterpret_cast<uintptr_t>(data.out) % 8 != 0)) {
    return absl::InvalidArgumentError(
        "attention of queries that do not lie in pairs of floats, or with a "
        "result that is not at 8 bytes");
  }
  if (data.window < 0) {
    return InvalidArgument("a window of ", data.window, " positions");
  }
  return absl::OkStatus();
}

absl::Status CheckWorkspace(const void* workspace, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16) {
    return InvalidArgument("attention needs ", bytes,
                           " bytes of work space, at 16 bytes");
  }
  return absl::OkStatus();
}

DecodeArgs MakeDecodeArgs(const AttentionShape& shape, const DecodePlan& plan,
                          const AttentionData& data) {
  DecodeArgs args;
  args.common = CommonArgs(shape, data);
  args.splits = plan.splits;
  args.pages_per_split = plan.pages_per_split;
  args.chunk_heads = plan.chunk_heads;
  args.chunks = plan.chunks;
  args.stages = plan.stages;
  return args;
}

// Returns null if no kernel knows the KV format.
DecodeKernel ChooseDecode(const AttentionShape& shape,
                          const AttentionDevice& device, const DecodePlan& plan,
                          bool scores_only) {
  const int head_dim = shape.kv.head_dim;
  if (!shape.TensorCores()) {
    return DecodeFloat32(shape.kv.format, head_dim, plan.chunk_heads,
                         scores_only);
  }
  switch (shape.kv.format) {
    case KvFormat::kFloat16:
      return DecodeFp16(head_dim, scores_only);
    case KvFormat::kInt8:
      return DecodeInt8(head_dim, scores_only);
    case KvFormat::kInt4:
      return DecodeInt4(head_dim, scores_only);
    default:
      return DecodeBf16(TypeOf(device), head_dim, scores_only);
  }
}

PrefillKernel ChoosePrefill(const AttentionShape& shape,
                            const AttentionDevice& device) {
  const int head_dim = shape.kv.head_dim;
  if (!shape.TensorCores()) return PrefillFloat32(shape.kv.format, head_dim);
  switch (shape.kv.format) {
    case KvFormat::kFloat16:
      return PrefillFp16(head_dim);
    case KvFormat::kInt8:
      return PrefillInt8(head_dim);
    case KvFormat::kInt4:
      return PrefillInt4(head_dim);
    default:
      return PrefillBf16(TypeOf(device), head_dim);
  }
}

absl::Status UnknownFormat() {
  return absl::InternalError("a KV format that no attention kernel knows");
}

absl::Status LaunchPart(const AttentionShape& shape,
                        const AttentionDevice& device, const DecodePlan& plan,
                        const DecodeArgs& args, int32_t sequences,
                        bool scores_only, cudaStream_t stream) {
  const DecodeKernel kernel = ChooseDecode(shape, device, plan, scores_only);
  if (kernel == nullptr) return UnknownFormat();
  return Launch(kernel,
                dim3(static_cast<unsigned>(int64_t{sequences} * plan.splits),
                     shape.kv.num_kv_heads * plan.chunks),
                dim3(plan.warps * 32), plan.shared_bytes, stream, args);
}

// Returns the bytes of a sequence's scores and of the positions that are kept.
size_t SparseBytes(const AttentionShape& shape, int64_t stride) {
  return shape.num_heads * stride * (sizeof(float) + sizeof(int32_t));
}

int64_t ScoreStride(int32_t max_context) {
  return (int64_t{max_context} + 3) / 4 * 4;
}

}  // namespace

absl::StatusOr<AttentionDevice> CurrentAttentionDevice() {
  AttentionDevice device;
  int id = 0, major = 0, minor = 0, shared_bytes = 0;
  cudaError_t error = cudaGetDevice(&id);
  const auto get = [&](int* value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(value, attribute, id);
    }
  };
  get(&device.processors, cudaDevAttrMultiProcessorCount);
  get(&major, cudaDevAttrComputeCapabilityMajor);
  get(&minor, cudaDevAttrComputeCapabilityMinor);
  get(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  SLUICE_RETURN_IF_ERROR(CudaStatus(error, "asking what the device is"));
  device.capability = 10 * major + minor;
  device.shared_bytes = shared_bytes;
  return device;
}

absl::Status AttentionShape::Validate() const {
  if (kv.num_kv_heads <= 0 || kv.head_dim <= 0 || num_heads <= 0 ||
      num_heads % kv.num_kv_heads != 0 || kv.page_alignment % 64 != 0) {
    return InvalidArgument("attention of ", num_heads, " heads of ",
                           kv.head_dim, " elements with ", kv.num_kv_heads,
                           " KV heads, pages at ", kv.page_alignment, " bytes");
  }
  if (kv.head_dim > kMaxHeadDim || num_heads > kMaxGridY) {
    return Unimplemented("attention on the device takes up to ", kMaxGridY,
                         " heads of up to ", kMaxHeadDim, " elements, not ",
                         num_heads, " of ", kv.head_dim);
  }
  return absl::OkStatus();
}

bool AttentionShape::TensorCores() const {
  return dtype != DType::kFloat32 && kv.format != KvFormat::kFloat32 &&
         kv.head_dim % 8 == 0;
}

absl::StatusOr<DecodePlan> PlanDecode(const AttentionShape& shape,
                                      const AttentionDevice& device,
                                      int32_t sequences, int32_t max_context,
                                      size_t workspace_limit) {
  return Plan(shape, device, sequences, max_context, false, workspace_limit);
}

absl::Status LaunchDecode(const AttentionShape& shape,
                          const AttentionDevice& device, const DecodePlan& plan,
                          const AttentionData& data, void* workspace,
                          cudaStream_t stream) {
  if (plan.sequences == 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(CheckData(shape, data));
  SLUICE_RETURN_IF_ERROR(CheckWorkspace(workspace, plan.workspace_bytes));
  DecodeArgs args = MakeDecodeArgs(shape, plan, data);
  args.partials = static_cast<float*>(workspace);
  SLUICE_RETURN_IF_ERROR(
      LaunchPart(shape, device, plan, args, plan.sequences, false, stream));
  if (plan.splits == 1) return absl::OkStatus();
  return Launch(CombineSplits(), dim3(plan.sequences, shape.num_heads),
                dim3(kCombineThreads), 0, stream, args);
}

absl::StatusOr<SparsePlan> PlanSparse(const AttentionShape& shape,
                                      const AttentionDevice& device,
                                      int32_t sequences, int32_t max_context,
                                      float sparsity, size_t workspace_limit) {
  if (!(sparsity > 0 && sparsity < 1)) {
    return InvalidArgument("sparse attention that keeps a share of ", sparsity);
  }
  SparsePlan plan;
  SLUICE_ASSIGN_OR_RETURN(
      plan.scores,
      Plan(shape, device, sequences, max_context, true, workspace_limit));
  plan.sequences = sequences;
  plan.max_context = max_context;
  plan.sparsity = sparsity;
  const size_t each = SparseBytes(shape, ScoreStride(max_context));
  if (each > workspace_limit) {
    return ResourceExhausted(
        "sparse attention over ", max_context, " positions needs ", each,
        " bytes of work space for each sequence, and there are ",
        workspace_limit);
  }
  plan.sequences_at_once =
      static_cast<int32_t>(std::min<size_t>(sequences, workspace_limit / each));
  plan.workspace_bytes = plan.sequences_at_once * each;
  return plan;
}

absl::Status LaunchSparse(const AttentionShape& shape,
                          const AttentionDevice& device, const SparsePlan& plan,
                          const AttentionData& data, void* workspace,
                          cudaStream_t stream) {
  if (plan.sequences == 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(CheckData(shape, data));
  SLUICE_RETURN_IF_ERROR(CheckWorkspace(workspace, plan.workspace_bytes));
  DecodeArgs args = MakeDecodeArgs(shape, plan.scores, data);
  args.score_stride = ScoreStride(plan.max_context);
  args.scores = static_cast<float*>(workspace);
  const KeptKernel attend = AttendKept(shape.kv.format);
  if (attend == nullptr) return UnknownFormat();
  auto* kept = reinterpret_cast<int*>(args.scores + plan.sequences_at_once *
                                                        shape.num_heads *
                                                        args.score_stride);
  for (int32_t first = 0; first < plan.sequences;
       first += plan.sequences_at_once) {
    const int32_t count =
        std::min(plan.sequences_at_once, plan.sequences - first);
    args.common.segments = data.segments + first;
    SLUICE_RETURN_IF_ERROR(
        LaunchPart(shape, device, plan.scores, args, count, true, stream));
    SLUICE_RETURN_IF_ERROR(Launch(
        attend, dim3(count, shape.num_heads), dim3(kKeptThreads),
        KeptSharedBytes(shape.kv.head_dim), stream,
        KeptArgs{.decode = args, .sparsity = plan.sparsity, .kept = kept}));
  }
  return absl::OkStatus();
}

absl::StatusOr<PrefillPlan> PlanPrefill(const AttentionShape& shape,
                                        const AttentionDevice& device) {
  SLUICE_RETURN_IF_ERROR(shape.Validate());
  SLUICE_RETURN_IF_ERROR(CheckDevice(device));
  PrefillPlan plan;
  const size_t head_dim = shape.kv.head_dim;
  if (!shape.TensorCores()) {
    plan.warps = kPrefillThreads / 32;
    plan.tile_rows = plan.warps * kFmaRows;
    plan.shared_bytes =
        sizeof(float) * plan.tile_rows * ((head_dim + 3) / 4 * 4 + kPageTokens);
    if (plan.shared_bytes <= device.shared_bytes) return plan;
    return TooLittleShared(shape, device.shared_bytes);
  }
  const int32_t width = KernelHeadDim(shape.kv.format, shape.kv.head_dim);
  const int32_t warp_rows = width <= kSmallHeadDim ? 2 * kMmaRows : kMmaRows;
  for (const int32_t warps : {4, 2, 1}) {
    for (const int32_t stages : {2, 1}) {
      if (device.capability < 80 && stages > 1) continue;
      plan.warps = warps;
      plan.stages = stages;
      plan.tile_rows = warps * warp_rows;
      plan.shared_bytes = size_t{2} * plan.tile_rows * (width + 8) +
                          stages * shape.kv.head_bytes();
      if (plan.shared_bytes <= device.shared_bytes) return plan;
    }
  }
  return TooLittleShared(shape, device.shared_bytes);
}

absl::Status LaunchPrefill(const AttentionShape& shape,
                           const AttentionDevice& device,
                           const PrefillPlan& plan, const AttentionData& data,
                           int32_t segments, const int32_t* tile_begin,
                           int32_t tiles, cudaStream_t stream) {
  if (segments == 0 || tiles == 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(CheckData(shape, data));
  if (tile_begin == nullptr) {
    return absl::InvalidArgumentError("prefill attention without its tiles");
  }
  PrefillArgs args;
  args.common = CommonArgs(shape, data);
  args.tile_begin = tile_begin;
  args.segments = segments;
  args.tile_rows = plan.tile_rows;
  args.stages = plan.stages;
  const PrefillKernel kernel = ChoosePrefill(shape, device);
  if (kernel == nullptr) return UnknownFormat();
  return Launch(kernel, dim3(tiles, shape.kv.num_kv_heads),
                dim3(plan.warps * 32), plan.shared_bytes, stream, args);
}

}  // namespace sluice
