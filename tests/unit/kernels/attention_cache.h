#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/kernels/cpu/attention.h"
#include "runtime/kv/kv_layout.h"

namespace sluice {

// K and V of one position, read from a head's block as KvLayout and StoreKv
// document it, not as the kernels do.
void ReadPosition(const KvLayout& layout, const std::byte* head, int slot,
                  std::vector<double>* k, std::vector<double>* v);

// The code of element i of a position's K or V.
int ReadCode(const KvLayout& layout, const std::byte* head, bool is_k, int slot,
             int i);

// One KV head of one sequence, in pages that lie in no particular order, and
// attention over it by the definition, in double precision.
class AttentionCache {
 public:
  // Random K and V in [-1, 1].
  AttentionCache(KvFormat format, int head_dim, int length);

  struct Rows {
    std::vector<int> ids;  // of queries
    std::vector<int> begin, end;
    void Add(int id, int first, int last) {
      ids.push_back(id);
      begin.push_back(first);
      end.push_back(last);
    }
    Rows Part(size_t first, size_t last) const;
  };

  // The kernel's result, a row each, under whatever target is set.
  std::vector<std::vector<float>> Attend(
      const Rows& rows, float sparsity = 1, uint64_t* v_bytes_read = nullptr,
      std::vector<uint32_t>* masks = nullptr);

  std::vector<float> Query(int id) const;
  // Scores of positions [begin, end), of the query as it is rounded for the
  // format.
  std::vector<double> Scores(int id, int begin, int end) const;
  // Attention over some positions.
  std::vector<double> Reference(int id,
                                const std::vector<int>& positions) const;
  std::vector<double> Reference(int id, int begin, int end) const;

  // Returns how far results may be off for V within [-1, 1]: what rounding
  // weights to 15 or 7 bits costs at worst, a small part of what codes of 8 or
  // 4 bits cost.
  double Tolerance() const;

  // Overwrites a position of K and V.
  void Store(int position, const std::vector<float>& k,
             const std::vector<float>& v);

  // Overwrites a position of V.
  void StoreV(int position, const std::vector<float>& v);

  // Caps the scores of what follows, or adds distances (AttentionCall::cap,
  // alibi).
  void CapScores(float cap) { cap_ = cap; }
  void AddDistances(float slope) { slope_ = slope; }
  // Adds rounded distances (AttentionCall::rounded_alibi_scale).
  void AddRoundedDistances(float slope, float scale) {
    slope_ = slope;
    rounded_scale_ = scale;
  }

  // Has the softmax of what follows a term of this score
  // (AttentionCall::sinks).
  void AddSink(float sink) { sink_ = sink; }

  const KvLayout& layout() const { return layout_; }

 private:
  std::byte* Page(int position);
  void ReadBack(int begin, int end);

  KvLayout layout_;
  float cap_ = 0;
  float slope_ = 0;
  float rounded_scale_ = 0;
  std::optional<float> sink_;
  std::vector<int32_t> pages_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<double>> k_, v_;  // as stored
};

}  // namespace sluice
