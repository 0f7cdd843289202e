// One ISA's kernels: compiled once for each of portable, avx2, avx512 and neon with that ISA's flags; amx/ builds on them.
#include "../kernels.h"
#include "simd.h"

namespace pelton::PELTON_NS {

#include "attend.inl"
#include "choose.inl"
#include "attend_columns.inl"
#include "matmul.inl"
#include "expand.inl"
#include "rows.inl"

void matmul_int8(const IntArgs&); // int8.cpp
int expand_int8(const Matrix&, int panel, int first, int blocks, const IntExpansion&);

}  // namespace pelton::PELTON_NS

namespace pelton {

#define PELTON_GLUE2(a, b) a##b
#define PELTON_GLUE(a, b) PELTON_GLUE2(a, b)
#define PELTON_TEXT2(a) #a
#define PELTON_TEXT(a) PELTON_TEXT2(a)

const Kernels& PELTON_GLUE(kernels_, PELTON_NS)() {
    using namespace PELTON_NS;
    static constexpr Kernels table = {  // constant: making it must need no instruction of the set
        PELTON_TEXT(PELTON_NS), matmul,       gather_row,    prepare,    rms_norm,    layer_norm,
        add_rows,               gated,        activate,      rope_angles, rope,       kv_write,
        attend_tiles,           attend_merge, attend_finish, attend_lse, attend_columns, cap_logits,
        vocab_stats,            choose, nullptr, expand_blocks,
        matmul_int8,            expand_int8, prepare_int8,
    };
    return table;
}

}  // namespace pelton
