// A pool of worker threads that run one function together. The calling thread is worker 0.
// Waiting spins briefly, then parks: a pure spin falls off a cliff as soon as another process wants the core, and
// parking alone costs several microseconds at each of the few hundred stages of a step.
// Invariant: nobody waits for a worker that is not in the middle of something, as one is that lost its core to another
// process: a run is over without it, and when it comes back it finds that out before it touches anything of the run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace pelton {

inline uint64_t now_ns() {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Whether a count that only grows, and goes round, has come to `wanted`, or further.
inline bool reached(uint32_t count, uint32_t wanted) { return static_cast<int32_t>(count - wanted) >= 0; }

// About what being parked and woken takes. If another process wants the core, who spins longer has less of its share left
// when there is work.
constexpr uint64_t SPIN_NS = 4000;

// Waits until such a count has come to `wanted`, and says where it is. Whoever brings it there notifies.
uint32_t await_count(const std::atomic<uint32_t>& count, uint32_t wanted, uint64_t spin_ns = SPIN_NS);

class Pool {
   public:
    // `cores[i]` is the core worker i is pinned to, -1: not pinned. Worker 0 is the caller and is never pinned.
    // Throws std::system_error where a thread cannot start.
    explicit Pool(const std::vector<int>& cores);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls work(context, worker) on the caller and on each worker that comes before the caller's call is over; returns
    // when it is over and no worker is inside. `work` must not throw.
    void run(void (*work)(void*, int), void* context);

    // For `work`, around a wait for others. A worker is inside from the call of `work` until it leaves; outside it touches
    // nothing that the run was given. Where `enter` says false the run is over, and `work` has to return.
    void leave(int worker);
    bool enter(int worker);

   private:
    void loop(int worker, int core);
    void stop();

    struct alignas(64) Seat {
        std::atomic<uint32_t> moves{0};  // in and out: odd while inside
        uint32_t run = 0;                // the worker's own: `runs_` at the run that it takes part in
    };
    std::vector<std::thread> workers_;
    std::unique_ptr<Seat[]> seats_;
    void (*work_)(void*, int) = nullptr;
    void* context_ = nullptr;
    alignas(64) std::atomic<uint32_t> runs_{0};  // begun and ended: odd while one is under way
    std::atomic<bool> stopping_{false};
};

}  // namespace pelton
