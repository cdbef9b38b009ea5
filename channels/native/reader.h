/* One reading end of a ring. One thread owns it; see ring.h for the bytes and bell.h for the doorbells.
 *
 * Reads copy first and consume afterwards: only a compare-and-swap of the cursor word that succeeds proves that the
 * copied bytes were still the reader's. If it fails, the writer has detached the reader: the copies are dropped, and
 * everything from the cursor on comes over the link until reader_attach.
 */
#ifndef RINGCAST_READER_H
#define RINGCAST_READER_H

#include "ring.h"

struct reader_stats {
    uint64_t records, bytes, skipped, wakes_sent, spilled, detaches;
};

struct ring_reader {
    struct ring_header *header;
    const unsigned char *data;
    uint64_t capacity;
    uint64_t position; /* of the next record; the cursor word while attached */
    uint64_t seq;      /* that it must have */
    uint64_t taken_records, taken_bytes;
    int slot;
    bool blocked;  /* the next record waits for something outside the ring: it does not count as ready */
    bool closed;   /* the writer closed, and everything before was read */
    bool detached; /* the writer took us out of the ring */
    bool pinned;   /* a view of the next record is open */
    struct bell *writer_bell;
    struct reader_stats stats;
};

/* What a look at the ring brought. */
enum read_result { READ_NONE, READ_RECORD, READ_CORRUPT };

struct read_record {
    struct ring_record header;
    const unsigned char *payload;
    uint64_t next_position;
    const char *fault; /* READ_CORRUPT: what is wrong */
    uint64_t expected, seen;
};

static inline struct ring_reader_line *reader_line(const struct ring_reader *reader)
{
    return &reader->header->readers[reader->slot];
}

static inline void reader_init(struct ring_reader *reader, void *base, int slot, struct bell *writer_bell)
{
    struct ring_header *header = base;
    memset(reader, 0, sizeof *reader);
    reader->header = header;
    reader->data = (const unsigned char *)base + RING_HEADER_BYTES;
    reader->capacity = header->capacity;
    reader->position = header->readers[slot].join_position;
    reader->seq = header->readers[slot].join_seq;
    reader->slot = slot;
    reader->writer_bell = writer_bell;
}

/* Something to do here? Only looks. After bell_arm, this is the re-check before sleeping. Detached and not blocked
 * means that the owner holds records from the link. */
static inline bool reader_ready(const struct ring_reader *reader)
{
    if (reader->blocked || reader->closed)
        return false;
    return reader->detached || LOAD_ACQUIRE(&reader->header->head) != reader->position ||
           LOAD_ACQUIRE(&reader->header->state) == RING_CLOSED;
}

static inline enum read_result reader_corrupt(struct read_record *record, const char *fault, uint64_t expected,
                                              uint64_t seen)
{
    record->fault = fault;
    record->expected = expected;
    record->seen = seen;
    return READ_CORRUPT;
}

/* The record at the position, without moving. Bounds are checked against memory that others can write. */
static inline enum read_result reader_peek(const struct ring_reader *reader, uint64_t head, struct read_record *record)
{
    if (head == reader->position)
        return READ_NONE;
    uint64_t available = head - reader->position; /* acquire on head: the record's bytes are there */
    if (available > reader->capacity)
        return reader_corrupt(record, "bytes published and not consumed", reader->capacity, available);
    uint64_t offset = reader->position & (reader->capacity - 1);
    ring_copy(&record->header, reader->data + offset, sizeof record->header);
    record->payload = reader->data + offset + RING_RECORD_BYTES;
    if (record->header.seq != reader->seq)
        return reader_corrupt(record, "sequence number", reader->seq, record->header.seq);
    uint64_t span = record_span(record->header.length);
    if (span > reader->capacity - offset || span > available)
        return reader_corrupt(record, "bytes of the record (at most)",
                              available < reader->capacity - offset ? available : reader->capacity - offset, span);
    if (record->header.kind > KIND_CLOSE)
        return reader_corrupt(record, "kind of the record (at most)", KIND_CLOSE, record->header.kind);
    record->next_position = reader->position + span;
    return READ_RECORD;
}

static inline void reader_move(struct ring_reader *reader, const struct read_record *record)
{
    reader->position = record->next_position;
    reader->seq++;
}

/* Move and count a delivered record. */
static inline void reader_take(struct ring_reader *reader, const struct read_record *record)
{
    reader_move(reader, record);
    reader->stats.records++;
    reader->stats.bytes += record->header.length;
    reader->closed = record->header.kind == KIND_CLOSE;
}

/* The next record for this reader; passes over padding and the records of others. The head is loaded anew only when
 * `*head` (start with the position) is reached. Moves a copy of the reader: nothing is consumed before reader_consume,
 * and nothing of the record may be believed before. */
static inline enum read_result reader_next(struct ring_reader *reader, uint64_t *head, struct read_record *record)
{
    const uint64_t bit = 1ull << reader->slot;
    for (;;) {
        if (reader->position == *head)
            *head = LOAD_ACQUIRE(&reader->header->head);
        enum read_result result = reader_peek(reader, *head, record);
        if (result != READ_RECORD)
            return result;
        if (record->header.kind != KIND_PAD && (record->header.dest_mask & bit))
            return READ_RECORD;
        reader_move(reader, record);
        reader->stats.skipped++;
    }
}

/* Nothing left and the state word says that nothing will follow? The state is stored after the last head. */
static inline void reader_check_closed(struct ring_reader *reader)
{
    if (!reader->closed && !reader->detached && LOAD_ACQUIRE(&reader->header->state) == RING_CLOSED &&
        LOAD_ACQUIRE(&reader->header->head) == reader->position)
        reader->closed = true;
}

/* Ring the writer if it waits for this cursor. A seq_cst fence must stand between the cursor's change and this; it
 * pairs with the writer's between space_wanted and the cursors. */
static inline void reader_tell_writer(struct ring_reader *reader)
{
    uint64_t wanted = LOAD_RELAXED(&reader->header->space_wanted);
    if (wanted && reader->position >= wanted && reader->writer_bell)
        reader->stats.wakes_sent += bell_ring(reader->writer_bell);
}

static inline bool reader_lost(struct ring_reader *reader)
{
    reader->detached = reader->blocked = true;
    reader->stats.detaches++;
    return false;
}

/* Consume what `moved`, a copy of the reader that went ahead, has copied out; once a batch. False: the reader was
 * detached meanwhile, what was copied may be torn, and the reader stays where it was. With a copy that has not moved
 * it tells whether the reader is attached. */
static inline bool reader_consume(struct ring_reader *reader, const struct ring_reader *moved)
{
    struct ring_reader_line *line = reader_line(reader);
    uint64_t expected = reader->position;
    CRASH_POINT("before_cursor");
    /* Release: our loads happened before whatever the writer does after it has seen this cursor. */
    if (!__atomic_compare_exchange_n(&line->cursor, &expected, moved->position, false, __ATOMIC_RELEASE,
                                     __ATOMIC_RELAXED))
        return reader_lost(reader);
    FENCE_AFTER_RMW();
    CRASH_POINT("after_cursor");
    *reader = *moved;
    STORE_RELAXED(&line->seq_seen, reader->seq);
    reader_tell_writer(reader);
    return true;
}

/* ---- a view of the next record, in place ---- */

/* From now to reader_unpin the record at the position is the reader's, and the writer can neither reuse its bytes nor
 * detach the reader. False: it was detached before. */
static inline bool reader_pin(struct ring_reader *reader)
{
    uint64_t expected = reader->position;
    if (!__atomic_compare_exchange_n(&reader_line(reader)->cursor, &expected, reader->position | CURSOR_PINNED, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return reader_lost(reader);
    CRASH_POINT("after_pin");
    reader->pinned = true;
    return true;
}

static inline void reader_unpin(struct ring_reader *reader)
{
    reader->pinned = false;
    CRASH_POINT("before_unpin");
    STORE_RELAXED(&reader_line(reader)->seq_seen, reader->seq);
    STORE_RELEASE(&reader_line(reader)->cursor, reader->position); /* a pinned word is ours alone */
    FENCE_SEQ_CST();
    reader_tell_writer(reader);
}

/* ---- detached ---- */

/* So many records and bytes more have been delivered from the link. */
static inline void reader_took(struct ring_reader *reader, uint64_t records, uint64_t bytes)
{
    struct ring_reader_line *line = reader_line(reader);
    reader->taken_records += records;
    reader->taken_bytes += bytes;
    reader->stats.records += records;
    reader->stats.bytes += bytes;
    reader->stats.spilled += records;
    CRASH_POINT("before_taken");
    STORE_RELAXED(&line->taken_bytes, reader->taken_bytes);
    STORE_RELEASE(&line->taken_records, reader->taken_records);
}

/* The notice came over the link: go on in the ring. If the writer has detached us again meanwhile, the next
 * reader_consume finds out, and what we missed stands in the link behind the notice. */
static inline void reader_attach(struct ring_reader *reader, uint64_t position, uint64_t seq)
{
    reader->position = position;
    reader->seq = seq;
    reader->detached = reader->blocked = false;
}

#endif
