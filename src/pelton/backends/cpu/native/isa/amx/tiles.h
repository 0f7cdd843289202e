// The matrix unit's eight tile registers: the real ones, or the same in plain C++ (PELTON_ISA_AMX_EMULATED, tests only).
// What it is not: a kernel, or a question whether this CPU has them (available.cpp). Invariant: the two give the same bits,
// as long as denormals are flushed (FlushDenormals), which the real ones always do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../simd.h"

#define PELTON_MATRIX_UNIT

namespace pelton::PELTON_NS {

constexpr int TILES = 8, TILE_ROWS = 16, TILE_ROW_BYTES = 64;

// The shapes of the tile registers, as the instruction reads them; rows and bytes of a row in use.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
    void set(int tile, int count, int bytes) {
        rows[tile] = static_cast<uint8_t>(count);
        row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
};
static_assert(sizeof(TileShapes) == 64);

#if !defined(PELTON_ISA_AMX_EMULATED)

// Written as assembly, because a compiler's intrinsics may not know what is read: gcc 12 drops stores to the shapes.
// Here all 64 bytes are an operand, and a load or a store of a tile is a border for every other access.
inline void tile_shapes(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void tile_release() { asm volatile("tilerelease"); }
template <int T> inline void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(T)); }
template <int T> inline void tile_load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T> inline void tile_store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
template <int C, int A, int B> inline void tile_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> inline void tile_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#else

struct TileRegisters {
    TileShapes shapes;
    bool configured = false;
    uint64_t products = 0;  // instructions that multiplied
    uint8_t bytes[TILES][TILE_ROWS][TILE_ROW_BYTES];
};
inline thread_local TileRegisters tile_registers;

inline int tile_rows(int tile) { return tile_registers.configured ? tile_registers.shapes.rows[tile] : 0; }
inline int tile_row_bytes(int tile) { return tile_registers.configured ? tile_registers.shapes.row_bytes[tile] : 0; }
template <class T> inline T tile_get(int tile, int row, int place) {
    T x;
    std::memcpy(&x, tile_registers.bytes[tile][row] + static_cast<size_t>(place) * sizeof x, sizeof x);
    return x;
}
template <class T> inline void tile_put(int tile, int row, int place, T x) {
    std::memcpy(tile_registers.bytes[tile][row] + static_cast<size_t>(place) * sizeof x, &x, sizeof x);
}
// The real registers fault where shapes do not fit, or none are set.
inline void tile_need(bool good) {
    if (!good) __builtin_trap();
}

inline void tile_shapes(const TileShapes& shapes) {
    tile_need(shapes.palette == 1);
    for (int t = 0; t < TILES; ++t) {
        tile_need(shapes.rows[t] <= TILE_ROWS && shapes.row_bytes[t] <= TILE_ROW_BYTES && shapes.row_bytes[t] % 4 == 0);
        tile_need(!shapes.rows[t] == !shapes.row_bytes[t]);
    }
    tile_registers.shapes = shapes;
    tile_registers.configured = true;
    std::memset(tile_registers.bytes, 0, sizeof tile_registers.bytes);
}
inline void tile_release() { tile_registers.configured = false; }
template <int T> inline void tile_zero() {
    tile_need(tile_rows(T) > 0);
    std::memset(tile_registers.bytes[T], 0, sizeof tile_registers.bytes[T]);
}
template <int T> inline void tile_load(const void* from, size_t stride) {
    tile_zero<T>();
    for (int r = 0; r < tile_rows(T); ++r)
        std::memcpy(tile_registers.bytes[T][r], static_cast<const uint8_t*>(from) + static_cast<size_t>(r) * stride,
                    static_cast<size_t>(tile_row_bytes(T)));
}
template <int T> inline void tile_store(void* to, size_t stride) {
    tile_need(tile_rows(T) > 0);
    for (int r = 0; r < tile_rows(T); ++r)
        std::memcpy(static_cast<uint8_t*>(to) + static_cast<size_t>(r) * stride, tile_registers.bytes[T][r],
                    static_cast<size_t>(tile_row_bytes(T)));
}
// rows and columns of C, words of 32 bits along K.
template <int C, int A, int B, class F> inline void tile_products(F product) {
    ++tile_registers.products;
    tile_need(tile_rows(C) > 0 && tile_rows(A) == tile_rows(C) && tile_row_bytes(B) == tile_row_bytes(C));
    tile_need(tile_rows(B) > 0 && tile_row_bytes(A) == 4 * tile_rows(B));
    for (int m = 0; m < tile_rows(C); ++m)
        for (int n = 0; n < tile_row_bytes(C) / 4; ++n) product(m, n, tile_rows(B));
}
template <int C, int A, int B> inline void tile_bf16() {
    tile_products<C, A, B>([](int m, int n, int words) {
        float chain[2] = {0.0f, 0.0f};
        for (int k = 0; k < words; ++k)
            for (int side = 0; side < 2; ++side)
                chain[side] = std::fma(from_bf16(tile_get<uint16_t>(A, m, 2 * k + side)),
                                       from_bf16(tile_get<uint16_t>(B, k, 2 * n + side)), chain[side]);
        tile_put(C, m, n, tile_get<float>(C, m, n) + (chain[0] + chain[1]));
    });
}
template <int C, int A, int B> inline void tile_int8() {
    tile_products<C, A, B>([](int m, int n, int words) {
        uint32_t sum = tile_get<uint32_t>(C, m, n);
        for (int k = 0; k < words; ++k)
            for (int i = 0; i < 4; ++i)
                sum += static_cast<uint32_t>(tile_get<int8_t>(A, m, 4 * k + i) * tile_get<int8_t>(B, k, 4 * n + i));
        tile_put(C, m, n, sum);
    });
}

#endif

}  // namespace pelton::PELTON_NS
