// The attention of a step is handed out the largest piece first, and every row meets each tile that it sees once: sequences
// of all lengths, some of them with common blocks, with few and with many threads. What it is not: attention.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

#include "step/attend_plan.h"

using namespace pelton;

namespace {

constexpr int HEADS = 2;

// `common`: blocks at the start that all sequences have.
bool good(const std::vector<int>& starts, const std::vector<int>& counts, int common, int threads, size_t& shared) {
    const int sequences = static_cast<int>(starts.size());
    std::vector<int32_t> indices, tables, offsets{0};
    int64_t wanted = 0, found = 0;
    for (int s = 0; s < sequences; ++s) {
        const int blocks = (starts[s] + counts[s] + BLOCK - 1) / BLOCK;
        for (int b = 0; b < blocks; ++b) tables.push_back(b < common ? b : 1000 * (s + 1) + b);
        offsets.push_back(static_cast<int32_t>(tables.size()));
        for (int i = 0; i < counts[s]; ++i) indices.push_back(starts[s] + i);
        for (int done = 0; done < counts[s]; done += ATTEND_ROWS) {  // rows that go together take the tiles that the last one sees
            const int rows = std::min(ATTEND_ROWS, counts[s] - done);
            wanted += int64_t{HEADS} * rows * ((starts[s] + done + rows - 1) / TILE + 1);
        }
    }
    AttendPlan plan;
    plan.make({0, HEADS, 3, 66, threads, size_t{1} << 24}, {sequences, starts.data(), counts.data(), indices.data(), offsets.data(), tables.data(), nullptr});
    for (const auto* items : {&plan.shared, &plan.own}) {
        if (!std::is_sorted(items->begin(), items->end(), [](const AttendItem& a, const AttendItem& b) { return a.size > b.size; })) return false;
        for (const AttendItem& item : *items) found += item.size;
    }
    shared = plan.shared.size();
    return found == wanted;
}

}  // namespace

int main() {
    size_t shared = 0;
    for (int threads : {1, 2, 64}) {
        if (!good({5, 900, 70, 3000, 0, 64, 1023}, {1, 1, 1, 1, 200, 1, 30}, 0, threads, shared) || shared) return std::printf("lengths\n"), 1;
        if (!good({2500}, {1}, 0, threads, shared) || shared) return std::printf("one row\n"), 1;
        if (!good({0}, {512}, 0, threads, shared) || shared) return std::printf("a prompt\n"), 1;
        if (!good({900, 700, 3000, 513}, {1, 1, 1, 6}, 16, threads, shared) || !shared) return std::printf("common blocks\n"), 1;
    }
    std::printf("plan\n");
    return 0;
}
