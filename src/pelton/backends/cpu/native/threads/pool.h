// A pool of worker threads that run one function together. The calling thread is worker 0.
// Waiting spins briefly, then parks: a pure spin falls off a cliff as soon as another process wants the core, and
// parking alone costs several microseconds at each of the few hundred stages of a step.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace pelton {

inline uint64_t now_ns() {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Waits until `value` is `wanted`, and says for how many nanoseconds. Whoever brings it there calls notify_all.
uint64_t await_value(const std::atomic<uint32_t>& value, uint32_t wanted);

class Pool {
   public:
    // `cores[i]` is the core worker i is pinned to, -1: not pinned. Worker 0 is the caller and is never pinned.
    // Throws std::system_error where a thread cannot start.
    explicit Pool(const std::vector<int>& cores);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls work(context, worker) on every worker and returns when all are done. `work` must not throw.
    void run(void (*work)(void*, int), void* context);

   private:
    void loop(int worker, int core);
    void stop();

    std::vector<std::thread> workers_;
    void (*work_)(void*, int) = nullptr;
    void* context_ = nullptr;
    alignas(64) std::atomic<uint32_t> started_{0};
    alignas(64) std::atomic<uint32_t> finished_{0};  // workers that are through with all runs so far
    std::atomic<bool> stopping_{false};
};

}  // namespace pelton
