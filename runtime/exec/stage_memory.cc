#include "runtime/exec/stage_memory.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "runtime/exec/kv/kv_stager.h"
#include "runtime/exec/tier_table.h"
#include "runtime/exec/weight_placement.h"
#include "runtime/exec/weights/image_file.h"

namespace sluice {
namespace {

// What an arena and the like take besides their contents.
constexpr uint64_t kSlack = 4096;
// Of layers and head, with the share `disk` of them on disk.
uint64_t ResidentBytes(const StageNeeds& needs, double disk) {
  return static_cast<uint64_t>((1 - disk) *
                               static_cast<double>(needs.streamable_bytes()));
}

// What stays of all units together is rounded to a granule.
uint64_t WeightBytes(const StageNeeds& needs, double disk, int slots) {
  return ResidentBytes(needs, disk) + needs.slot_bytes(disk, slots) +
         (disk > 0 ? PlacementGranule(needs.unit_bytes()) : 0);
}

uint64_t EmbeddingBytes(const StageNeeds& needs, const StageMemory& plan) {
  return plan.embedding_on_disk ? needs.embedding_rows_bytes
                                : needs.embedding_bytes;
}

// Decides all but plan->embedding_on_disk, which is given.
void Place(const StageNeeds& needs, const Policy& policy, bool may_use_disk,
           uint64_t free, StageMemory* plan) {
  const uint64_t streamable = needs.streamable_bytes();
  const uint64_t page = needs.layer_page_bytes * needs.num_layers;
  const int64_t all_pages = needs.kv_pages;
  const uint64_t fixed = EmbeddingBytes(needs, *plan) + needs.expanded_bytes +
                         needs.loading_bytes + needs.activation_memory_bytes +
                         needs.activation_staging_bytes + kSlack;
  const uint64_t room = free > fixed ? free - fixed : 0;
  plan->weight_slots = needs.weight_slots(policy.overlap, room);
  const int slots = plan->weight_slots;

  // KV cache.
  double kv_memory = 1;
  uint64_t kv_room = room;
  if (!policy.automatic_kv_cache) {
    kv_memory = policy.kv_cache.device + policy.kv_cache.host;
  }
  if (policy.automatic_weights) {
    // The weights that must stay leave so much; with a disk, they yield half,
    // but for their slots.
    const uint64_t for_weights =
        may_use_disk ? std::min(streamable,
                                std::max(room / 2, needs.unit_bytes() * slots))
                     : streamable;
    kv_room = room > for_weights ? room - for_weights : 0;
  } else {
    const uint64_t for_weights = WeightBytes(needs, policy.weights.disk, slots);
    kv_room = room > for_weights ? room - for_weights : 0;
  }
  const auto memory_pages = static_cast<int64_t>(
      std::ceil(kv_memory * static_cast<double>(all_pages)));
  if (policy.automatic_kv_cache) {
    plan->host_pages = std::min<int64_t>(
        memory_pages, std::max<int64_t>(static_cast<int64_t>(kv_room / page),
                                        needs.max_sequence_pages));
  } else {
    plan->host_pages = memory_pages;
    plan->disk_pages = all_pages - memory_pages;
    // A tier that has pages has them for a sequence at least.
    if (plan->disk_pages > 0) {
      plan->disk_pages = std::max(plan->disk_pages, needs.max_sequence_pages);
    }
    if (plan->host_pages > 0) {
      plan->host_pages = std::max(plan->host_pages, needs.max_sequence_pages);
    }
    // The furthest makes up for what cannot be used, so that all find a place.
    const int tiers = (needs.kv_on_device ? 1 : 0) +
                      (plan->host_pages > 0 ? 1 : 0) +
                      (plan->disk_pages > 0 ? 1 : 0);
    int64_t& furthest =
        plan->disk_pages > 0 ? plan->disk_pages : plan->host_pages;
    plan->stranded_pages = furthest > 0 ? needs.stranded_pages(tiers) : 0;
    furthest += plan->stranded_pages;
  }
  if (plan->disk_pages > 0) {
    plan->kv_staging_bytes =
        KvStager::StagingBytes(needs.layer_page_bytes, needs.kv_group_pages());
  }
  const uint64_t kv_bytes =
      static_cast<uint64_t>(plan->host_pages) * page + plan->kv_staging_bytes;

  // Weights.
  const uint64_t for_weights = room > kv_bytes ? room - kv_bytes : 0;
  if (policy.automatic_weights) {
    const double share =
        streamable <= for_weights || !may_use_disk
            ? 0
            : 1 - LargestShare([&](double in_memory) {
                return WeightBytes(needs, 1 - in_memory, slots) <= for_weights;
              });
    plan->weights = {0, 1 - share, share};
  } else {
    plan->weights = {0, policy.weights.device + policy.weights.host,
                     policy.weights.disk};
  }
  if (plan->weights.disk == 0) plan->weight_slots = 0;
}

}  // namespace

absl::StatusOr<StageMemory> PlanStageMemory(const StageNeeds& needs,
                                            const Policy& policy,
                                            bool may_use_disk,
                                            MemoryBudget* memory,
                                            MemoryBudget* disk) {
  StageMemory plan;
  Place(needs, policy, may_use_disk, memory->free_bytes(), &plan);
  if (plan.weights.disk > 0 &&
      needs.embedding_rows_bytes < needs.embedding_bytes) {
    plan.embedding_on_disk = true;
    Place(needs, policy, may_use_disk, memory->free_bytes(), &plan);
  }
  const uint64_t page = needs.layer_page_bytes * needs.num_layers;
  std::vector<TierWant> wants = {
      {"embedding", EmbeddingBytes(needs, plan)},
      {"expanded layer", needs.expanded_bytes},
      {"a layer on its way to the device", needs.loading_bytes},
      {"activations", needs.activation_memory_bytes},
      {"activation staging", needs.activation_staging_bytes},
      {"weights in memory", ResidentBytes(needs, plan.weights.disk)},
      {"weight slots", needs.slot_bytes(plan.weights.disk, plan.weight_slots)},
      {"kv cache", static_cast<uint64_t>(plan.host_pages) * page},
      {"kv staging", plan.kv_staging_bytes}};
  std::string advice = may_use_disk
                           ? "give it more with --host-memory, or put more on "
                             "disk with --policy"
                           : "give it more with --host-memory, a shorter "
                             "--max-model-len, or a --disk-dir";
  if (plan.host_pages == needs.max_sequence_pages) {
    absl::StrAppend(&advice,
                    " (the KV cache is that of one sequence of the "
                    "greatest length)");
  }
  SLUICE_RETURN_IF_ERROR(CheckFits(*memory, wants, advice));

  if (plan.uses_disk() || needs.activation_disk_bytes > 0) {
    std::vector<TierWant> on_disk = {
        {"kv cache", static_cast<uint64_t>(plan.disk_pages) * page},
        {"activations", needs.activation_disk_bytes}};
    if (plan.needs_images()) {
      uint64_t images =
          ImageFile::FileBytes(needs.layer_bytes + needs.device_layer_bytes) *
          needs.num_layers;
      for (size_t s = 0; s < needs.head_sections.size(); ++s) {
        uint64_t section = needs.head_sections[s];
        if (!needs.device_head_sections.empty()) {
          section += needs.device_head_sections[s];
        }
        images += ImageFile::FileBytes(section);
      }
      if (plan.embedding_on_disk) {
        images += ImageFile::FileBytes(needs.embedding_bytes);
      }
      on_disk.push_back({"weight images", images});
    }
    SLUICE_RETURN_IF_ERROR(
        CheckFits(*disk, on_disk, "give it more with --disk-space"));
  }
  return plan;
}

}  // namespace sluice
