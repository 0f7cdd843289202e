// The thread pool: many short runs with fewer and more threads than cores, starts and ends of pools among them. Compiled with
// ThreadSanitizer, it fails by itself. What it is not: a measure of speed.
#include <atomic>
#include <cstdio>
#include <vector>

#include "threads/pool.h"

using namespace pelton;

namespace {

// What each worker leaves is plain memory: only the pool's own order makes it safe to read.
struct Job {
    std::vector<long> written;
    std::atomic<int> next{0};
    int pieces = 0;
    long run = 0;
};

void work(void* context, int worker) {
    Job& job = *static_cast<Job*>(context);
    for (int i = job.next.fetch_add(1); i < job.pieces; i = job.next.fetch_add(1)) ++job.written[static_cast<size_t>(worker)];
}

bool runs(int threads, int count) {
    Pool pool(std::vector<int>(static_cast<size_t>(threads), -1));
    Job job;
    job.written.resize(static_cast<size_t>(threads));
    for (job.run = 0; job.run < count; ++job.run) {
        job.pieces = static_cast<int>(job.run % 9);
        job.next.store(0);
        long before = 0, after = 0;
        for (long n : job.written) before += n;
        pool.run(work, &job);
        for (long n : job.written) after += n;
        if (after - before != job.pieces) return false;
    }
    return true;
}

}  // namespace

int main() {
    for (int threads : {1, 2, 3, 8})
        for (int pools = 0; pools < 5; ++pools)
            if (!runs(threads, threads > 2 ? 60 : 400)) return std::printf("%d threads: pieces lost\n", threads), 1;
    std::printf("pool\n");
    return 0;
}
