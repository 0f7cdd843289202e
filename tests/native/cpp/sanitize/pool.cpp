// The thread pool: many short runs with fewer and more threads than cores, starts and ends of pools among them. Compiled with
// ThreadSanitizer, it fails by itself. What it is not: a measure of speed.
#include <atomic>
#include <cstdio>
#include <memory>
#include <vector>

#include "threads/pool.h"

using namespace pelton;

namespace {

// What each worker leaves is plain memory: only the pool's own order makes it safe to read.
struct Job {
    std::vector<long> written;
    std::atomic<int> next{0};
    int pieces = 0;
};

void work(void* context, int worker) {
    Job& job = *static_cast<Job*>(context);
    for (int i = job.next.fetch_add(1); i < job.pieces; i = job.next.fetch_add(1)) ++job.written[static_cast<size_t>(worker)];
}

// Each run has a job of its own, gone when the run is over.
bool runs(int threads, int count) {
    Pool pool(std::vector<int>(static_cast<size_t>(threads), -1));
    for (int run = 0; run < count; ++run) {
        auto job = std::make_unique<Job>();
        job->written.resize(static_cast<size_t>(threads));
        job->pieces = run % 9;
        pool.run(work, job.get());
        long done = 0;
        for (long n : job->written) done += n;
        if (done != job->pieces) return false;
    }
    return true;
}

// A worker that leaves, and comes back in the next run.
struct Absence {
    Pool& pool;
    std::atomic<uint32_t>& away;  // 1: it has left; 2: it may come back
    bool back = false;
};

void leave_and_return(void* context, int worker) {
    auto& absence = *static_cast<Absence*>(context);
    std::atomic<uint32_t>& away = absence.away;
    if (worker == 0) {
        await_count(away, 1);
        return;
    }
    Pool& pool = absence.pool;
    pool.leave(worker);
    away.store(1);
    away.notify_all();
    await_count(away, 2);
    if (pool.enter(worker)) absence.back = true;  // would be a job that is gone
}

// Its own run is over without it, so are others, and it takes part in the one after them.
bool absent() {
    std::atomic<uint32_t> away{0};
    Pool pool({-1, -1});
    auto absence = std::make_unique<Absence>(Absence{pool, away});
    pool.run(leave_and_return, absence.get());
    if (absence->back) return false;
    absence.reset();
    for (int run = 0; run < 3; ++run) {
        Job job;
        job.written.resize(2);
        job.pieces = 5;
        pool.run(work, &job);
        if (job.written[0] != 5) return false;
    }
    away.store(2);
    away.notify_all();
    std::atomic<uint32_t> met{0};
    pool.run([](void* count, int worker) {
        auto& there = *static_cast<std::atomic<uint32_t>*>(count);
        if (worker == 1) there.store(1), there.notify_all();
        else await_count(there, 1);
    }, &met);
    return met.load() == 1;
}

}  // namespace

int main() {
    for (int threads : {1, 2, 3, 8})
        for (int pools = 0; pools < 5; ++pools)
            if (!runs(threads, threads > 2 ? 60 : 400)) return std::printf("%d threads: pieces lost\n", threads), 1;
    for (int i = 0; i < 20; ++i)
        if (!absent()) return std::printf("a run that waits for a worker that is not in it, or is seen by it later\n"), 1;
    std::printf("pool\n");
    return 0;
}
