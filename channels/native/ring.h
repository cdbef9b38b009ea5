/* The bytes of a ring: one writer, up to 64 readers, each of whom sees every record in the same order.
 *
 * Knows no Python. writer.h and reader.h hold the two ends.
 *
 *   header   immutable line | HEAD (the commit word) | WSTATE (what readers ask the writer) | STATS | 64 reader lines
 *   data     `capacity` bytes of records, 64-byte aligned, at offset position & (capacity - 1)
 *
 * Positions are byte counts since the start and never wrap. A record exists for its readers when `head` is beyond it
 * and not before: a writer that dies earlier leaves nothing visible. A record never wraps; PAD fills the rest.
 *
 *   writer   copy record; store_release(head)                                 readers  load_acquire(head); copy out
 *   reader   CAS_release(cursor); fence; load(space_wanted) -> ring writer    writer   load_acquire(cursor); overwrite
 *
 * A reader that the writer may not wait for is detached (its records take another way then) and attached again later.
 * The two agree by compare-and-swap on the reader's cursor word who owns the bytes behind it: docs/channels.md, 4.
 */
#ifndef RINGCAST_RING_H
#define RINGCAST_RING_H

#include <stddef.h>
#include <string.h>

#include "bell.h"

#define RING_MAGIC 0x474E495243474E52ull /* "RNGCRING" */
#define RING_ABI 2u
#define RING_MAX_READERS 64
#define RING_ALIGN 64
#define RING_RECORD_BYTES 32 /* the header of a record */
#define RING_MIN_CAPACITY 512
#define RING_MAX_CAPACITY (1ull << 30)

enum { KIND_DATA = 0, KIND_OVERFLOW = 1, KIND_PAD = 2, KIND_CLOSE = 3 };
enum { RING_OPEN = 0, RING_CLOSED = 2 };
enum { SLOT_FREE = 0, SLOT_ACTIVE = 1 };

/* Flags in the cursor word: positions are multiples of 64. */
#define CURSOR_PINNED 1u   /* a view of the record at the cursor is open: the reader's word until it moves on */
#define CURSOR_DETACHED 2u /* the reader owns nothing in the ring: the writer's word until it attaches it again */
#define CURSOR_FLAGS 63u

struct ring_reader_line {
    _Alignas(LINE_BYTES) uint64_t cursor; /* bytes consumed, and the flags */
    uint64_t taken_records;               /* consumed from the link, ever; the reader's, as the next */
    uint64_t taken_bytes;
    uint64_t seq_seen; /* next sequence number; informative; the reader's */
    _Alignas(64) uint64_t gen_state;      /* generation << 8 | FREE or ACTIVE; this half is the writer's */
    uint64_t join_position;
    uint64_t join_seq;
    uint32_t bell_slot;
};

struct ring_header {
    uint64_t magic; /* stored last */
    uint32_t abi;
    uint32_t header_bytes;
    uint64_t ring_id;
    uint64_t epoch;
    uint64_t capacity;
    uint32_t max_inline;
    uint32_t max_readers;
    uint32_t align;
    uint32_t writer_bell_slot; /* UINT32_MAX: none */

    _Alignas(LINE_BYTES) uint64_t head; /* bytes published: the commit word */
    uint64_t count;                     /* records published; informative */

    _Alignas(LINE_BYTES) uint64_t space_wanted; /* 0, or: ring the writer when your cursor gets here */
    uint32_t state;                             /* RING_OPEN, RING_CLOSED */

    _Alignas(LINE_BYTES) uint64_t stats[12]; /* for onlookers; written at flushes, see struct writer_stats */

    _Alignas(LINE_BYTES) struct ring_reader_line readers[RING_MAX_READERS];
};

#define RING_HEADER_BYTES 12288 /* whole pages */

_Static_assert(sizeof(struct ring_reader_line) == LINE_BYTES, "one line a reader");
_Static_assert(offsetof(struct ring_header, head) == 0x80, "layout");
_Static_assert(offsetof(struct ring_header, space_wanted) == 0x100, "layout");
_Static_assert(offsetof(struct ring_header, stats) == 0x180, "layout");
_Static_assert(offsetof(struct ring_header, readers) == 0x200, "layout");
_Static_assert(sizeof(struct ring_header) <= RING_HEADER_BYTES, "layout");

struct ring_record {
    uint32_t length; /* payload bytes */
    uint8_t kind;
    uint8_t flags;
    uint16_t type; /* the user's */
    uint64_t seq;  /* every record has the next one: a cheap detector of any defect in layout or ordering */
    uint64_t dest_mask;
    uint32_t checksum;     /* reserved: 0 */
    uint32_t published_us; /* reserved: 0 */
};

_Static_assert(sizeof(struct ring_record) == RING_RECORD_BYTES, "layout");

static inline uint64_t record_span(uint64_t payload_bytes)
{
    return (RING_RECORD_BYTES + payload_bytes + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
}

/* Copy a payload. A reader that was detached may copy what the writer is overwriting; it drops the copy then. The
 * thread sanitizer is told so by atomics; otherwise, and where nobody is detached (RING_PLAIN_COPY), it is memcpy. */
static inline void ring_copy(void *to, const void *from, size_t size)
{
#if defined(__SANITIZE_THREAD__) && !defined(RING_PLAIN_COPY)
    for (size_t i = 0; i < size; i++)
        STORE_RELAXED((unsigned char *)to + i, LOAD_RELAXED((const unsigned char *)from + i));
#else
    memcpy(to, from, size);
#endif
}

/* A hint only: any address will do. */
static inline void prefetch_to_write(const void *place)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)place)); /* the builtin gives it only to newer targets */
#else
    __builtin_prefetch(place, 1);
#endif
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
