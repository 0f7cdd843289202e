// One ISA's kernels: compiled once for each of portable, avx2 and avx512 with that ISA's flags.
#include "../kernels.h"
#include "simd.h"

namespace pelton::PELTON_NS {

#include "attend.inl"
#include "choose.inl"
#include "matmul.inl"
#include "rows.inl"

}  // namespace pelton::PELTON_NS

namespace pelton {

#define PELTON_GLUE2(a, b) a##b
#define PELTON_GLUE(a, b) PELTON_GLUE2(a, b)
#define PELTON_TEXT2(a) #a
#define PELTON_TEXT(a) PELTON_TEXT2(a)

const Kernels& PELTON_GLUE(kernels_, PELTON_NS)() {
    using namespace PELTON_NS;
    static const Kernels table = {
        PELTON_TEXT(PELTON_NS), matmul,       gather_row,    prepare,    rms_norm,    layer_norm,
        add_rows,               gated,        activate,      rope_angles, rope,       kv_write,
        attend_chunk,           attend_merge, attend_finish, cap_logits, vocab_stats, choose,
    };
    return table;
}

}  // namespace pelton
