// A loop whose parts are shared out among threads: what the kernels use instead of OpenMP.
//
// Parts are claimed one at a time, and the caller claims too. So a thread that the system has taken off its processor costs
// nothing unless it holds a part, and on a busy machine the caller does the work alone. Between loops the threads spin for
// some microseconds, since the next loop of a step follows soon; then they sleep.
#pragma once

#include <cstdint>

namespace ringcast {

// One part of a loop. `worker` is 0 for the caller and below `threads` for all; no two parts run with the same one at a time.
using Part = void (*)(void* context, int64_t index, int worker);

// Runs parts 0 to `count` - 1 on up to `threads` threads, the caller among them; returns when all have run. If another thread
// is running a loop, the caller runs all its parts itself.
void run_parts(int64_t count, int threads, Part part, void* context);

namespace {

// The same for a callable (index, worker).
template <class Body>
static inline void parallel_for(int64_t count, int threads, Body& body) {
    if (threads < 2 || count < 2) {
        for (int64_t index = 0; index < count; ++index) body(index, 0);
        return;
    }
    run_parts(
        count, threads, [](void* context, int64_t index, int worker) { (*static_cast<Body*>(context))(index, worker); },
        &body);
}

// The same for a callable (row), where rows are small and many: each part is a run of them.
template <class Body>
static inline void parallel_rows(int64_t rows, int threads, Body& body) {
    int64_t parts = threads < 2 ? 1 : rows < 4 * threads ? rows : 4 * threads;
    auto part = [&](int64_t index, int) {
        for (int64_t row = rows * index / parts; row < rows * (index + 1) / parts; ++row) body(row);
    };
    parallel_for(parts, threads, part);
}

}  // namespace

}  // namespace ringcast
