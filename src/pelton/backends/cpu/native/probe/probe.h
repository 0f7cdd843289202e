// Measuring this machine with the means of a step: its worker threads, its way of asking for memory, its kernels.
// It computes nothing for anybody. Invariant: a measurement ends within about its time, and leaves no thread busy.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "threads/pool.h"

namespace pelton {

// Seconds on the monotonic clock.
inline double probe_seconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

constexpr int PROBE_MIN_SAMPLES = 3, PROBE_MAX_SAMPLES = 15;

// Registers alone: an instruction that multiplies and adds, without memory behind it.
struct Peak {
    const char* name;
    uint64_t (*run)(uint64_t rounds);  // operations done (a multiply-add is two)
};

// Those this processor and this build have.
std::vector<Peak> peaks();

class Probe {
   public:
    // `cores` as for Pool.
    explicit Probe(const std::vector<int>& cores);

    int threads() const { return pool_.threads(); }

    // Makes sure of `bytes` of memory that has been written to, by the worker that reads it where pieces are fixed.
    // std::bad_alloc where the system has none.
    void reserve(size_t bytes);

    // Seconds of one pass of all workers over the first `bytes`; `pieces`: pieces go to whoever is free.
    double read_once(size_t bytes, bool pieces);

    // Samples of bytes per second, for about `seconds`.
    std::vector<double> read(size_t bytes, bool pieces, double seconds);

    // Likewise of bytes copied (each is read once and written once), from one half of `bytes` to the other.
    std::vector<double> copy(size_t bytes, double seconds);

    // Samples of K-blocks of panels that the matmul kernel takes per second with so many rows; each worker has a set of
    // weights of about PRODUCT_BYTES to itself, which stays in its L2 cache. `int8`: by matmul_int8, with rows of 8 bits.
    std::vector<double> products(const Kernels& kernels, Format format, int rows, bool int8, double seconds);

    // Samples of operations per second.
    std::vector<double> peak(const Peak& peak, double seconds);

   private:
    template <class F>
    void each(F work);  // work(worker) on all workers at once
    template <class F>
    std::vector<double> rates(double seconds, F work);  // work(worker, until) gives what was done per second

    Pool pool_;
    Memory memory_;
    size_t written_ = 0;
};

constexpr int PRODUCT_BLOCKS = 16;                      // K of 512
constexpr size_t PRODUCT_BYTES = size_t{192} << 10;     // of the weights of one worker

template <class F>
void Probe::each(F work) {
    pool_.run([](void* context, int worker) { (*static_cast<F*>(context))(worker); }, &work);
}

template <class F>
std::vector<double> Probe::rates(double seconds, F work) {
    const int samples = PROBE_MIN_SAMPLES + static_cast<int>(seconds / 0.02);
    const int count = samples < PROBE_MAX_SAMPLES ? samples : PROBE_MAX_SAMPLES;
    std::vector<double> out;
    std::vector<double> done(static_cast<size_t>(threads()));
    for (int i = -1; i < count; ++i) {  // the first warms up and does not count
        const double until = probe_seconds() + seconds / (count + 1);
        each([&](int worker) { done[static_cast<size_t>(worker)] = work(worker, until); });
        double sum = 0;
        for (double one : done) sum += one;
        if (i >= 0) out.push_back(sum);
    }
    return out;
}

}  // namespace pelton
