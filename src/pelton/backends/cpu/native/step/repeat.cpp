// Several decode steps in one call: each row's token is the next step's input, with nothing of Python in between.
// The bits are those of as many calls; what a call of one step could not tell in time ends the series early.
#include <poll.h>

#include <algorithm>

#include "step/exec.h"

namespace pelton {

namespace {

bool readable(int file) {
    pollfd one{file, POLLIN, 0};
    return file >= 0 && poll(&one, 1, 0) > 0;
}

bool any_fault(const Step& step) {
    return std::any_of(step.out_faults, step.out_faults + step.num_rows, [](int32_t fault) { return fault != 0; });
}

// Whether a row has drawn one of the tokens that end it.
bool any_stop(const Step& step, const Repeat& repeat) {
    for (int r = 0; r < step.num_rows; ++r) {
        const int32_t *first = repeat.stops + repeat.stop_offsets[r], *last = repeat.stops + repeat.stop_offsets[r + 1];
        if (std::find(first, last, step.out_tokens[r]) != last) return true;
    }
    return false;
}

}  // namespace

// Ends early behind a step in which a row drew one of its stops, or once `wake` is readable. A step with a fault is not
// counted unless it is the first: its rows draw the same again in the next call, which the fault then belongs to alone.
int Executable::run_many(const Step& first, const Repeat& repeat) {
    const size_t rows = static_cast<size_t>(first.num_rows);
    positions_.assign(first.positions, first.positions + rows);
    starts_.assign(first.starts, first.starts + rows);
    sampling_.assign(first.sampling, first.sampling + rows);
    Step step = first;
    step.positions = positions_.data();
    step.starts = starts_.data();
    step.sampling = sampling_.data();
    for (int done = 0;;) {
        run(step);
        if (any_fault(step)) return std::max(done, 1);
        if (++done == repeat.steps || any_stop(step, repeat) || readable(repeat.wake)) return done;
        tokens_.assign(step.out_tokens, step.out_tokens + rows);
        step.tokens = tokens_.data();
        for (size_t r = 0; r < rows; ++r) {
            ++positions_[r];
            ++starts_[r];
            ++sampling_[r].place;
        }
        step.num_block_ops = 0;
        step.out_tokens += rows;
        step.out_ranks += rows;
        step.out_faults += rows;
        step.out_logprobs += rows;
        step.top_ids += rows * static_cast<size_t>(step.top);
        step.top_logprobs += rows * static_cast<size_t>(step.top);
    }
}

}  // namespace pelton
