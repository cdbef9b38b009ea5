/* One reading end of a ring. One thread owns it; see ring.h for the bytes and bell.h for the doorbells. */
#ifndef RINGCAST_READER_H
#define RINGCAST_READER_H

#include "ring.h"

struct reader_stats {
    uint64_t records, bytes, skipped, wakes_sent;
};

struct ring_reader {
    struct ring_header *header;
    const unsigned char *data;
    uint64_t capacity;
    uint64_t position; /* of the next record */
    uint64_t seq;      /* that it must have */
    uint64_t released; /* the cursor as the writer sees it */
    int slot;
    bool blocked; /* the next record waits for something outside the ring: it does not count as ready */
    bool closed;  /* the writer closed, and everything before was read */
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

static inline void reader_init(struct ring_reader *reader, void *base, int slot, struct bell *writer_bell)
{
    struct ring_header *header = base;
    memset(reader, 0, sizeof *reader);
    reader->header = header;
    reader->data = (const unsigned char *)base + RING_HEADER_BYTES;
    reader->capacity = header->capacity;
    reader->position = reader->released = header->readers[slot].join_position;
    reader->seq = header->readers[slot].join_seq;
    reader->slot = slot;
    reader->writer_bell = writer_bell;
}

/* Something to do here? Only looks. After bell_arm, this is the re-check before sleeping. */
static inline bool reader_ready(const struct ring_reader *reader)
{
    if (reader->blocked || reader->closed)
        return false;
    return LOAD_ACQUIRE(&reader->header->head) != reader->position ||
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
    memcpy(&record->header, reader->data + offset, sizeof record->header);
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

/* The next record for this reader; passes over padding and the records of others. The head is loaded anew only when
 * `*head` (start with the position) is reached. */
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
    if (!reader->closed && LOAD_ACQUIRE(&reader->header->state) == RING_CLOSED &&
        LOAD_ACQUIRE(&reader->header->head) == reader->position)
        reader->closed = true;
}

/* Give the consumed bytes back, once a batch; ring the writer if it waits for this cursor. */
static inline void reader_release(struct ring_reader *reader)
{
    if (reader->released == reader->position)
        return;
    reader->released = reader->position;
    STORE_RELEASE(&reader->header->readers[reader->slot].cursor, reader->position); /* after the copies */
    FENCE_SEQ_CST(); /* pairs with the writer's between space_wanted and the cursors */
    uint64_t wanted = LOAD_RELAXED(&reader->header->space_wanted);
    if (wanted && reader->position >= wanted && reader->writer_bell)
        reader->stats.wakes_sent += bell_ring(reader->writer_bell);
}

#endif
