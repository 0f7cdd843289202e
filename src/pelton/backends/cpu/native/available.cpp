#include "available.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "memory.h"

namespace pelton {

namespace {

// A matrix of random bits that are numbers in its format, and rows for it.
struct Trial {
    static constexpr int BLOCKS = 3, ROWS = 18, PANELS = 2, COLS = BLOCKS * BLOCK;

    explicit Trial(Format format)
        : memory(panel_bytes(format, BLOCKS) * PANELS), matrix{format, PANELS * PANEL, COLS, BLOCKS, PANELS, panel_bytes(format, BLOCKS), memory.data()} {
        for (size_t i = 0; i < memory.size(); i += 2) {
            const uint16_t half = format == Format::bf16 ? bf16() : static_cast<uint16_t>(next() & 0xbbff);  // below 2 in size
            std::memcpy(memory.data() + i, &half, 2);
        }
        for (float& number : x) {
            const uint32_t bits = uint32_t{bf16()} << 16;
            std::memcpy(&number, &bits, 4);
        }
        for (size_t i = 0; i < ROWS * BLOCKS * 3; ++i) sums[i] = static_cast<float>(static_cast<int>(next() % 2001) - 1000);
    }

    uint32_t next() { return static_cast<uint32_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 33); }

    // One in four is a denormal number, one in four so small that products are.
    uint16_t bf16() {
        const uint32_t r = next(), kind = r & 3, exponent = kind == 0 ? 0 : kind == 1 ? 40 + (r >> 2 & 31) : 120 + (r >> 2 & 7);
        return static_cast<uint16_t>((r >> 8 & 0x807f) | exponent << 7);
    }

    void multiply(const Kernels& kernels, float* out) {
        MatmulArgs args{&matrix, 0, x, COLS, sums, BLOCKS * 3, ROWS, out, PANELS * PANEL};
        args.panels = PANELS;
        if (kernels.narrow) {
            kernels.narrow(x, ROWS * COLS, x16);
            args.x16 = x16;
            args.x16_stride = COLS;
        }
        kernels.matmul(args);
    }

    uint64_t state = 20240607;
    Memory memory;
    Matrix matrix;
    alignas(64) float x[ROWS * COLS];
    alignas(64) uint16_t x16[ROWS * COLS];
    float sums[ROWS * BLOCKS * 3];
};

#if defined(__x86_64__)

// No code of a set runs, not even what hands out its table, where the set cannot.
InstructionSet usable(const char* name, const Kernels& (*kernels)(), const std::string& refusal) {
    return {name, refusal.empty() ? &kernels() : nullptr, refusal};
}

std::string missing(std::initializer_list<std::pair<const char*, bool>> features) {
    for (auto [name, present] : features)
        if (!present) return std::string("this CPU has no ") + name;
    return "";
}

#if defined(PELTON_HAS_AMX)

// Tile registers are 8 KiB more to save for a thread: Linux gives them to a process that asks, once for all its threads.
std::string tiles_refused() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low >> 17 & 3) != 3) return "the operating system does not keep tile registers";
#if defined(__linux__)
    constexpr long ASK = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM
    if (syscall(SYS_arch_prctl, ASK, TILE_DATA)) return std::string("Linux refuses the tile registers: ") + std::strerror(errno);
    return "";
#else
    return "this operating system cannot be asked for tile registers";
#endif
}

std::string amx_refused() {
    std::string reason = tiles_refused();
    if (reason.empty() && !products_agree(kernels_amx())) reason = "the self-test failed: products differ from the portable kernels'";
    return reason;
}

#else

std::string amx_refused() { return "this build has no kernels for it: its compiler knew no AMX"; }

#endif

std::string amx_missing() {
    uint32_t a = 0, b = 0, c = 0, d = 0, first = 0;
    __get_cpuid(1, &a, &b, &first, &d);
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
    return missing({{"amx-tile", d >> 24 & 1}, {"amx-bf16", d >> 22 & 1}, {"amx-int8", d >> 25 & 1}, {"xgetbv", first >> 27 & 1}});
}

// The order of its two sums is not pinned by every manual.
InstructionSet bf16(const std::string& vnni) {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    __get_cpuid_count(7, 1, &a, &b, &c, &d);
    std::string reason = vnni.empty() ? missing({{"avx512_bf16", a >> 5 & 1}}) : vnni;
    if (!reason.empty()) return {"avx512_bf16", nullptr, reason};
    if (products_agree(kernels_avx512_bf16())) return {"avx512_bf16", &kernels_avx512_bf16(), ""};
    return {"avx512_bf16", nullptr, "the self-test failed: products differ from the portable kernels'", true};
}

InstructionSet amx(const std::string& vnni) {  // whose kernels it is built on
    std::string reason = vnni.empty() ? amx_missing() : vnni;
    if (!reason.empty()) return {"amx", nullptr, reason};
    reason = amx_refused();
#if defined(PELTON_HAS_AMX)
    if (reason.empty()) return {"amx", &kernels_amx(), reason};
#endif
    return {"amx", nullptr, reason, true};
}

std::vector<InstructionSet> found() {
    __builtin_cpu_init();
    const std::string avx512 = missing({{"avx512f", __builtin_cpu_supports("avx512f")},
                                        {"avx512bw", __builtin_cpu_supports("avx512bw")},
                                        {"avx512dq", __builtin_cpu_supports("avx512dq")},
                                        {"avx512vl", __builtin_cpu_supports("avx512vl")}});
    const std::string vnni = avx512.empty() ? missing({{"avx512_vnni", __builtin_cpu_supports("avx512vnni")}}) : avx512;
    const std::string avx2 =
        missing({{"avx2", __builtin_cpu_supports("avx2")}, {"fma", __builtin_cpu_supports("fma")}, {"f16c", __builtin_cpu_supports("f16c")}});
    return {
        amx(vnni),
        bf16(vnni),
        usable("avx512_vnni", kernels_avx512_vnni, vnni),
        usable("avx512", kernels_avx512, avx512),
        usable("avx2", kernels_avx2, avx2),
        {"portable", &kernels_portable(), ""},
    };
}

#elif defined(__aarch64__)

std::vector<InstructionSet> found() { return {{"neon", &kernels_neon(), ""}, {"portable", &kernels_portable(), ""}}; }

#else

std::vector<InstructionSet> found() { return {{"portable", &kernels_portable(), ""}}; }

#endif

}  // namespace

bool products_agree(const Kernels& kernels) {
    FlushDenormals flush;
    for (Format format : {Format::bf16, Format::q4m}) {
        Trial trial(format);
        float expected[Trial::ROWS * Trial::PANELS * PANEL], given[Trial::ROWS * Trial::PANELS * PANEL];
        trial.multiply(kernels_portable(), expected);
        trial.multiply(kernels, given);
        if (std::memcmp(expected, given, sizeof given) != 0) return false;
    }
    return true;
}

const std::vector<InstructionSet>& instruction_sets() {
    static const std::vector<InstructionSet> all = found();
    return all;
}

const Kernels& kernels_named(const std::string& name) {
    for (const InstructionSet& set : instruction_sets()) {
        if (name != set.name) continue;
        if (!set.refusal.empty()) throw std::invalid_argument(name + " cannot run here: " + set.refusal);
        return *set.kernels;
    }
    throw std::invalid_argument("unknown instruction set " + name);
}

}  // namespace pelton
