#pragma once

// CUDA's vectors, with its alignment.

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1)
      : x(vx), y(vy), z(vz) {}
};

#define SLUICE_EMULATED_VECTORS(T, Name)                            \
  struct alignas(2 * sizeof(T)) Name##2 {                           \
    T x, y;                                                         \
  };                                                                \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) Name##4 { \
    T x, y, z, w;                                                   \
  };                                                                \
  inline Name##2 make_##Name##2(T x, T y) { return {x, y}; }        \
  inline Name##4 make_##Name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

SLUICE_EMULATED_VECTORS(float, float)
SLUICE_EMULATED_VECTORS(int, int)
SLUICE_EMULATED_VECTORS(unsigned, uint)
SLUICE_EMULATED_VECTORS(short, short)
SLUICE_EMULATED_VECTORS(unsigned short, ushort)
SLUICE_EMULATED_VECTORS(signed char, char)
SLUICE_EMULATED_VECTORS(unsigned char, uchar)
#undef SLUICE_EMULATED_VECTORS
