// The kernels of AMX: those of AVX-512, except what the matrix unit does. Compiled a second time for the tests, with the
// matrix unit written out in plain C++.
#include "tiles.h"

namespace pelton {
#if defined(PELTON_ISA_AMX_EMULATED)
const Kernels& kernels_amx_emulated();
uint64_t amx_emulated_products();  // tile products that this thread has made
bool amx_emulated_released();      // this thread keeps no tiles
#endif
}  // namespace pelton

namespace pelton::PELTON_NS {

inline const Kernels& base() {
#if defined(PELTON_ISA_AVX512)
    return kernels_avx512();
#else
    return kernels_portable();
#endif
}

// Products of 8-bit rows with codes, where they are too few for tiles.
inline void few_rows_int8(const IntArgs& a) {
#if defined(PELTON_ISA_AMX_EMULATED)
    base().matmul_int8(a);
#else
    kernels_avx512_vnni().matmul_int8(a);  // every CPU with AMX has it
#endif
}

#include "matmul.inl"
#include "int8.inl"
#include "../attend.inl"

// Rows with bf16 K and V and enough of them for a tile; the others are base()'s.
static void amx_attend_tiles(const AttendArgs& args, int first, int last, bool resume) {
    if (!args.kv.bf16 || args.num_rows * args.group < AMX_ATTEND_PAIRS || args.kv.key_dim < AMX_ATTEND_DIM)
        return base().attend_tiles(args, first, last, resume);
    attend_any<AttendBf16>(args, first, last, resume);
    tile_release();
}

// Numbers that are bf16, as bf16.
static void amx_narrow_rows(const float* from, int n, uint16_t* to) {
    for (int i = 0; i < n; ++i) {
        uint32_t bits;
        std::memcpy(&bits, from + i, sizeof bits);
        const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;  // perhaps only by its lower half
        to[i] = static_cast<uint16_t>(bits >> 16 | (nan ? 0x40u : 0u));
    }
}

static Kernels amx_kernels(const char* name) {
    Kernels table = base();
    table.name = name;
    table.matmul = amx_matmul;
    table.narrow = amx_narrow_rows;
    table.matmul_int8 = amx_matmul_int8;
    table.attend_tiles = amx_attend_tiles;
    return table;
}

}  // namespace pelton::PELTON_NS

namespace pelton {

#if defined(PELTON_ISA_AMX_EMULATED)
uint64_t amx_emulated_products() { return amx_emulated::tile_registers.products; }
bool amx_emulated_released() { return !amx_emulated::tile_registers.configured; }

const Kernels& kernels_amx_emulated() {
    static const Kernels table = amx_emulated::amx_kernels("amx_emulated");
    return table;
}
#else
const Kernels& kernels_amx() {
    static const Kernels table = amx::amx_kernels("amx");
    return table;
}
#endif

}  // namespace pelton
