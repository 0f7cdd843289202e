#include "threads/pool.h"

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

uint64_t await_value(const std::atomic<uint32_t>& value, uint32_t wanted) {
    if (value.load(std::memory_order_acquire) == wanted) return 0;
    const uint64_t began = now_ns();
    for (int i = 0; i < SPINS; ++i) {
        if (value.load(std::memory_order_acquire) == wanted) return now_ns() - began;
        pause();
    }
    for (uint32_t now = value.load(std::memory_order_acquire); now != wanted; now = value.load(std::memory_order_acquire))
        value.wait(now, std::memory_order_acquire);
    return now_ns() - began;
}

Pool::Pool(const std::vector<int>& cores) {
    try {
        for (size_t i = 1; i < cores.size(); ++i) workers_.emplace_back(&Pool::loop, this, static_cast<int>(i), cores[i]);
    } catch (...) {
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
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
    await_value(finished_, started_.load(std::memory_order_relaxed) * static_cast<uint32_t>(workers_.size()));
}

void Pool::loop(int worker, int core) {
    pin(core);
    FlushDenormals flush;
    for (uint32_t run = 1;; ++run) {
        await_value(started_, run);
        if (stopping_.load(std::memory_order_acquire)) return;
        work_(context_, worker);
        finished_.fetch_add(1, std::memory_order_acq_rel);
        finished_.notify_all();
    }
}

}  // namespace pelton
