#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/functional/function_ref.h"

namespace sluice {

// What a stage has to place, in bytes.
struct StageNeeds {
  uint64_t embedding_bytes = 0;
  uint64_t embedding_rows_bytes = 0;  // what it takes with its table on disk
  uint64_t layer_bytes = 0;
  int num_layers = 0;
  std::vector<uint64_t> head_sections;  // empty without a head
  uint64_t part_bytes = 0;  // the largest part that must not be split
  uint64_t expanded_bytes = 0;
  uint64_t layer_page_bytes = 0;   // a KV page of one layer
  int64_t max_sequence_pages = 0;  // of the longest sequence
  int64_t kv_pages = 0;            // that are worth having
  bool kv_on_device = false;       // there are others on a device
  int64_t sequences_per_batch = 0;
  uint64_t activation_bytes = 0;  // of a micro-batch
  // Of activations that are partly on disk; else they are charged already.
  uint64_t activation_memory_bytes = 0;
  uint64_t activation_staging_bytes = 0;
  uint64_t activation_disk_bytes = 0;
  // Beside a device: what of each layer and section is there, and what
  // loading takes in host memory for a time.
  uint64_t device_layer_bytes = 0;
  std::vector<uint64_t> device_head_sections;  // or empty
  uint64_t loading_bytes = 0;

  // Layers and head: what the policy's shares of weights are shares of.
  uint64_t streamable_bytes() const {
    return std::accumulate(head_sections.begin(), head_sections.end(),
                           layer_bytes * num_layers);
  }
  uint64_t weight_bytes() const { return embedding_bytes + streamable_bytes(); }
  // The largest of a layer and the sections of the head.
  uint64_t unit_bytes() const {
    uint64_t most = layer_bytes;
    for (const uint64_t section : head_sections) {
      most = std::max(most, section);
    }
    return most;
  }
  int num_units() const {
    return num_layers + static_cast<int>(head_sections.size());
  }
  // Most that is streamed of a unit if the share `away` of all lies elsewhere
  // and units give up equal bytes.
  uint64_t streamed_bytes(double away) const;
  // What so many slots for streamed parts take then, each in an allocation that
  // is rounded up to `rounding`: with the head of the part in which the bytes
  // that stay end.
  uint64_t slot_bytes(double away, int slots, uint64_t rounding = 1) const;
  // A slot more than two lets the wire go on while the sweep waits for it. Of a
  // tenth of the room it did not pay for the weights whose place it took: the
  // 1.1B shape in half its bytes ran as fast with either.
  int weight_slots(bool overlap, uint64_t room) const {
    return overlap && unit_bytes() <= room / 18 ? 3 : 2;
  }
  // Pages that sequences, each of which lies in one tier, cannot use: so many
  // fewer than the longest needs are left in each of `tiers` but one.
  int64_t stranded_pages(int tiers) const {
    return std::max(0, tiers - 1) * (max_sequence_pages - 1);
  }
  // KV pages of a layer that are moved together: enough for requests of several
  // MiB, no fewer than a sequence has, no more than a micro-batch has.
  int64_t kv_group_pages() const;
};

// The largest share from 0 to 1, to a millionth or so, for which `fits` holds,
// if it holds for all that are smaller; 0 if it holds for none.
double LargestShare(absl::FunctionRef<bool(double share)> fits);

}  // namespace sluice
