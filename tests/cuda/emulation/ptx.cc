#include "runtime/kernels/cuda/device/ptx.cuh"

#include <cstring>

#include "tests/cuda/emulation/block.h"

// The instructions of ptx.cuh that the lanes of a warp do together.

namespace sluice::emulation {
namespace {

struct MmaRequest {
  bool bf16;
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

struct LoadRequest {
  bool transposed;
  const void* row;
  uint32_t* out;
};

float2 Elements(bool bf16, uint32_t both) {
  return bf16 ? Unpack<MmaType::kBFloat16>(both) : Unpack<MmaType::kHalf>(both);
}

void CompleteMma(const Requests& requests) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& r = *static_cast<const MmaRequest*>(requests[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const float2 x = Elements(r.bf16, r.a[i]);
      const int row = g + 8 * (i % 2), col = 2 * t + 8 * (i / 2);
      a[row][col] = x.x;
      a[row][col + 1] = x.y;
    }
    for (int i = 0; i < 2; ++i) {
      const float2 x = Elements(r.bf16, r.b[i]);
      b[2 * t + 8 * i][g] = x.x;
      b[2 * t + 8 * i + 1][g] = x.y;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& r = *static_cast<const MmaRequest*>(requests[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), col = 2 * (lane % 4) + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][col];
      r.d[i] += sum;
    }
  }
}

void CompleteLoad(const Requests& requests) {
  uint16_t rows[4][8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& r = *static_cast<const LoadRequest*>(requests[lane]);
    if (reinterpret_cast<uintptr_t>(r.row) % 16 != 0) {
      Fault("ldmatrix of a row that is not at 16 bytes");
    }
    std::memcpy(rows[lane / 8][lane % 8], r.row, 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& r = *static_cast<const LoadRequest*>(requests[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = r.transposed ? rows[i][2 * t][g] : rows[i][g][2 * t];
      const uint32_t high =
          r.transposed ? rows[i][2 * t + 1][g] : rows[i][g][2 * t + 1];
      r.out[i] = low | high << 16;
    }
  }
}

}  // namespace

void Mma(bool bf16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
         uint32_t b1) {
  MmaRequest request{bf16, d, a, {b0, b1}};
  WarpMeet("mma", kAllLanes, &request, CompleteMma);
}

void LoadMatrices(bool transposed, const void* row, uint32_t (&out)[4]) {
  LoadRequest request{transposed, row, out};
  WarpMeet("ldmatrix", kAllLanes, &request, CompleteLoad);
}

}  // namespace sluice::emulation
