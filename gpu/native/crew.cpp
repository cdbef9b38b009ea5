// The threads behind crew.h: made when first needed, they live as long as the process.
//
// A loop is published through one word, its number and the next part: a claim is a compare-and-swap on it, so that a thread
// that comes late, with the description of an old loop in hand, claims nothing of the new one. While the description is being
// written the word is closed. A loop ends when as many parts have finished as there are; none can be claimed before that
// without being counted.

#include "crew.h"

#include <climits>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace ringcast {
namespace {

constexpr uint64_t kClosed = 0xFFFFFFFF;
constexpr int kMaxThreads = 1024;
constexpr int64_t kSpinNanoseconds = 50'000;  // a step leaves gaps of 5 to 20 microseconds between its loops
constexpr int kSpinsBeforeYield = 4000;

struct Loop {
    std::atomic<Part> part{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<int64_t> count{0};
    std::atomic<int> threads{0};
};

Loop loop;
alignas(64) std::atomic<uint64_t> word{kClosed};     // number of the loop << 32 | next part
alignas(64) std::atomic<int64_t> finished{0};        // parts of the loop that have run
alignas(64) std::atomic<uint32_t> signal_word{0};    // what sleepers wait on; changes with every loop
std::atomic<int> sleepers{0};
int wanted_workers = 0;  // guarded by one_caller, like the next
int workers = 0;
pthread_mutex_t one_caller = PTHREAD_MUTEX_INITIALIZER;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int64_t nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void futex(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&signal_word), operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// Claims and runs parts of the loop that is published, until none is left. `worker` is 0 for the caller.
void work(int worker) {
    uint64_t seen = word.load(std::memory_order_acquire);
    uint64_t number = seen >> 32;
    if ((seen & kClosed) == kClosed) return;
    Part part = loop.part.load(std::memory_order_relaxed);
    void* context = loop.context.load(std::memory_order_relaxed);
    uint64_t count = static_cast<uint64_t>(loop.count.load(std::memory_order_relaxed));
    if (worker >= loop.threads.load(std::memory_order_relaxed)) return;
    std::atomic_thread_fence(std::memory_order_acquire);
    while (seen >> 32 == number && (seen & kClosed) < count) {
        // Success proves that the description read above is this loop's: it does not change while its number stands.
        if (!word.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        part(context, static_cast<int64_t>(seen & kClosed), worker);
        finished.fetch_add(1, std::memory_order_release);
        seen = word.load(std::memory_order_acquire);
    }
}

// Returns when another loop than `number` is published: spins first, then sleeps.
void wait_for_loop(uint64_t number) {
    int64_t deadline = 0;
    for (int spins = 0;; ++spins) {
        if (word.load(std::memory_order_acquire) >> 32 != number) return;
        pause_briefly();
        if (spins % 64 != 63) continue;
        int64_t now = nanoseconds();
        if (deadline == 0) deadline = now + kSpinNanoseconds;
        if (now >= deadline) break;
    }
    uint32_t value = signal_word.load(std::memory_order_seq_cst);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (word.load(std::memory_order_seq_cst) >> 32 == number && signal_word.load(std::memory_order_seq_cst) == value)
        futex(FUTEX_WAIT, value);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void* worker_main(void* argument) {
    int worker = static_cast<int>(reinterpret_cast<intptr_t>(argument));
    for (;;) {
        uint64_t number = word.load(std::memory_order_acquire) >> 32;
        work(worker);
        wait_for_loop(number);
    }
    return nullptr;
}

// As many workers as the system lets us have, up to `wanted`; fewer only make the caller do more, and so does a fork, which
// leaves them all behind.
void hire(int wanted) {
    wanted_workers = wanted;
    // Signals are for the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (workers < wanted && workers < kMaxThreads) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, worker_main, reinterpret_cast<void*>(intptr_t{workers + 1})) != 0) break;
        pthread_detach(thread);
        ++workers;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void run_parts(int64_t count, int threads, Part part, void* context) {
    if (threads < 2 || count < 2 || count >= static_cast<int64_t>(kClosed) || pthread_mutex_trylock(&one_caller) != 0) {
        for (int64_t index = 0; index < count; ++index) part(context, index, 0);
        return;
    }
    if (wanted_workers < threads - 1) hire(threads - 1);
    uint64_t number = (word.load(std::memory_order_relaxed) >> 32) + 1;
    word.store(number << 32 | kClosed, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // who reads any of the following sees that the word was closed
    loop.part.store(part, std::memory_order_relaxed);
    loop.context.store(context, std::memory_order_relaxed);
    loop.count.store(count, std::memory_order_relaxed);
    loop.threads.store(threads, std::memory_order_relaxed);
    finished.store(0, std::memory_order_relaxed);
    word.store((number + 1) << 32, std::memory_order_seq_cst);
    signal_word.fetch_add(1, std::memory_order_seq_cst);  // after the word: whoever saw the old word does not fall asleep
    if (sleepers.load(std::memory_order_seq_cst) > 0) futex(FUTEX_WAKE, INT_MAX);
    work(0);
    for (int spins = 0; finished.load(std::memory_order_acquire) != count; ++spins)
        spins < kSpinsBeforeYield ? pause_briefly() : static_cast<void>(sched_yield());
    pthread_mutex_unlock(&one_caller);
}

}  // namespace ringcast
