// Steps of every kind take no memory from the system once such a step was run: allocations of all threads are counted.
// What it is not: for a sanitizer, which has an allocator of its own.
#include <atomic>
#include <cstdio>

#include "sanitize/model.h"

using namespace pelton;

namespace {

std::atomic<long> allocations{0};
std::vector<char> seen;

}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
    ++allocations;
    return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
    ++allocations;
    return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
    ++allocations;
    return __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
    ++allocations;
    return __libc_memalign(alignment, size);
}
}

namespace {

// How many allocations the second of two such calls makes.
template <class F>
long second(F call) {
    call();
    const long before = allocations.load();
    call();
    return allocations.load() - before;
}

long of_a_batch(Model& model, bool tree) {
    const std::vector<int32_t> first{1, 2, 3, 4}, other{1, 2, 5, 6};
    Asked asked;
    asked.sequence(100, 1, first, 1);
    asked.sequence(70, 6, other, 6);  // shares two blocks with the first
    asked.sequence(0, 30, {7, 8}, 1);
    Step step = asked.step();
    std::vector<int32_t> parents;
    for (int count : asked.counts)
        for (int i = 0; i < count; ++i) parents.push_back(count == 6 ? i / 2 - (i < 2) : i - 1);
    if (tree) step.parents = parents.data();
    return second([&] { model.executable.run(step); });
}

long of_a_series(Model& model) {
    constexpr int STEPS = 5;
    const int32_t offsets[] = {0, 0, 0};
    Asked asked;
    asked.sequence(64, 1, {1, 2, 9}, 1);
    asked.sequence(32, 1, {10, 11}, 1);
    const Step step = asked.step(STEPS);
    return second([&] { model.executable.run_many(step, {STEPS, offsets, offsets, -1}); });
}

}  // namespace

int main() {
    if (second([] { std::vector<char>(1 << 20).swap(seen); }) < 1) return std::printf("allocations are not seen\n"), 1;
    for (int threads : {1, 3}) {
        Model model(threads);
        const long batch = of_a_batch(model, false), tree = of_a_batch(model, true), series = of_a_series(model);
        if (batch || tree || series)
            return std::printf("%d threads: %ld allocations in a step, %ld in one with a tree, %ld in a series\n", threads, batch, tree, series), 1;
    }
    std::printf("none\n");
    return 0;
}
