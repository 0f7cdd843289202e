// Packing weights from a file's layout into panels (kernels.h). What it is not: quantisation; codes are moved, never
// changed, and only F32 -> bf16 and F16 -> bf16 round (to nearest, ties to even). No floating-point state matters here.
#include "pack/pack.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>

namespace pelton {
namespace {

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

// ---- quantised formats ----

// What one row of a file has in one K-block: the numbers that a packed format stores, still a byte each.
struct Piece {
    uint8_t codes[BLOCK];
    uint8_t scales[2], minima[2]; // int8, of nested formats
};

// count codes of B bits: of each byte its bits from `shift` on.
template <int B>
void bits_of_each(const uint8_t* from, int shift, int count, uint8_t* to) {
    for (int i = 0; i < count; ++i)
        to[i] = static_cast<uint8_t>((from[i] >> shift) & ((1 << B) - 1));
}

// A further bit of each code, at bit B: bit `shift` of each byte.
template <int B>
void or_bit_of_each(const uint8_t* from, int shift, uint8_t* to) {
    for (int i = 0; i < BLOCK; ++i)
        to[i] = static_cast<uint8_t>(to[i] | ((from[i] >> shift) & 1) << B);
}

// 16 bytes: the low nibbles are the first 16 codes, the high ones the rest.
void split_nibbles(const uint8_t* from, uint8_t* to) {
    bits_of_each<4>(from, 0, 16, to);
    bits_of_each<4>(from, 4, 16, to + 16);
}

// Bit i of four bytes is the fifth bit of code i: each byte is spread to eight, of which each keeps its own bit, and
// what is not zero there carries into the top bit.
void or_fifth_bits(const uint8_t* from, uint8_t* to) {
    for (int i = 0; i < BLOCK / 8; ++i) {
        uint64_t codes, bits = (from[i] * 0x0101010101010101ull) & 0x8040201008040201ull;
        bits = ((bits + 0x7f7f7f7f7f7f7f7full) & 0x8080808080808080ull) >> 3;
        std::memcpy(&codes, to + 8 * i, 8);
        codes |= bits;
        std::memcpy(to + 8 * i, &codes, 8);
    }
}

// Six-bit scale and minimum number b of 8 in 12 bytes.
void six_bits(const uint8_t* from, int b, Piece& piece) {
    const uint8_t* last = from + 4 + b;
    piece.scales[0] = static_cast<uint8_t>(b < 4 ? from[b] & 63 : (*last & 15) | from[b - 4] >> 6 << 4);
    piece.minima[0] = static_cast<uint8_t>(b < 4 ? *last & 63 : *last >> 4 | from[b] >> 6 << 4);
}

// How a file lays a block out: its size, where its half scale and half minimum stand, and its K-block number b.
template <size_t size, size_t scale, size_t minimum = 0>
struct FileBlock {
    static constexpr size_t bytes = size, scale_at = scale, minimum_at = minimum;
};
struct Q4_0 : FileBlock<18, 0> {
    static void read(const uint8_t* p, int, Piece& piece) { split_nibbles(p + 2, piece.codes); }
};
struct Q4_1 : FileBlock<20, 0, 2> {
    static void read(const uint8_t* p, int, Piece& piece) { split_nibbles(p + 4, piece.codes); }
};
struct Q5_0 : FileBlock<22, 0> {
    static void read(const uint8_t* p, int, Piece& piece) {
        split_nibbles(p + 6, piece.codes);
        or_fifth_bits(p + 2, piece.codes);
    }
};
struct Q5_1 : FileBlock<24, 0, 2> {
    static void read(const uint8_t* p, int, Piece& piece) {
        split_nibbles(p + 8, piece.codes);
        or_fifth_bits(p + 4, piece.codes);
    }
};
struct Q8_0 : FileBlock<34, 0> {
    static void read(const uint8_t* p, int, Piece& piece) { std::memcpy(piece.codes, p + 2, BLOCK); }
};
struct Q2_K : FileBlock<84, 80, 82> {
    static void read(const uint8_t* p, int b, Piece& piece) {
        bits_of_each<4>(p + 2 * b, 0, 2, piece.scales);
        bits_of_each<4>(p + 2 * b, 4, 2, piece.minima);
        bits_of_each<2>(p + 16 + b / 4 * BLOCK, b % 4 * 2, BLOCK, piece.codes);
    }
};
struct Q3_K : FileBlock<110, 108> {
    static void read(const uint8_t* p, int b, Piece& piece) {
        bits_of_each<2>(p + 32 + b / 4 * BLOCK, b % 4 * 2, BLOCK, piece.codes);
        or_bit_of_each<2>(p, b, piece.codes);
        for (int i = 2 * b; i < 2 * b + 2; ++i) {
            const int low = p[96 + i % 8] >> i / 8 * 4 & 15, high = p[104 + i % 4] >> i / 4 * 2 & 3;
            piece.scales[i % 2] = static_cast<uint8_t>((low | high << 4) - 32);
        }
    }
};
struct Q4_K : FileBlock<144, 0, 2> {
    static void read(const uint8_t* p, int b, Piece& piece) {
        six_bits(p + 4, b, piece);
        bits_of_each<4>(p + 16 + b / 2 * BLOCK, b % 2 * 4, BLOCK, piece.codes);
    }
};
struct Q5_K : FileBlock<176, 0, 2> {
    static void read(const uint8_t* p, int b, Piece& piece) {
        six_bits(p + 4, b, piece);
        bits_of_each<4>(p + 48 + b / 2 * BLOCK, b % 2 * 4, BLOCK, piece.codes);
        or_bit_of_each<4>(p + 16, b, piece.codes);
    }
};
struct Q6_K : FileBlock<210, 208> {
    static void read(const uint8_t* p, int b, Piece& piece) {
        std::memcpy(piece.scales, p + 192 + 2 * b, 2);
        uint8_t high[BLOCK];
        bits_of_each<4>(p + b / 4 * 64 + b % 2 * BLOCK, b % 4 / 2 * 4, BLOCK, piece.codes);
        bits_of_each<2>(p + 128 + b / 4 * BLOCK, b % 4 * 2, BLOCK, high);
        for (int i = 0; i < BLOCK; ++i)
            piece.codes[i] = static_cast<uint8_t>(piece.codes[i] | high[i] << 4);
    }
};
struct IQ4_XS : FileBlock<136, 0> {
    static void read(const uint8_t* p, int b, Piece& piece) {
        split_nibbles(p + 8 + b * 16, piece.codes);
        const int low = p[4 + b / 2] >> b % 2 * 4 & 15, high = p[2 + b / 4] >> b % 4 * 2 & 3;
        piece.scales[0] = static_cast<uint8_t>((low | high << 4) - 32);
    }
};

// Groups of our own: 32 bytes of each K-block, or 16, of which each holds two neighbours.
template <size_t size>
struct INT8_groups : FileBlock<size, 0> {
    static void read(const uint8_t* p, int b, Piece& piece) { std::memcpy(piece.codes, p + 2 + b * BLOCK, BLOCK); }
};
template <size_t size, size_t codes>
struct INT4_groups : FileBlock<size, 0, 2> {
    static void read(const uint8_t* p, int b, Piece& piece) {
        for (int i = 0; i < BLOCK; ++i)
            piece.codes[i] = static_cast<uint8_t>(p[codes + static_cast<size_t>(b * BLOCK + i) / 2] >> i % 2 * 4 & 15);
    }
};

// Eight bytes with a code in the low half of each -> eight codes in order in 32 bits.
uint32_t gather_nibbles(uint64_t x) {
    x = (x | (x >> 4)) & 0x00ff00ff00ff00ffull;
    x = (x | (x >> 8)) & 0x0000ffff0000ffffull;
    return static_cast<uint32_t>(x | (x >> 16));
}

// Eight bytes with a bit in each -> eight bits.
uint32_t gather_bits(uint64_t x) {
    return static_cast<uint32_t>((x * 0x0102040810204080ull) >> 56);
}

// The lower two bits of each nibble, in 16 bits.
void write_crumbs(uint32_t nibbles, uint8_t* to) {
    uint32_t pairs = nibbles & 0x33333333u; // close the gaps
    pairs = (pairs | pairs >> 2) & 0x0f0f0f0fu;
    pairs = (pairs | pairs >> 4) & 0x00ff00ffu;
    const uint16_t half = static_cast<uint16_t>(pairs | pairs >> 8);
    std::memcpy(to, &half, 2);
}

template <Codes codes>
void write_codes(const Piece& piece, int lane, uint8_t* out) {
    if constexpr (codes == Codes::int8) {
        for (int k = 0; k < BLOCK; k += 4)
            std::memcpy(out + (k / 4 * PANEL + lane) * 4, piece.codes + k, 4);
        return;
    }
    constexpr bool crumbs = codes == Codes::crumbs || codes == Codes::threes;
    constexpr size_t first_bytes = code_bytes(crumbs ? Codes::crumbs : Codes::nibbles);
    uint32_t bits = 0; // of fives and threes: the last bit of each code
    for (int eighth = 0; eighth < BLOCK / 8; ++eighth) {
        uint64_t eight;
        std::memcpy(&eight, piece.codes + 8 * eighth, 8);
        const uint32_t word = gather_nibbles(eight & 0x0f0f0f0f0f0f0f0full);
        const int at = eighth * PANEL + lane;
        if constexpr (crumbs)
            write_crumbs(word, out + at * 2);
        else
            std::memcpy(out + at * 4, &word, 4);
        if constexpr (codes == Codes::sixes)
            write_crumbs(gather_nibbles(eight >> 4 & 0x0f0f0f0f0f0f0f0full), out + first_bytes + at * 2);
        if constexpr (codes == Codes::fives || codes == Codes::threes)
            bits |= gather_bits(eight >> (crumbs ? 2 : 4) & 0x0101010101010101ull) << 8 * eighth;
    }
    if constexpr (codes == Codes::fives || codes == Codes::threes)
        std::memcpy(out + first_bytes + lane * 4, &bits, 4);
}

// One K-block, or those that have halves in front of them together. Of a nested format the minimum's half
// changes its sign: the file subtracts, a kernel adds.
template <class File, Format to>
void pack_coded(const Rows& rows, int first, int, uint8_t* out) {
    constexpr const Layout& l = layout(to);
    constexpr int blocks = head_blocks(to) ? head_blocks(to) : 1;
    constexpr size_t bytes = block_bytes(to);
    constexpr uint8_t padding[File::bytes] = {};
    for (int lane = 0; lane < PANEL; ++lane) {
        const size_t place = static_cast<size_t>(first / (BLOCK * blocks)) * File::bytes;
        const uint8_t* from = rows.row[lane] ? rows.row[lane] + place : padding;
        std::memcpy(out + 2 * lane, from + File::scale_at, 2);
        if constexpr (l.minima) {
            const uint16_t minimum = f16_bits(from + File::minimum_at) ^ (l.nested ? 0x8000u : 0u);
            std::memcpy(out + 2 * (PANEL + lane), &minimum, 2);
        }
        for (int b = 0; b < blocks; ++b) {
            uint8_t* block = out + head_bytes(to) + static_cast<size_t>(b) * bytes;
            Piece piece;
            File::read(from, b, piece);
            if constexpr (l.nested)
                for (int i = 0; i < l.scales; ++i) {
                    block[i * PANEL + lane] = piece.scales[i];
                    if constexpr (l.minima)
                        block[(l.scales + i) * PANEL + lane] = piece.minima[i];
                }
            write_codes<l.codes>(piece, lane, block + scale_bytes(to));
        }
    }
}

// One K-block of rows that begin with their scale, fp32; and the scales, which stand behind the last.
constexpr size_t ROW_SCALE = sizeof(float);

void pack_int8_rows(const Rows& rows, int first, int count, uint8_t* out) {
    for (int lane = 0; lane < PANEL; ++lane) {
        Piece piece = {};
        if (rows.row[lane])
            std::memcpy(piece.codes, rows.row[lane] + ROW_SCALE + first, static_cast<size_t>(std::min(count, BLOCK)));
        write_codes<Codes::int8>(piece, lane, out);
    }
}

void pack_row_scales(const Rows& rows, uint8_t* out) {
    for (int lane = 0; lane < PANEL; ++lane)
        if (rows.row[lane])
            std::memcpy(out + static_cast<size_t>(lane) * ROW_SCALE, rows.row[lane], ROW_SCALE);
        else
            std::memset(out + static_cast<size_t>(lane) * ROW_SCALE, 0, ROW_SCALE);
}

// ---- the conversions there are ----

struct Conversion {
    const char* from;
    Format to;
    int file_block; // elements that share file_bytes
    size_t file_bytes;
    void (*pack)(const Rows&, int first, int count, uint8_t* out);
    size_t head_bytes = 0; // of a row, in front of its blocks

    size_t row_bytes(size_t cols) const { return head_bytes + cols / static_cast<size_t>(file_block) * file_bytes; }
};

template <class File, Format to>
constexpr Conversion coded(const char* from) {
    return {from, to, head_blocks(to) ? BLOCK * head_blocks(to) : BLOCK, File::bytes, pack_coded<File, to>};
}

constexpr Conversion CONVERSIONS[] = {
    {"F32", Format::f32, 1, 4, pack_dense<F32ToF32, false>},
    {"F32", Format::bf16, 1, 4, pack_dense<F32ToBF16, true>},
    {"F16", Format::bf16, 1, 2, pack_dense<F16ToBF16, true>},
    {"F16", Format::f16, 1, 2, pack_dense<Copy16, false>},
    {"BF16", Format::bf16, 1, 2, pack_dense<Copy16, true>},
    coded<Q4_0, Format::q4>("Q4_0"),
    coded<Q4_1, Format::q4m>("Q4_1"),
    coded<Q5_0, Format::q5>("Q5_0"),
    coded<Q5_1, Format::q5m>("Q5_1"),
    coded<Q8_0, Format::q8>("Q8_0"),
    coded<Q4_0, Format::q4t>("IQ4_NL"), // laid out as Q4_0 is; the codes are numbers of levels
    coded<Q2_K, Format::q2khm>("Q2_K"),
    coded<Q3_K, Format::q3kh>("Q3_K"),
    coded<Q4_K, Format::q4km>("Q4_K"),
    coded<Q5_K, Format::q5km>("Q5_K"),
    coded<Q6_K, Format::q6kh>("Q6_K"),
    coded<IQ4_XS, Format::q4kt>("IQ4_XS"),
    {"INT8", Format::i8c, 1, 1, pack_int8_rows, ROW_SCALE},
    coded<INT8_groups<66>, Format::q8s2>("INT8_64"),
    coded<INT8_groups<130>, Format::q8s4>("INT8_128"),
    coded<INT4_groups<34, 2>, Format::q4s2>("INT4_64"),
    coded<INT4_groups<66, 2>, Format::q4s4>("INT4_128"),
    coded<INT4_groups<36, 4>, Format::q4ms2>("INT4M_64"),
    coded<INT4_groups<68, 4>, Format::q4ms4>("INT4M_128"),
};

[[noreturn]] void refuse_columns(const char* from, size_t cols) {
    throw std::invalid_argument(std::string(from) + ": " + std::to_string(cols) + " columns are not whole blocks");
}

const Conversion& conversion(Format to, const char* from, int cols) {
    for (const Conversion& c : CONVERSIONS)
        if (c.to == to && std::strcmp(c.from, from) == 0) {
            if (cols % c.file_block)
                refuse_columns(from, static_cast<size_t>(cols));
            return c;
        }
    throw std::invalid_argument(std::string("cannot pack ") + from + " as " + layout(to).name);
}

} // namespace

size_t packed_bytes(Format format, int rows, int cols) {
    const size_t panels = (static_cast<size_t>(rows) + PANEL - 1) / PANEL;
    return panels * panel_bytes(format, padded(cols) / BLOCK);
}

Format format_of(const std::string& name) {
    for (size_t i = 0; i < std::size(LAYOUTS); ++i)
        if (name == LAYOUTS[i].name)
            return static_cast<Format>(i);
    throw std::invalid_argument("unknown packed format " + name);
}

size_t file_bytes(const std::string& from, size_t rows, size_t cols) {
    for (const Conversion& c : CONVERSIONS)
        if (from == c.from) {
            if (cols % static_cast<size_t>(c.file_block))
                refuse_columns(c.from, cols);
            return rows * c.row_bytes(cols);
        }
    throw std::invalid_argument("unknown file format " + from);
}

void pack_panels(Format to, const char* from, const uint8_t* raw, int rows, int cols, const int32_t* row_order,
                 int first_panel, int last_panel, uint8_t* out) {
    const Conversion& c = conversion(to, from, cols);
    const size_t row_bytes = c.row_bytes(static_cast<size_t>(cols));
    const int step = head_blocks(to) ? BLOCK * head_blocks(to) : BLOCK, width = padded(cols);
    const size_t step_bytes = blocks_bytes(to, step / BLOCK);
    out += static_cast<size_t>(first_panel) * panel_bytes(to, width / BLOCK);
    for (int panel = first_panel; panel < last_panel; ++panel) {
        Rows from_rows;
        for (int lane = 0; lane < PANEL; ++lane) {
            const int row = panel * PANEL + lane;
            const size_t place = row < rows ? static_cast<size_t>(row_order ? row_order[row] : row) : 0;
            from_rows.row[lane] = row < rows ? raw + place * row_bytes : nullptr;
        }
        for (int first = 0; first < width; first += step, out += step_bytes)
            c.pack(from_rows, first, std::min(step, cols - first), out);
        if (layout(to).span == 0) {
            pack_row_scales(from_rows, out);
            out += PANEL * ROW_SCALE;
        }
    }
}

} // namespace pelton
