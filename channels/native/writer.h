/* The writing end of a ring. One thread owns it; see ring.h for the bytes and bell.h for the doorbells. */
#ifndef RINGCAST_WRITER_H
#define RINGCAST_WRITER_H

#include <time.h>

#include "ring.h"

#define WRITER_MAX_CONDITIONS 64

struct writer_stats {
    uint64_t records, bytes, full_waits, overflows, wakes_sent, wakes_suppressed, evictions;
    uint64_t depth_bytes, depth_records, peak_bytes, peak_records;
    uint64_t detaches;
};

_Static_assert(sizeof(struct writer_stats) == sizeof(((struct ring_header *)0)->stats), "layout");

/* "All readers of the mask have consumed up to position." */
struct cursor_condition {
    uint64_t position;
    uint64_t mask;
};

struct ring_writer {
    struct ring_header *header;
    unsigned char *data;
    uint64_t capacity;
    uint64_t position;   /* next byte to write; equals head */
    uint64_t seq;        /* of the next record */
    uint64_t min_cached; /* a lower bound of all cursors */
    uint64_t active;     /* bit per admitted reader */
    uint64_t attached;   /* those of them who read the ring; the others' records take another way */
    uint64_t dirty;      /* readers addressed since the last flush */
    struct bell *bells[RING_MAX_READERS];

    /* What refused sends wait for: space in the ring (0: nothing), or any one of some conditions. */
    uint64_t space_position;
    struct cursor_condition conditions[WRITER_MAX_CONDITIONS];
    int condition_count;

    /* What the last looks saw of each cursor, and when it was first seen to lag there: for reports only. */
    uint64_t seen_cursor[RING_MAX_READERS];
    int64_t lags_since_ns[RING_MAX_READERS]; /* 0: it did not lag */

    bool closed;
    bool reserved; /* a record is being built in place */
    struct writer_stats stats;
};

static inline void writer_init(struct ring_writer *writer, void *base, uint64_t capacity, uint64_t epoch,
                               uint64_t ring_id, uint32_t bell_slot)
{
    struct ring_header *header = base;
    memset(writer, 0, sizeof *writer);
    writer->header = header;
    writer->data = (unsigned char *)base + RING_HEADER_BYTES;
    writer->capacity = capacity;
    header->abi = RING_ABI;
    header->header_bytes = RING_HEADER_BYTES;
    header->ring_id = ring_id;
    header->epoch = epoch;
    header->capacity = capacity;
    header->max_inline = (uint32_t)(capacity / 8);
    header->max_readers = RING_MAX_READERS;
    header->align = RING_ALIGN;
    header->writer_bell_slot = bell_slot;
    STORE_RELEASE(&header->magic, RING_MAGIC);
}

/* Acquire: what the reader copied out happened before, so its bytes may be overwritten. */
static inline uint64_t writer_cursor(const struct ring_writer *writer, int slot)
{
    return LOAD_ACQUIRE(&writer->header->readers[slot].cursor) & ~(uint64_t)CURSOR_FLAGS;
}

/* The slowest cursor of the attached readers in the mask; the position if there is none. */
static inline uint64_t writer_min_cursor(const struct ring_writer *writer, uint64_t mask)
{
    uint64_t lag = 0;
    for (uint64_t left = mask & writer->attached; left; left &= left - 1) {
        uint64_t cursor = writer_cursor(writer, __builtin_ctzll(left));
        if (writer->position - cursor > lag)
            lag = writer->position - cursor;
    }
    return writer->position - lag;
}

static inline int64_t coarse_now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* Records that the reader has not consumed, padding included; a moment old. */
static inline uint64_t writer_lag_records(const struct ring_writer *writer, int slot)
{
    uint64_t seen = LOAD_RELAXED(&writer->header->readers[slot].seq_seen);
    return writer->seq > seen ? writer->seq - seen : 0;
}

/* Look at all cursors anew; the depth is exact at this moment. */
static inline void writer_refresh(struct ring_writer *writer)
{
    struct writer_stats *stats = &writer->stats;
    uint64_t lag = 0;
    int laggard = -1;
    int64_t now_ns = 0;
    for (uint64_t left = writer->attached; left; left &= left - 1) {
        int slot = __builtin_ctzll(left);
        uint64_t cursor = writer_cursor(writer, slot);
        if (cursor == writer->position) {
            writer->lags_since_ns[slot] = 0;
        } else if (cursor != writer->seen_cursor[slot] || !writer->lags_since_ns[slot]) {
            if (!now_ns)
                now_ns = coarse_now_ns();
            writer->lags_since_ns[slot] = now_ns;
        }
        writer->seen_cursor[slot] = cursor;
        if (writer->position - cursor > lag) {
            lag = writer->position - cursor;
            laggard = slot;
        }
    }
    writer->min_cached = writer->position - lag;
    stats->depth_bytes = lag;
    stats->depth_records = laggard < 0 ? 0 : writer_lag_records(writer, laggard);
    if (stats->depth_bytes > stats->peak_bytes)
        stats->peak_bytes = stats->depth_bytes;
    if (stats->depth_records > stats->peak_records)
        stats->peak_records = stats->depth_records;
}

/* Ring each reader of the mask. A seq_cst fence must precede. */
static inline int writer_ring(struct ring_writer *writer, uint64_t mask)
{
    int calls = 0, asked = 0;
    for (uint64_t left = mask & writer->active; left; left &= left - 1) {
        asked++;
        calls += bell_ring(writer->bells[__builtin_ctzll(left)]);
    }
    writer->stats.wakes_sent += calls;
    writer->stats.wakes_suppressed += asked - calls;
    return calls;
}

/* The attached readers whose cursor is before the position. */
static inline uint64_t writer_laggards(const struct ring_writer *writer, uint64_t position)
{
    uint64_t mask = 0;
    for (uint64_t left = writer->attached; left; left &= left - 1) {
        int slot = __builtin_ctzll(left);
        if (writer_cursor(writer, slot) < position)
            mask |= 1ull << slot;
    }
    return mask;
}

/* Publish everything up to the last writer_end. */
static inline void writer_publish(struct ring_writer *writer)
{
    CRASH_POINT("after_payload");
    STORE_RELAXED(&writer->header->count, writer->seq);
    STORE_RELEASE(&writer->header->head, writer->position); /* the commit point */
    CRASH_POINT("after_head");
    /* The reader has had the next records' lines since the last lap: get them back while the caller makes them. */
    const unsigned char *next = writer->data + (writer->position & (writer->capacity - 1));
    for (int line = 0; line < 4; line++)
        prefetch_to_write(next + line * RING_ALIGN);
}

static inline void writer_publish_stats(struct ring_writer *writer)
{
    writer->stats.records = writer->seq;
    writer->stats.bytes = writer->position;
    const uint64_t *words = (const uint64_t *)&writer->stats;
    for (size_t i = 0; i < sizeof writer->stats / sizeof *words; i++)
        STORE_RELAXED(&writer->header->stats[i], words[i]);
}

/* ---- waiting for readers ---- */

static inline bool writer_waits(const struct ring_writer *writer)
{
    return writer->space_position != 0 || writer->condition_count != 0;
}

/* Tell the readers the earliest position at which a ring is worth while. */
static inline void writer_announce(struct ring_writer *writer)
{
    uint64_t wanted = writer->space_position ? writer->space_position : UINT64_MAX;
    for (int i = 0; i < writer->condition_count; i++)
        if (writer->conditions[i].position < wanted)
            wanted = writer->conditions[i].position;
    STORE_RELAXED(&writer->header->space_wanted, wanted == UINT64_MAX ? 0 : wanted);
}

static inline bool writer_space_holds(const struct ring_writer *writer)
{
    return writer->space_position && writer_min_cursor(writer, ~0ull) >= writer->space_position;
}

static inline bool writer_condition_holds(const struct ring_writer *writer)
{
    for (int i = 0; i < writer->condition_count; i++)
        if (writer_min_cursor(writer, writer->conditions[i].mask) >= writer->conditions[i].position)
            return true;
    return false;
}

/* What a refused send waits for has come: only looks. */
static inline bool writer_wait_holds(const struct ring_writer *writer)
{
    return writer_space_holds(writer) || writer_condition_holds(writer);
}

/* The same, and forget the wait that has come: it is reported once, or a caller who lost interest would never sleep
 * again. The caller retries everything; what is refused again waits again. */
static inline bool writer_take_wait(struct ring_writer *writer)
{
    bool space = writer_space_holds(writer), condition = writer_condition_holds(writer);
    if (space)
        writer->space_position = 0;
    if (condition)
        writer->condition_count = 0;
    if (space || condition)
        writer_announce(writer);
    return space || condition;
}

/* Room for `needed` bytes (padding included)? If not, ask for it: a later look at the bell, or writer_wait_holds,
 * tells when. Everyone who holds the space is rung, whatever was addressed to him: he may sleep on records of others. */
static inline bool writer_room(struct ring_writer *writer, uint64_t needed)
{
    if (writer->position + needed - writer->min_cached <= writer->capacity)
        return true;
    writer_refresh(writer);
    if (writer->position + needed - writer->min_cached <= writer->capacity)
        return true;

    writer_publish(writer); /* a batch under way: what the readers rung below shall see */
    uint64_t required = writer->position + needed - writer->capacity;
    uint64_t wanted = required + writer->capacity / 4; /* hysteresis: not one wake-up a record */
    if (wanted > writer->position)
        wanted = writer->position;
    if (!writer->space_position)
        writer->stats.full_waits++;
    if (!writer->space_position || wanted < writer->space_position)
        writer->space_position = wanted;
    writer_announce(writer);
    FENCE_SEQ_CST(); /* pairs with the reader's between cursor and space_wanted; also serves the bells below */
    CRASH_POINT("after_announce");
    writer_refresh(writer);
    if (writer->min_cached >= required) {
        writer->space_position = 0;
        writer_announce(writer);
        return true;
    }
    writer_ring(writer, writer_laggards(writer, wanted) | writer->dirty);
    writer->dirty = 0;
    return false;
}

/* Wait until any of the conditions (already stored) holds; true if one holds now. */
static inline bool writer_await(struct ring_writer *writer)
{
    uint64_t behind = 0;
    writer_announce(writer);
    FENCE_SEQ_CST();
    if (writer_condition_holds(writer)) {
        writer->condition_count = 0;
        writer_announce(writer);
        return true;
    }
    for (int i = 0; i < writer->condition_count; i++)
        behind |= writer->conditions[i].mask & writer_laggards(writer, writer->conditions[i].position);
    writer_ring(writer, behind | writer->dirty);
    writer->dirty = 0;
    return false;
}

/* ---- records ---- */

/* Bytes of padding before a record of that span, so that it does not wrap. */
static inline uint64_t writer_padding(const struct ring_writer *writer, uint64_t span)
{
    uint64_t left = writer->capacity - (writer->position & (writer->capacity - 1));
    return span > left ? left : 0;
}

static inline unsigned char *writer_put_header(struct ring_writer *writer, uint64_t position, struct ring_record header)
{
    unsigned char *place = writer->data + (position & (writer->capacity - 1));
    ring_copy(place, &header, sizeof header);
    return place + sizeof header;
}

/* Where to copy a payload of that length (at most max_inline), or NULL if the ring is full. Nothing is visible, and
 * nothing has changed, before writer_commit. */
static inline unsigned char *writer_begin(struct ring_writer *writer, uint32_t length, uint8_t kind, uint16_t type,
                                          uint64_t dest_mask)
{
    uint64_t span = record_span(length), padding = writer_padding(writer, span), seq = writer->seq;
    if (!writer_room(writer, padding + span))
        return NULL;
    if (padding) {
        struct ring_record filler = {.length = (uint32_t)(padding - RING_RECORD_BYTES), .kind = KIND_PAD, .seq = seq++};
        writer_put_header(writer, writer->position, filler);
    }
    struct ring_record header = {.length = length, .kind = kind, .type = type, .seq = seq, .dest_mask = dest_mask};
    return writer_put_header(writer, writer->position + padding, header);
}

/* The record that was begun is complete, behind so much padding; the next one follows it. Nobody sees it yet. */
static inline void writer_end(struct ring_writer *writer, uint64_t padding, uint32_t length, uint8_t kind,
                              uint64_t dest_mask)
{
    writer->position += padding + record_span(length);
    writer->seq += padding ? 2 : 1;
    writer->stats.overflows += kind == KIND_OVERFLOW;
    writer->dirty |= dest_mask & writer->attached;
}

/* End and publish the record that was begun with that length. */
static inline void writer_commit(struct ring_writer *writer, uint32_t length, uint8_t kind, uint64_t dest_mask)
{
    writer_end(writer, writer_padding(writer, record_span(length)), length, kind, dest_mask);
    writer_publish(writer);
}

/* Ring the addressed readers that sleep, and readers who lag so far behind that the ring may fill up. One fence for
 * the whole batch. The number of system calls made. */
static inline int writer_flush(struct ring_writer *writer)
{
    uint64_t half = writer->capacity / 2, targets = writer->dirty;
    if (writer->position - writer->min_cached > half)
        writer_refresh(writer);
    if (writer->position - writer->min_cached > half)
        targets |= writer_laggards(writer, writer->position - half);
    if (!targets)
        return 0;
    FENCE_SEQ_CST(); /* pairs with bell_arm */
    CRASH_POINT("before_bell");
    writer->dirty = 0;
    int calls = writer_ring(writer, targets);
    writer_publish_stats(writer);
    return calls;
}

/* ---- membership: the writer's alone, so no race with its look at the cursors ---- */

/* A free slot, now active from the present position on; -1 if there is none. */
static inline int writer_admit(struct ring_writer *writer, struct bell *bell, uint32_t bell_slot)
{
    if (writer->active == ~0ull)
        return -1;
    int slot = __builtin_ctzll(~writer->active);
    struct ring_reader_line *line = &writer->header->readers[slot];
    STORE_RELAXED(&line->taken_records, 0);
    STORE_RELAXED(&line->taken_bytes, 0);
    STORE_RELAXED(&line->seq_seen, writer->seq);
    STORE_RELAXED(&line->cursor, writer->position);
    line->join_position = writer->position;
    line->join_seq = writer->seq;
    line->bell_slot = bell_slot;
    uint64_t generation = LOAD_RELAXED(&line->gen_state) >> 8;
    STORE_RELEASE(&line->gen_state, (generation + 1) << 8 | SLOT_ACTIVE);
    writer->bells[slot] = bell;
    writer->active |= 1ull << slot;
    writer->attached |= 1ull << slot;
    writer->seen_cursor[slot] = writer->position;
    writer->lags_since_ns[slot] = 0;
    return slot;
}

static inline void writer_evict(struct ring_writer *writer, int slot)
{
    struct ring_reader_line *line = &writer->header->readers[slot];
    uint64_t bit = 1ull << slot;
    STORE_RELAXED(&line->gen_state, (LOAD_RELAXED(&line->gen_state) & ~0xFFull) | SLOT_FREE);
    writer->active &= ~bit;
    writer->attached &= ~bit;
    writer->dirty &= ~bit;
    writer->bells[slot] = NULL;
    writer->stats.evictions++;
    writer_refresh(writer);
}

/* ---- spill: docs/channels.md, section 4 ---- */

enum detach_result { DETACH_DONE, DETACH_PINNED, DETACH_MOVED };

/* Take the bytes from its cursor on away from a reader that is still before `needed`, so that they may be reused once
 * the caller has saved the records from `*cursor` to the position. DETACH_PINNED: it has a view open, which forbids it.
 * DETACH_MOVED: it is not in the way any more. */
static inline enum detach_result writer_detach(struct ring_writer *writer, int slot, uint64_t needed, uint64_t *cursor)
{
    uint64_t *word = &writer->header->readers[slot].cursor;
    uint64_t seen = LOAD_ACQUIRE(word);
    do {
        if ((seen & ~(uint64_t)CURSOR_FLAGS) >= needed)
            return DETACH_MOVED;
        if (seen & CURSOR_PINNED)
            return DETACH_PINNED;
        /* Acquire: the loads of every read that the reader's own swaps validated happened before our overwrites. */
    } while (!__atomic_compare_exchange_n(word, &seen, seen | CURSOR_DETACHED, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    CRASH_POINT("after_detach");
    *cursor = seen;
    writer->attached &= ~(1ull << slot);
    writer->dirty &= ~(1ull << slot);
    writer->stats.detaches++;
    return DETACH_DONE;
}

/* Let a detached reader go on at the position (or, before any of its bytes was reused, at its old cursor): only then
 * tell it, over the link. */
static inline void writer_attach(struct ring_writer *writer, int slot, uint64_t cursor)
{
    STORE_RELEASE(&writer->header->readers[slot].cursor, cursor);
    CRASH_POINT("after_attach");
    writer->attached |= 1ull << slot;
    writer->seen_cursor[slot] = cursor;
    writer->lags_since_ns[slot] = 0;
    if (cursor < writer->min_cached)
        writer->min_cached = cursor;
}

/* One of our own records, at `*cursor`, which moves on; false at the position. */
static inline bool writer_reread(const struct ring_writer *writer, uint64_t *cursor, struct ring_record *header,
                                 const unsigned char **payload)
{
    if (*cursor == writer->position)
        return false;
    const unsigned char *place = writer->data + (*cursor & (writer->capacity - 1));
    ring_copy(header, place, sizeof *header);
    *payload = place + RING_RECORD_BYTES;
    *cursor += record_span(header->length);
    return true;
}

/* Say that nothing will follow: by a last record if there is room, and by the state word in any case. */
static inline void writer_close(struct ring_writer *writer)
{
    if (writer->closed)
        return;
    writer->closed = true;
    if (writer_begin(writer, 0, KIND_CLOSE, 0, ~0ull))
        writer_commit(writer, 0, KIND_CLOSE, ~0ull);
    STORE_RELEASE(&writer->header->state, RING_CLOSED);
    FENCE_SEQ_CST();
    writer_ring(writer, ~0ull);
    writer->dirty = 0;
    writer_publish_stats(writer);
}

#endif
