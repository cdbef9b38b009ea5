/* The doorbell of a process: one shared word and an eventfd. And the board, where the words of all processes lie.
 *
 * Knows no Python. The word goes AWAKE -> ARMED (its owner is about to sleep) -> RINGING (somebody took it upon
 * himself to wake the owner) -> AWAKE, and counts the armings above these two bits. Why no wake-up is lost:
 *   sender   store(head); fence; load(word)          owner   store(word, ARMED); fence; load(every head)
 * With a sequentially consistent fence on both sides at least one of the loads sees the other side's store: either
 * the sender finds ARMED and rings, or the owner finds the new head and does not sleep. The word changes before the
 * system call; the other order would lose a wake-up, because the owner may arm again in between. RINGING never keeps
 * another sender from ringing: he who set it may have died, or stand still, before his system call. The number does
 * the same for a sender who comes late with his RINGING -> AWAKE: he would hide the next sleep if it did not differ.
 * tests/channels/explorer runs through every interleaving of this, and finds a lost wake-up when a line is missing.
 */
#ifndef RINGCAST_BELL_H
#define RINGCAST_BELL_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define LINE_BYTES 128 /* two 64-byte lines: processors prefetch the neighbour */

#define LOAD_RELAXED(address) __atomic_load_n((address), __ATOMIC_RELAXED)
#define LOAD_ACQUIRE(address) __atomic_load_n((address), __ATOMIC_ACQUIRE)
#define STORE_RELAXED(address, value) __atomic_store_n((address), (value), __ATOMIC_RELAXED)
#define STORE_RELEASE(address, value) __atomic_store_n((address), (value), __ATOMIC_RELEASE)
#define FENCE_SEQ_CST() __atomic_thread_fence(__ATOMIC_SEQ_CST)

/* The sequentially consistent fence where a read-modify-write stands right before: on x86 that was one already. */
#if (defined(__x86_64__) || defined(__i386__)) && !defined(__SANITIZE_THREAD__)
#define FENCE_AFTER_RMW() __asm__ volatile("" ::: "memory")
#else
#define FENCE_AFTER_RMW() FENCE_SEQ_CST()
#endif

/* Test builds stop or die at named points inside the protocol (tests/channels/crash_points.h). */
#if defined(RINGCAST_CRASH_POINTS)
#include RINGCAST_CRASH_POINTS
#else
#define CRASH_POINT(name) ((void)0)
#endif

enum { BELL_AWAKE = 0, BELL_ARMED = 1, BELL_RINGING = 2, BELL_STATE = 3, BELL_ARMING = 4 };

struct bell {
    uint32_t *word;
    int eventfd; /* -1: closed, rings go nowhere */
    uint64_t sent;
    uint64_t suppressed;
};

/* Wake the owner whatever the word says. EAGAIN means a full counter: a token is there already. */
static inline void bell_notify(struct bell *bell)
{
    const uint64_t one = 1;
    while (bell->eventfd >= 0 && write(bell->eventfd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    bell->sent++;
}

/* Ring unless the owner is awake; true if a system call was made. A seq_cst fence must stand between the store that
 * the owner shall see and this call; one fence serves many bells. */
static inline bool bell_ring(struct bell *bell)
{
    uint32_t seen = LOAD_RELAXED(bell->word);
    if ((seen & BELL_STATE) == BELL_ARMED) {
        uint32_t ringing = (seen & ~BELL_STATE) | BELL_RINGING;
        __atomic_compare_exchange_n(bell->word, &seen, ringing, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    if ((seen & BELL_STATE) == BELL_AWAKE) {
        bell->suppressed++;
        return false;
    }
    CRASH_POINT("after_cas");
    bell_notify(bell);
    CRASH_POINT("after_call");
    uint32_t awake = seen & ~BELL_STATE; /* of this arming alone */
    seen = awake | BELL_RINGING;
    __atomic_compare_exchange_n(bell->word, &seen, awake, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return true;
}

/* First half of going to sleep: then re-check every source, and bell_awake() if one is ready. */
static inline void bell_arm(struct bell *bell)
{
    uint32_t number = LOAD_RELAXED(bell->word) & ~BELL_STATE; /* only we change it */
    STORE_RELAXED(bell->word, (number + BELL_ARMING) | BELL_ARMED);
    FENCE_SEQ_CST();
    CRASH_POINT("after_arm");
}

static inline void bell_awake(struct bell *bell)
{
    STORE_RELAXED(bell->word, (LOAD_RELAXED(bell->word) & ~BELL_STATE) | BELL_AWAKE);
    CRASH_POINT("after_awake");
}

/* Take the token, after bell_awake(); whether there was one. A ring that comes later leaves one for the next sleep,
 * which may then end early. Nothing depends on the order of the two (and weak machines may swap them): whoever sleeps
 * looks at every source after bell_arm. It saves system calls: who comes between the two finds us awake. */
static inline bool bell_empty(struct bell *bell)
{
    uint64_t tokens;
    ssize_t size;
    if (bell->eventfd < 0)
        return false;
    while ((size = read(bell->eventfd, &tokens, sizeof tokens)) < 0 && errno == EINTR) {
    }
    return size > 0;
}

/* ---- the board ---- */

#define BOARD_MAGIC 0x44524F4243474E52ull /* "RNGCBORD" */
#define BOARD_ABI 2u
#define BOARD_HEADER_BYTES 4096
#define BOARD_GAUGES 8
#define BOARD_LABEL_WORDS 8

struct board_header {
    uint64_t magic; /* stored last */
    uint32_t abi;
    uint32_t slots;
};

/* One line each, so that nobody's polling disturbs another's writing. */
struct board_slot {
    _Alignas(LINE_BYTES) uint32_t bell;      /* everyone */
    uint32_t owner_pid;                      /* who sleeps on the bell; 0: nobody has yet */
    _Alignas(LINE_BYTES) uint64_t progress;  /* its process: count << 16 | phase, one word so that both fit together */
    _Alignas(LINE_BYTES) uint64_t state;     /* the supervisor: incarnation << 32 | state */
    _Alignas(LINE_BYTES) uint64_t gauges[BOARD_GAUGES]; /* its process: figures for onlookers, each by itself */
    uint64_t label[BOARD_LABEL_WORDS];       /* the supervisor: what runs there, UTF-8, padded with zeros */
};

_Static_assert(sizeof(struct board_slot) == 4 * LINE_BYTES, "four lines a slot");

static inline struct board_slot *board_slots(void *base)
{
    return (struct board_slot *)((char *)base + BOARD_HEADER_BYTES);
}

#endif
