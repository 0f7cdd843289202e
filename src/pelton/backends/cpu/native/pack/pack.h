// Packing weights from a file's layout into panels (kernels.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels.h"

namespace pelton {

// Tells one way of packing from another: a digest of the sources that decide the packed bytes, made by the build.
#if !defined(PELTON_PACK_LAYOUT)
#define PELTON_PACK_LAYOUT "unknown"
#endif

size_t packed_bytes(Format format, int rows, int cols);

// The format of that name; throws std::invalid_argument.
Format format_of(const std::string& name);

// Bytes of a matrix in a file; throws std::invalid_argument for an unknown format or rows that are no whole blocks.
size_t file_bytes(const std::string& from, size_t rows, size_t cols);

// Panels [first_panel, last_panel) of the matrix. `from`: a name of program/formats.py; packed row i is the file's row
// row_order[i] (null: row i). `out` is the whole packed matrix. Throws std::invalid_argument for an impossible conversion.
void pack_panels(Format to, const char* from, const uint8_t* raw, int rows, int cols, const int32_t* row_order,
                 int first_panel, int last_panel, uint8_t* out);

}  // namespace pelton
