#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include "kernels.h"

namespace pelton {

namespace {

constexpr int SPINS = 2000;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits until `value` differs from `old`.
void await_change(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int i = 0; i < SPINS; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

void pin(int core) {
#if defined(__linux__)
    if (core < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a refusal leaves the thread where it may run
#else
    (void)core;
#endif
}

}  // namespace

Pool::Pool(const std::vector<int>& cores) {
    for (size_t i = 1; i < cores.size(); ++i) workers_.emplace_back(&Pool::loop, this, static_cast<int>(i), cores[i]);
}

Pool::~Pool() {
    stopping_.store(true, std::memory_order_release);
    started_.fetch_add(1, std::memory_order_release);
    started_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::run(void (*work)(void*, int), void* context) {
    work_ = work;
    context_ = context;
    started_.fetch_add(1, std::memory_order_release);
    started_.notify_all();
    {
        FlushDenormals flush;
        work(context, 0);
    }
    barrier();
}

void Pool::loop(int worker, int core) {
    pin(core);
    FlushDenormals flush;
    uint32_t seen = 0;
    for (;;) {
        await_change(started_, seen);
        ++seen;
        if (stopping_.load(std::memory_order_acquire)) return;
        work_(context_, worker);
        barrier();
    }
}

void Pool::barrier() {
    if (workers_.empty()) return;
    uint32_t generation = passed_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == workers_.size()) {
        arrived_.store(0, std::memory_order_relaxed);
        passed_.fetch_add(1, std::memory_order_release);
        passed_.notify_all();
    } else {
        await_change(passed_, generation);
    }
}

}  // namespace pelton
