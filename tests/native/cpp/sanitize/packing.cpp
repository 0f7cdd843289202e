// Packing of every format from every file format, of whole matrices and of single panels, on memory of exactly the size that
// both say. Compiled with AddressSanitizer and UBSan, it fails by itself. What it is not: a check of the packed numbers.
#include <stdexcept>

#include "pack/pack.h"
#include "sanitize/exact.h"

using namespace pelton;
using exact::Array;

namespace {

constexpr const char* FROM[] = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"};

// Whether the conversion is possible.
bool pack(Format to, const char* from, int rows, int cols, exact::Random& random) {
    size_t size = 0;
    try {
        size = file_bytes(from, static_cast<size_t>(rows), static_cast<size_t>(cols));
    } catch (const std::invalid_argument&) {
        return false;  // no whole blocks
    }
    Array<uint8_t> raw(size), out(packed_bytes(to, rows, cols));
    exact::fill(raw, random);
    std::vector<int32_t> order;
    for (int r = 0; r < rows; ++r) order.push_back(rows - 1 - r);
    const int panels = (rows + PANEL - 1) / PANEL;
    try {
        pack_panels(to, from, raw.data(), rows, cols, nullptr, 0, panels, out.data());
    } catch (const std::invalid_argument&) {
        return false;
    }
    for (int panel = 0; panel < panels; ++panel) pack_panels(to, from, raw.data(), rows, cols, order.data(), panel, panel + 1, out.data());
    return true;
}

}  // namespace

int main() {
    exact::Random random;
    int done = 0;
    for (size_t to = 0; to < std::size(LAYOUTS); ++to)
        for (const char* from : FROM) {
            int here = 0;
            for (int rows : {1, 15, 16, 17, 31, 33})
                for (int cols : {1, 31, 32, 33, 96, 256, 512, 1280}) here += pack(static_cast<Format>(to), from, rows, cols, random);
            if (here) std::printf("%s from %s\n", LAYOUTS[to].name, from);
            done += here;
        }
    return done ? 0 : 1;
}
