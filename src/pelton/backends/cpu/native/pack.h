// Packing weights from a file's layout into panels (kernels.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace pelton {

size_t block_bytes(Format format);  // of one K-block of one panel
size_t packed_bytes(Format format, int rows, int cols);
const char* format_name(Format format);

// Panels [first_panel, last_panel) of the matrix. `from`: F32, F16, BF16, Q4_0, Q4_1 or Q8_0; packed row i is the file's row
// row_order[i] (null: row i). `out` is the whole packed matrix. Throws std::invalid_argument for an impossible conversion.
void pack_panels(Format to, const char* from, const uint8_t* raw, int rows, int cols, const int32_t* row_order,
                 int first_panel, int last_panel, uint8_t* out);

}  // namespace pelton
