#include "threads/pool.h"

#include <pthread.h>
#include <sched.h>

#include "kernels.h"

namespace pelton {

namespace {

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

uint32_t await_count(const std::atomic<uint32_t>& count, uint32_t wanted, uint64_t spin_ns) {
    uint32_t now = count.load(std::memory_order_acquire);
    if (reached(now, wanted)) return now;
    for (const uint64_t end = now_ns() + spin_ns; !reached(now, wanted) && now_ns() < end; now = count.load(std::memory_order_acquire)) pause();
    for (; !reached(now, wanted); now = count.load(std::memory_order_acquire)) count.wait(now, std::memory_order_acquire);
    return now;
}

Pool::Pool(const std::vector<int>& cores) : seats_(std::make_unique<Seat[]>(cores.size())) {
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
    runs_.fetch_add(1);
    runs_.notify_all();
    for (auto& worker : workers_) worker.join();
}

// Either the caller sees that a worker is inside, or the worker sees that the run is over: all four accesses stand in one order.
void Pool::run(void (*work)(void*, int), void* context) {
    work_ = work;
    context_ = context;
    runs_.fetch_add(1);
    runs_.notify_all();
    {
        FlushDenormals flush;
        work(context, 0);
    }
    runs_.fetch_add(1);
    for (size_t i = 1; i <= workers_.size(); ++i) {
        const uint32_t moves = seats_[i].moves.load();
        if (moves % 2) await_count(seats_[i].moves, moves + 1);
    }
}

void Pool::leave(int worker) {
    if (worker == 0) return;
    std::atomic<uint32_t>& moves = seats_[static_cast<size_t>(worker)].moves;
    moves.fetch_add(1);
    moves.notify_one();
}

bool Pool::enter(int worker) {
    if (worker == 0) return true;  // it is who ends the run
    Seat& seat = seats_[static_cast<size_t>(worker)];
    seat.moves.fetch_add(1);
    if (runs_.load() == seat.run) return true;
    leave(worker);
    return false;
}

void Pool::loop(int worker, int core) {
    pin(core);
    FlushDenormals flush;
    Seat& seat = seats_[static_cast<size_t>(worker)];
    for (uint32_t next = 1;; next = (seat.run + 1) | 1) {
        seat.run = await_count(runs_, next);
        if (stopping_.load(std::memory_order_acquire)) return;
        if (seat.run % 2 == 0 || !enter(worker)) continue;
        work_(context_, worker);
        if (seat.moves.load(std::memory_order_relaxed) % 2) leave(worker);
    }
}

}  // namespace pelton
