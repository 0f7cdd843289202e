// Packing weights from a file's layout into panels (kernels.h). What it is not: quantisation; codes are moved, never
// changed, and only F32 -> bf16 and F16 -> bf16 round (to nearest, ties to even). No floating-point state matters here.
#include "pack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace pelton {
namespace {

constexpr size_t CODES = BLOCK * PANEL; // elements of one K-block of a panel

// The rows of one panel in the file; a null pointer is a row of padding.
struct Rows {
    const uint8_t* row[PANEL];
};

// ---- dense formats ----

uint32_t f32_bits(const uint8_t* p) {
    uint32_t u;
    std::memcpy(&u, p, 4);
    return u;
}

uint16_t f16_bits(const uint8_t* p) {
    uint16_t u;
    std::memcpy(&u, p, 2);
    return u;
}

uint16_t bf16_of_f32(uint32_t u) {
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, nan = (u >> 16) | 0x40u;
    return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// fp32 bits of an IEEE half, without branches and without subnormal arithmetic.
uint32_t f32_of_f16(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
    uint32_t subnormal;
    std::memcpy(&subnormal, &small, 4);
    const uint32_t normal = (magnitude << 13) + 0x38000000u;
    const uint32_t special = ((magnitude << 13) + 0x70000000u) | (magnitude > 0x7c00u ? 0x400000u : 0u);
    return sign | (magnitude < 0x400u ? subnormal : magnitude < 0x7c00u ? normal : special);
}

struct F32ToF32 {
    using Out = uint32_t;
    static constexpr size_t size = 4;
    static Out at(const uint8_t* p) { return f32_bits(p); }
};
struct F32ToBF16 {
    using Out = uint16_t;
    static constexpr size_t size = 4;
    static Out at(const uint8_t* p) { return bf16_of_f32(f32_bits(p)); }
};
struct F16ToBF16 {
    using Out = uint16_t;
    static constexpr size_t size = 2;
    static Out at(const uint8_t* p) { return bf16_of_f32(f32_of_f16(f16_bits(p))); }
};
struct Copy16 { // F16 -> f16, BF16 -> bf16
    using Out = uint16_t;
    static constexpr size_t size = 2;
    static Out at(const uint8_t* p) { return f16_bits(p); }
};

// One K-block: `count` elements from column `first` on, zeros behind. paired: k even and k odd side by side.
template <class C, bool paired>
void pack_dense(const Rows& rows, int first, int count, uint8_t* out) {
    using Out = typename C::Out;
    Out* to = reinterpret_cast<Out*>(out);
    for (int lane = 0; lane < PANEL; ++lane) {
        Out line[BLOCK] = {};
        if (rows.row[lane])
            for (int k = 0; k < count; ++k)
                line[k] = C::at(rows.row[lane] + static_cast<size_t>(first + k) * C::size);
        if constexpr (paired) {
            for (int k = 0; k < BLOCK; k += 2)
                std::memcpy(to + (k / 2 * PANEL + lane) * 2, line + k, 2 * sizeof(Out));
        } else {
            for (int k = 0; k < BLOCK; ++k)
                to[k * PANEL + lane] = line[k];
        }
    }
}

// ---- quantised formats: file blocks of 32 ----

// Eight bytes with a code in the low half of each -> eight codes in order in 32 bits.
uint32_t gather_nibbles(uint64_t x) {
    x &= 0x0f0f0f0f0f0f0f0full;
    x = (x | (x >> 4)) & 0x00ff00ff00ff00ffull;
    x = (x | (x >> 8)) & 0x0000ffff0000ffffull;
    return static_cast<uint32_t>(x | (x >> 16));
}

// Q4_0: half scale, 16 bytes; Q4_1: half scale, half minimum, 16 bytes. The low nibbles are the first 16 elements.
template <int num_halves>
void pack_q4(const Rows& rows, int first, int, uint8_t* out) {
    constexpr size_t file_bytes = num_halves * 2 + 16;
    uint16_t* halves = reinterpret_cast<uint16_t*>(out);
    uint32_t* words = reinterpret_cast<uint32_t*>(out + num_halves * PANEL * 2);
    for (int lane = 0; lane < PANEL; ++lane) {
        uint8_t block[file_bytes] = {};
        if (rows.row[lane])
            std::memcpy(block, rows.row[lane] + static_cast<size_t>(first / BLOCK) * file_bytes, file_bytes);
        for (int i = 0; i < num_halves; ++i)
            halves[i * PANEL + lane] = f16_bits(block + 2 * i);
        uint64_t low, high;
        std::memcpy(&low, block + num_halves * 2, 8);
        std::memcpy(&high, block + num_halves * 2 + 8, 8);
        words[lane] = gather_nibbles(low);
        words[PANEL + lane] = gather_nibbles(high);
        words[2 * PANEL + lane] = gather_nibbles(low >> 4);
        words[3 * PANEL + lane] = gather_nibbles(high >> 4);
    }
}

void pack_q8(const Rows& rows, int first, int, uint8_t* out) {
    constexpr size_t file_bytes = 2 + BLOCK;
    for (int lane = 0; lane < PANEL; ++lane) {
        uint8_t block[file_bytes] = {};
        if (rows.row[lane])
            std::memcpy(block, rows.row[lane] + static_cast<size_t>(first / BLOCK) * file_bytes, file_bytes);
        std::memcpy(out + 2 * lane, block, 2);
        for (int k = 0; k < BLOCK; ++k)
            out[2 * PANEL + k * PANEL + lane] = block[2 + k];
    }
}

// ---- the conversions there are ----

struct Conversion {
    const char* from;
    Format to;
    int file_block; // elements that share file_bytes
    size_t file_bytes;
    void (*pack)(const Rows&, int first, int count, uint8_t* out);
};

constexpr Conversion CONVERSIONS[] = {
    {"F32", Format::f32, 1, 4, pack_dense<F32ToF32, false>},
    {"F32", Format::bf16, 1, 4, pack_dense<F32ToBF16, true>},
    {"F16", Format::bf16, 1, 2, pack_dense<F16ToBF16, true>},
    {"F16", Format::f16, 1, 2, pack_dense<Copy16, false>},
    {"BF16", Format::bf16, 1, 2, pack_dense<Copy16, true>},
    {"Q4_0", Format::q4, 32, 18, pack_q4<1>},
    {"Q4_1", Format::q4m, 32, 20, pack_q4<2>},
    {"Q8_0", Format::q8, 32, 34, pack_q8},
};

const Conversion& conversion(Format to, const char* from, int cols) {
    for (const Conversion& c : CONVERSIONS)
        if (c.to == to && std::strcmp(c.from, from) == 0) {
            if (cols % c.file_block == 0)
                return c;
            throw std::invalid_argument(std::string(from) + ": " + std::to_string(cols) +
                                        " columns are not whole blocks");
        }
    throw std::invalid_argument(std::string("cannot pack ") + from + " as " + format_name(to));
}

} // namespace

size_t block_bytes(Format format) {
    switch (format) {
    case Format::f32:
        return CODES * 4;
    case Format::bf16:
    case Format::f16:
        return CODES * 2;
    case Format::q8:
        return PANEL * 2 + CODES;
    case Format::q4:
        return PANEL * 2 + CODES / 2;
    case Format::q4m:
        return PANEL * 4 + CODES / 2;
    }
    throw std::invalid_argument("unknown weight format");
}

size_t packed_bytes(Format format, int rows, int cols) {
    const size_t panels = (static_cast<size_t>(rows) + PANEL - 1) / PANEL;
    return panels * (static_cast<size_t>(padded(cols)) / BLOCK) * block_bytes(format);
}

const char* format_name(Format format) {
    constexpr const char* names[] = {"f32", "bf16", "f16", "q8", "q4", "q4m"};
    const int i = static_cast<int>(format);
    return i >= 0 && i < 6 ? names[i] : "an unknown format";
}

void pack_panels(Format to, const char* from, const uint8_t* raw, int rows, int cols, const int32_t* row_order,
                 int first_panel, int last_panel, uint8_t* out) {
    const Conversion& c = conversion(to, from, cols);
    const size_t row_bytes = static_cast<size_t>(cols / c.file_block) * c.file_bytes, bytes = block_bytes(to);
    const int blocks = padded(cols) / BLOCK;
    out += static_cast<size_t>(first_panel) * static_cast<size_t>(blocks) * bytes;
    for (int panel = first_panel; panel < last_panel; ++panel) {
        Rows from_rows;
        for (int lane = 0; lane < PANEL; ++lane) {
            const int row = panel * PANEL + lane;
            const size_t place = row < rows ? static_cast<size_t>(row_order ? row_order[row] : row) : 0;
            from_rows.row[lane] = row < rows ? raw + place * row_bytes : nullptr;
        }
        for (int b = 0; b < blocks; ++b, out += bytes)
            c.pack(from_rows, b * BLOCK, std::min(BLOCK, cols - b * BLOCK), out);
    }
}

} // namespace pelton
