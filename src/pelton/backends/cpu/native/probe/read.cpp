// How fast memory gives what is read, and takes what is copied: wide loads with prefetch, in pieces as a step has them.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "probe.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pelton {

namespace {

constexpr size_t LINE = 64;
constexpr size_t PIECE = size_t{128} << 10;  // what is handed out at a time: about a run of panels
constexpr size_t AHEAD = size_t{4} << 10;    // how far ahead lines are asked for
constexpr double SAMPLE_SECONDS = 1e-3;      // the least that a sample takes

uint64_t sum_plain(const uint8_t* from, size_t bytes) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(from);
    uint64_t sums[8] = {};
    for (size_t i = 0; i < bytes / 8; i += 8) {
        __builtin_prefetch(from + i * 8 + AHEAD);
        for (size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
    }
    uint64_t sum = 0;
    for (uint64_t one : sums) sum += one;
    return sum;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] uint64_t sum_avx2(const uint8_t* from, size_t bytes) {
    __m256i sums[8];
    for (auto& sum : sums) sum = _mm256_setzero_si256();
    for (size_t at = 0; at < bytes; at += 4 * LINE)
        for (size_t i = 0; i < 8; ++i) {
            if (i % 2 == 0) __builtin_prefetch(from + at + i * 32 + AHEAD);
            sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(from + at + i * 32)));
        }
    __m256i sum = sums[0];
    for (size_t i = 1; i < 8; ++i) sum = _mm256_add_epi64(sum, sums[i]);
    alignas(32) uint64_t lanes[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

[[gnu::target("avx512f")]] uint64_t sum_avx512(const uint8_t* from, size_t bytes) {
    __m512i sums[4];
    for (auto& sum : sums) sum = _mm512_setzero_si512();
    for (size_t at = 0; at < bytes; at += 4 * LINE)
        for (size_t i = 0; i < 4; ++i) {
            __builtin_prefetch(from + at + i * LINE + AHEAD);
            sums[i] = _mm512_add_epi64(sums[i], _mm512_load_si512(from + at + i * LINE));
        }
    alignas(64) uint64_t lanes[8];
    _mm512_store_si512(lanes, _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3])));
    uint64_t sum = 0;
    for (uint64_t lane : lanes) sum += lane;
    return sum;
}
#endif

using Sum = uint64_t (*)(const uint8_t*, size_t);

// The widest loads there are; whatever path the kernels are forced to, memory gives the same.
Sum widest() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return sum_avx512;
    if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
    return sum_plain;
}

// Keeps the compiler from leaving out what nobody reads.
void keep(uint64_t value) { asm volatile("" ::"r"(value) : "memory"); }

size_t pieces_of(size_t bytes) { return (bytes + PIECE - 1) / PIECE; }

// Calls f(first byte, bytes) for the pieces of worker `worker`, or for those it takes from `next`.
template <class F>
void for_pieces(size_t bytes, int worker, int threads, std::atomic<size_t>* next, F f) {
    const size_t pieces = pieces_of(bytes), count = static_cast<size_t>(threads), id = static_cast<size_t>(worker);
    auto piece = [&](size_t i) { f(i * PIECE, std::min(PIECE, bytes - i * PIECE)); };
    if (next)
        for (size_t i = next->fetch_add(1, std::memory_order_relaxed); i < pieces; i = next->fetch_add(1, std::memory_order_relaxed)) piece(i);
    else
        for (size_t i = pieces * id / count; i < pieces * (id + 1) / count; ++i) piece(i);
}

// Samples of `amount` (of one pass) per second. passes(count) gives the seconds of so many.
template <class F>
std::vector<double> timed(double seconds, double amount, F passes) {
    passes(1);
    const double one = std::max(passes(1), 1e-7);
    const int count = std::clamp(static_cast<int>(std::max(SAMPLE_SECONDS, seconds / PROBE_MAX_SAMPLES) / one), 1, 100000);
    const int samples = std::clamp(static_cast<int>(seconds / (one * count)), PROBE_MIN_SAMPLES, PROBE_MAX_SAMPLES);
    std::vector<double> out;
    for (int i = 0; i < samples; ++i) out.push_back(amount * count / passes(count));
    return out;
}

}  // namespace

Probe::Probe(const std::vector<int>& cores) : pool_(cores) {}

void Probe::reserve(size_t bytes) {
    bytes = (bytes + 4 * LINE - 1) / (4 * LINE) * (4 * LINE);
    if (bytes <= written_) return;
    written_ = 0;
    memory_ = Memory();  // never both at once
    memory_ = Memory(bytes + PIECE);
    each([&](int worker) {
        for_pieces(bytes, worker, threads(), nullptr, [&](size_t at, size_t n) { std::memset(memory_.data() + at, 1 + worker % 100, n); });
    });
    written_ = bytes;
}

double Probe::read_once(size_t bytes, bool pieces) {
    bytes = std::max(4 * LINE, bytes / (4 * LINE) * (4 * LINE));
    reserve(bytes);
    const Sum sum = widest();
    std::atomic<size_t> next{0};
    const double start = probe_seconds();
    each([&](int worker) {
        uint64_t total = 0;
        for_pieces(bytes, worker, threads(), pieces ? &next : nullptr, [&](size_t at, size_t n) { total += sum(memory_.data() + at, n); });
        keep(total);
    });
    return probe_seconds() - start;
}

std::vector<double> Probe::read(size_t bytes, bool pieces, double seconds) {
    bytes = std::max(4 * LINE, bytes / (4 * LINE) * (4 * LINE));
    reserve(bytes);
    const Sum sum = widest();
    auto passes = [&](int count) {
        std::vector<std::atomic<size_t>> next(static_cast<size_t>(count));
        const double start = probe_seconds();
        each([&](int worker) {
            uint64_t total = 0;
            for (auto& at : next)
                for_pieces(bytes, worker, threads(), pieces ? &at : nullptr, [&](size_t first, size_t n) { total += sum(memory_.data() + first, n); });
            keep(total);
        });
        return probe_seconds() - start;
    };
    return timed(seconds, static_cast<double>(bytes), passes);
}

std::vector<double> Probe::copy(size_t bytes, double seconds) {
    const size_t half = std::max(4 * LINE, bytes / 2 / (4 * LINE) * (4 * LINE));
    reserve(2 * half);
    auto passes = [&](int count) {
        const double start = probe_seconds();
        each([&](int worker) {
            for (int pass = 0; pass < count; ++pass)
                for_pieces(half, worker, threads(), nullptr,
                           [&](size_t at, size_t n) { std::memcpy(memory_.data() + half + at, memory_.data() + at, n); });
        });
        return probe_seconds() - start;
    };
    return timed(seconds, static_cast<double>(half), passes);
}

}  // namespace pelton
