#include "runtime/kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/kernels/cpu/vector_ops.h"
#include "runtime/kv/sequence_pages.h"
#include "tests/unit/kernels/targets.h"

namespace sluice {
namespace {

// One KV head of one sequence, in pages that lie in no particular order.
class Cache {
 public:
  Cache(DType dtype, int head_dim, int length)
      : dtype_(dtype), head_dim_(head_dim) {
    const int num_pages = (length + kPageTokens - 1) / kPageTokens;
    block_ = static_cast<size_t>(head_dim) * kPageTokens;
    element_ = dtype == DType::kFloat32 ? 4 : 2;
    for (int i = 0; i < num_pages; ++i) pages_.push_back(i);
    std::mt19937 random(5);
    std::shuffle(pages_.begin(), pages_.end(), random);
    // What an earlier sequence may have left: NaN must not leak from it.
    memory_.assign(num_pages * 2 * block_ * element_ + 256, std::byte{0xff});
    std::uniform_real_distribution<float> uniform(-1, 1);
    k_.resize(length * head_dim);
    v_.resize(length * head_dim);
    for (float& x : k_) x = uniform(random);
    for (float& x : v_) x = uniform(random);
    // In chunks of several sizes, as steps come.
    for (int at = 0, n = 1; at < length; n = n % 40 + 7) {
      int count = std::min({n, length - at, kPageTokens - at % kPageTokens});
      std::byte* k = Block(pages_[at / kPageTokens]);
      StoreKv(k_.data() + at * head_dim, head_dim, v_.data() + at * head_dim,
              head_dim, at % kPageTokens, count, head_dim, dtype, k,
              k + block_ * element_);
      at += count;
    }
    if (dtype == DType::kBFloat16) {
      for (std::vector<float>* x : {&k_, &v_}) {
        std::vector<uint16_t> bits(x->size());
        FloatToBf16(x->data(), x->size(), bits.data());
        Bf16ToFloat(bits.data(), x->size(), x->data());
      }
    }
  }

  // Attends rows with the given ranges; queries are a function of `ids`.
  std::vector<std::vector<float>> Attend(const std::vector<int>& ids,
                                         const std::vector<int>& begin,
                                         const std::vector<int>& end) {
    AttentionScratch scratch(head_dim_);
    AttentionCall call;
    call.kv_dtype = dtype_;
    call.head_dim = head_dim_;
    call.k_base = memory_.data();
    call.page_stride = 2 * block_ * element_;
    call.pages = pages_;
    call.rows = ids.size();
    std::vector<std::vector<float>> out(ids.size(),
                                        std::vector<float>(head_dim_));
    for (size_t r = 0; r < ids.size(); ++r) {
      const std::vector<float> q = Query(ids[r]);
      std::copy(q.begin(), q.end(), scratch.query(r));
      call.begin[r] = begin[r];
      call.end[r] = end[r];
      call.out[r] = out[r].data();
    }
    sluice::Attend(call, scratch);
    return out;
  }

  std::vector<float> Query(int id) const {
    std::mt19937 random(100 + id);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> q(head_dim_);
    for (float& x : q) x = uniform(random);
    return q;
  }

  std::vector<double> Reference(int id, int begin, int end) const {
    const std::vector<float> q = Query(id);
    std::vector<double> s(end - begin);
    double max = -1e300, sum = 0;
    for (int j = begin; j < end; ++j) {
      double dot = 0;
      for (int i = 0; i < head_dim_; ++i) {
        dot += static_cast<double>(q[i]) * k_[j * head_dim_ + i];
      }
      s[j - begin] = dot;
      max = std::max(max, dot);
    }
    for (double& x : s) sum += x = std::exp(x - max);
    std::vector<double> out(head_dim_);
    for (int j = begin; j < end; ++j) {
      for (int i = 0; i < head_dim_; ++i) {
        out[i] += s[j - begin] / sum * v_[j * head_dim_ + i];
      }
    }
    return out;
  }

 private:
  std::byte* Block(int page) {
    return memory_.data() + page * 2 * block_ * element_;
  }

  DType dtype_;
  int head_dim_;
  size_t block_, element_;
  std::vector<int32_t> pages_;
  std::vector<std::byte> memory_;
  std::vector<float> k_, v_;
};

class AttentionTest : public testing::TestWithParam<DType> {};

TEST_P(AttentionTest, MatchesTheDefinition) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const int head_dim : {1, 5, 12, 15, 20, 32, 64, 80, 128}) {
      Cache cache(GetParam(), head_dim, 131);
      for (const int rows : {1, 2, 3, 4, 7, 8, 9, 32}) {
        std::vector<int> ids, begin, end;
        for (int r = 0; r < rows; ++r) {
          ids.push_back(r);
          end.push_back(131 - rows + 1 + r);
          begin.push_back(0);
        }
        const auto out = cache.Attend(ids, begin, end);
        for (int r = 0; r < rows; ++r) {
          const auto want = cache.Reference(ids[r], begin[r], end[r]);
          for (int i = 0; i < head_dim; ++i) {
            ASSERT_NEAR(out[r][i], want[i], 2e-6)
                << "head_dim " << head_dim << " row " << r << " of " << rows;
          }
        }
      }
    }
  });
}

TEST_P(AttentionTest, Windows) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    Cache cache(GetParam(), 20, 200);
    for (const int window : {1, 2, 31, 32, 33, 64, 100}) {
      std::vector<int> ids, begin, end;
      for (int r = 0; r < 32; ++r) {
        const int position = 5 + 6 * r;
        ids.push_back(r);
        begin.push_back(std::max(0, position + 1 - window));
        end.push_back(position + 1);
      }
      const auto out = cache.Attend(ids, begin, end);
      for (int r = 0; r < 32; ++r) {
        const auto want = cache.Reference(ids[r], begin[r], end[r]);
        for (int i = 0; i < 20; ++i) ASSERT_NEAR(out[r][i], want[i], 2e-6);
      }
    }
  });
}

// The same row, alone and in all sorts of company: the same bits.
TEST_P(AttentionTest, RowsDoNotDependOnEachOther) {
  ForEachTarget([](const char* target) {
    SCOPED_TRACE(target);
    for (const int head_dim : {12, 20, 64, 80}) {
      Cache cache(GetParam(), head_dim, 150);
      std::vector<int> ids, begin, end;
      for (int r = 0; r < 32; ++r) {
        ids.push_back(r);
        // Some alike, as the heads of a group are; some one after the other.
        end.push_back(r < 16 ? 90 + r : 120 + r / 5);
        begin.push_back(r % 3 == 0 ? std::max(0, end.back() - 40) : 0);
      }
      const auto together = cache.Attend(ids, begin, end);
      for (int r = 0; r < 32; ++r) {
        const auto alone = cache.Attend({ids[r]}, {begin[r]}, {end[r]});
        ASSERT_EQ(alone[0], together[r]) << "row " << r;
      }
      for (int first = 0; first < 32; first += 5) {
        const auto range = [first](const std::vector<int>& x) {
          return std::vector<int>(x.begin() + first,
                                  x.begin() + std::min(32, first + 11));
        };
        const auto some = cache.Attend(range(ids), range(begin), range(end));
        for (size_t r = 0; r < some.size(); ++r) {
          ASSERT_EQ(some[r], together[first + r]);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& i) {
                           return std::string(DTypeName(i.param));
                         });

}  // namespace
}  // namespace sluice
