#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/device_functions.h"

// nvcuda::wmma: products of small matrices by the lanes of a warp together.
// half or bfloat16 times the same, summed in float; shapes 16x16x16, 32x8x16
// and 8x32x16.
//
// Element i of lane l is element 32 i + (l * 5 + i) % 32 of the matrix, row by
// row: which is nothing that a kernel could know, as on the device.

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {
  static constexpr bool kRows = true;
};
struct col_major {
  static constexpr bool kRows = false;
};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
  static_assert((m == 16 && n == 16 && k == 16) ||
                (m == 32 && n == 8 && k == 16) ||
                (m == 8 && n == 32 && k == 16));
  static_assert(std::is_same_v<Use, accumulator>
                    ? std::is_same_v<T, float>
                    : std::is_same_v<T, __half> ||
                          std::is_same_v<T, __nv_bfloat16>);
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? k : m;
  static constexpr int kCols = std::is_same_v<Use, matrix_a> ? k : n;
  static constexpr int num_elements = kRows * kCols / 32;

  T x[num_elements];
};

namespace emulated {

// Returns the element of the matrix that element i of a lane is.
inline int Place(int lane, int i) { return 32 * i + (lane * 5 + i) % 32; }

template <typename T>
void CheckAddress(const void* address, unsigned ldm) {
  if (reinterpret_cast<uintptr_t>(address) % 32 != 0) {
    sluice::emulation::Fault("a wmma matrix that is not at 32 bytes");
  }
  if (ldm * sizeof(T) % 16 != 0) {
    sluice::emulation::Fault("wmma with a stride of " + std::to_string(ldm) +
                             " elements, not whole 16 bytes");
  }
}

// Calls body(element, offset in memory).
template <typename Fragment, typename Body>
void ForEachElement(Fragment& fragment, unsigned ldm, bool rows,
                    const Body& body) {
  const int lane = sluice::emulation::Lane();
  for (int i = 0; i < Fragment::num_elements; ++i) {
    const int place = Place(lane, i);
    const size_t row = place / Fragment::kCols;
    const size_t col = place % Fragment::kCols;
    body(fragment.x[i], rows ? row * ldm + col : col * ldm + row);
  }
}

inline void CheckWarp(const char* name) {
  sluice::emulation::WarpMeet(name, 0xffffffffu, nullptr,
                              [](const sluice::emulation::Requests&) {});
}

template <typename D, typename A, typename B>
struct Product {
  D* d;
  const A* a;
  const B* b;
  const D* c;
};

// Collects a matrix from the lanes, as floats.
template <typename Fragment, typename Member>
void Gather(const sluice::emulation::Requests& requests, const Member& member,
            float* out) {
  for (int lane = 0; lane < 32; ++lane) {
    const Fragment& fragment = *member(requests[lane]);
    for (int i = 0; i < Fragment::num_elements; ++i) {
      out[Place(lane, i)] = static_cast<float>(fragment.x[i]);
    }
  }
}

}  // namespace emulated

template <typename Use, int m, int n, int k, typename T, typename Layout>
void fill_fragment(fragment<Use, m, n, k, T, Layout>& out,
                   std::type_identity_t<T> value) {
  for (T& x : out.x) x = value;
}

template <typename Use, int m, int n, int k, typename T, typename Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& out, const T* from,
                      unsigned ldm) {
  emulated::CheckAddress<T>(from, ldm);
  emulated::CheckWarp("load_matrix_sync");
  emulated::ForEachElement(out, ldm, Layout::kRows,
                           [&](T& x, size_t offset) { x = from[offset]; });
}

template <int m, int n, int k, typename T>
void load_matrix_sync(fragment<accumulator, m, n, k, T>& out, const T* from,
                      unsigned ldm, layout_t layout) {
  emulated::CheckAddress<T>(from, ldm);
  emulated::CheckWarp("load_matrix_sync");
  emulated::ForEachElement(out, ldm, layout == mem_row_major,
                           [&](T& x, size_t offset) { x = from[offset]; });
}

template <int m, int n, int k, typename T>
void store_matrix_sync(T* to, const fragment<accumulator, m, n, k, T>& from,
                       unsigned ldm, layout_t layout) {
  emulated::CheckAddress<T>(to, ldm);
  emulated::CheckWarp("store_matrix_sync");
  emulated::ForEachElement(from, ldm, layout == mem_row_major,
                           [&](const T& x, size_t offset) { to[offset] = x; });
}

// d = a b + c. d may be c.
template <int m, int n, int k, typename T, typename ALayout, typename BLayout>
void mma_sync(fragment<accumulator, m, n, k, float>& d,
              const fragment<matrix_a, m, n, k, T, ALayout>& a,
              const fragment<matrix_b, m, n, k, T, BLayout>& b,
              const fragment<accumulator, m, n, k, float>& c) {
  using D = fragment<accumulator, m, n, k, float>;
  using A = fragment<matrix_a, m, n, k, T, ALayout>;
  using B = fragment<matrix_b, m, n, k, T, BLayout>;
  using Product = emulated::Product<D, A, B>;
  Product mine{&d, &a, &b, &c};
  sluice::emulation::WarpMeet(
      "mma_sync", 0xffffffffu, &mine,
      [](const sluice::emulation::Requests& requests) {
        float left[m * k], right[k * n], sum[m * n];
        emulated::Gather<A>(
            requests, [](void* r) { return static_cast<Product*>(r)->a; },
            left);
        emulated::Gather<B>(
            requests, [](void* r) { return static_cast<Product*>(r)->b; },
            right);
        emulated::Gather<D>(
            requests, [](void* r) { return static_cast<Product*>(r)->c; }, sum);
        for (int row = 0; row < m; ++row) {
          for (int i = 0; i < k; ++i) {
            for (int col = 0; col < n; ++col) {
              sum[row * n + col] += left[row * k + i] * right[i * n + col];
            }
          }
        }
        for (int lane = 0; lane < 32; ++lane) {
          D& out = *static_cast<Product*>(requests[lane])->d;
          for (int i = 0; i < D::num_elements; ++i) {
            out.x[i] = sum[emulated::Place(lane, i)];
          }
        }
      });
}

}  // namespace nvcuda::wmma
