/* Writers, readers and a reaper as threads over one mapping, for the sanitizers: `stress SECONDS SPILL`.
 *
 * Not part of the module; `make sanitize` builds it. Small rings run full and wrap all the time, everybody sleeps on
 * his bell, readers end without a word and are evicted once they were joined. With SPILL = 1 lagging readers are
 * detached and attached again; their link is a queue under a mutex. Each reader checks each byte and the order.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>

#include "reader.h"
#include "writer.h"

enum { WRITERS = 2, READERS = 3, CAPACITY = 1024, RECORDS = 3000, BATCH = 8, NOTICE = 255 };

struct frame {
    struct frame *next;
    uint8_t kind;
    uint64_t seq, position;
    uint32_t length;
    unsigned char bytes[CAPACITY / 8];
};

struct link {
    pthread_mutex_t lock;
    struct frame *first, **last;
    int wakes; /* the reader's eventfd: a socket would be readable */
};

struct world {
    void *maps[WRITERS];
    uint32_t words[WRITERS + READERS];
    int eventfds[WRITERS + READERS];
    struct link links[WRITERS][READERS];
    uint32_t open[WRITERS]; /* the ring has its readers */
    uint32_t dead;          /* a joined reader + 1 */
    bool spill;
    unsigned seed;
};

struct thread {
    struct world *world;
    int number;
    uint64_t die_at; /* records after which a reader ends; 0: never */
};

static void fail(const char *what, uint64_t expected, uint64_t seen)
{
    fprintf(stderr, "stress: %s: expected %llu, found %llu\n", what, (unsigned long long)expected,
            (unsigned long long)seen);
    abort();
}

static unsigned char byte_of(int writer, uint64_t seq, size_t i)
{
    return (unsigned char)(writer * 101 + seq * 31 + i * 7);
}

static struct bell bell_of(struct world *world, int who)
{
    return (struct bell){.word = &world->words[who], .eventfd = world->eventfds[who]};
}

static void sleep_on(struct bell *bell)
{
    struct pollfd polled = {.fd = bell->eventfd, .events = POLLIN};
    if (poll(&polled, 1, 30000) == 0)
        fail("a wake-up was lost: slept so many seconds", 0, 30);
}

/* ---- the link ---- */

static void link_push(struct link *link, struct frame *frame)
{
    const uint64_t one = 1;
    frame->next = NULL;
    pthread_mutex_lock(&link->lock);
    *link->last = frame;
    link->last = &frame->next;
    pthread_mutex_unlock(&link->lock);
    if (write(link->wakes, &one, sizeof one) != sizeof one)
        abort();
}

static struct frame *link_pop(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    struct frame *frame = link->first;
    if (frame && !(link->first = frame->next))
        link->last = &link->first;
    pthread_mutex_unlock(&link->lock);
    return frame;
}

static bool link_holds(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    bool holds = link->first != NULL;
    pthread_mutex_unlock(&link->lock);
    return holds;
}

static void spill_record(struct link *link, const struct ring_record *header, const unsigned char *payload)
{
    struct frame *frame = calloc(1, sizeof *frame);
    if (!frame)
        abort();
    frame->kind = header->kind;
    frame->seq = header->seq;
    frame->length = header->length;
    ring_copy(frame->bytes, payload, header->length);
    link_push(link, frame);
}

/* ---- writers ---- */

struct author {
    struct ring_writer ring;
    struct bell bells[READERS], own;
    struct world *world;
    int number;
    bool evicted;
    uint64_t spilled[READERS], detached;
};

static void author_evict(struct author *author)
{
    uint32_t dead = LOAD_ACQUIRE(&author->world->dead);
    if (!dead || author->evicted)
        return;
    author->evicted = true;
    author->detached &= ~(1ull << (dead - 1));
    writer_evict(&author->ring, (int)dead - 1);
}

/* Detach everybody who holds the space; false if one of them cannot be detached now. */
static bool author_make_way(struct author *author, uint64_t required)
{
    bool done = true;
    for (uint64_t left = writer_laggards(&author->ring, required); left; left &= left - 1) {
        int slot = __builtin_ctzll(left);
        uint64_t cursor;
        enum detach_result result = writer_detach(&author->ring, slot, required, &cursor);
        done = done && result != DETACH_PINNED;
        if (result != DETACH_DONE)
            continue;
        struct ring_record header;
        const unsigned char *payload;
        while (writer_reread(&author->ring, &cursor, &header, &payload)) {
            if (header.kind == KIND_PAD)
                continue;
            spill_record(&author->world->links[author->number][slot], &header, payload);
            author->spilled[slot]++;
        }
        author->detached |= 1ull << slot;
    }
    return done;
}

static void author_attach(struct author *author)
{
    for (uint64_t left = author->detached; left; left &= left - 1) {
        int slot = __builtin_ctzll(left);
        if (LOAD_ACQUIRE(&author->ring.header->readers[slot].taken_records) != author->spilled[slot])
            continue;
        author->detached &= ~(1ull << slot);
        writer_attach(&author->ring, slot, author->ring.position);
        struct frame *frame = calloc(1, sizeof *frame);
        if (!frame)
            abort();
        frame->kind = NOTICE;
        frame->seq = author->ring.seq;
        frame->position = author->ring.position;
        link_push(&author->world->links[author->number][slot], frame);
    }
}

static void author_send(struct author *author, uint32_t length, uint8_t kind)
{
    unsigned char *place;
    author_attach(author);
    while (!(place = writer_begin(&author->ring, length, kind, 0, ~0ull))) {
        author_evict(author);
        uint64_t span = record_span(length), padding = writer_padding(&author->ring, span);
        uint64_t required = author->ring.position + padding + span - author->ring.capacity;
        if (author->world->spill && author_make_way(author, required))
            continue;
        bell_arm(&author->own);
        if (!writer_wait_holds(&author->ring) && !(LOAD_ACQUIRE(&author->world->dead) && !author->evicted))
            sleep_on(&author->own);
        bell_awake(&author->own);
        bell_empty(&author->own);
        writer_take_wait(&author->ring);
    }
    uint64_t seq = author->ring.seq + (writer_padding(&author->ring, record_span(length)) ? 1 : 0);
    unsigned char bytes[CAPACITY / 8];
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = byte_of(author->number, seq, i);
    ring_copy(place, bytes, length);
    writer_commit(&author->ring, length, kind, ~0ull);
    struct ring_record header = {.length = length, .kind = kind, .seq = seq};
    for (uint64_t left = author->detached; left; left &= left - 1) {
        int slot = __builtin_ctzll(left);
        spill_record(&author->world->links[author->number][slot], &header, bytes);
        author->spilled[slot]++;
    }
}

static void *write_all(void *argument)
{
    struct thread *me = argument;
    struct world *world = me->world;
    struct author *author = calloc(1, sizeof *author);
    unsigned seed = world->seed + (unsigned)me->number;
    if (!author)
        abort();
    author->world = world;
    author->number = me->number;
    author->own = bell_of(world, me->number);
    writer_init(&author->ring, world->maps[me->number], CAPACITY, 1, 1, (uint32_t)me->number);
    for (int i = 0; i < READERS; i++) {
        author->bells[i] = bell_of(world, WRITERS + i);
        writer_admit(&author->ring, &author->bells[i], (uint32_t)(WRITERS + i));
    }
    STORE_RELEASE(&world->open[me->number], 1);
    for (int i = 0; i < RECORDS; i++) {
        author_send(author, (uint32_t)rand_r(&seed) % (CAPACITY / 8 + 1), KIND_DATA);
        if (i % 3 == 0)
            writer_flush(&author->ring);
    }
    author_send(author, 0, KIND_CLOSE);
    writer_flush(&author->ring);
    free(author);
    return NULL;
}

/* ---- readers ---- */

struct copied {
    struct ring_record header;
    unsigned char bytes[CAPACITY / 8];
};

struct stream {
    struct ring_reader ring;
    struct link *link;
    int writer;
    uint64_t last_seq, count;
    bool ended;
};

static void deliver(struct stream *stream, uint64_t seq, uint8_t kind, uint32_t length, const unsigned char *bytes)
{
    if (seq < stream->last_seq || seq > stream->last_seq + 1) /* one PAD may lie between */
        fail("a gap, a double or disorder", stream->last_seq, seq);
    for (uint32_t i = 0; i < length; i++)
        if (bytes[i] != byte_of(stream->writer, seq, i))
            fail("a torn record", byte_of(stream->writer, seq, i), bytes[i]);
    stream->last_seq = seq + 1;
    stream->ended = kind == KIND_CLOSE;
    stream->count += kind == KIND_DATA;
}

/* A record in place. Whether there was one. */
static bool read_view(struct stream *stream)
{
    struct ring_reader ring = stream->ring;
    struct read_record record;
    uint64_t head = ring.position;
    enum read_result result = reader_next(&ring, &head, &record);
    if (result == READ_NONE || (ring.position != stream->ring.position && !reader_consume(&stream->ring, &ring)))
        return false;
    if (!reader_pin(&stream->ring))
        return true;
    if (reader_peek(&stream->ring, head, &record) != READ_RECORD)
        fail(record.fault, record.expected, record.seen);
    unsigned char bytes[CAPACITY / 8];
    ring_copy(bytes, record.payload, record.header.length);
    deliver(stream, record.header.seq, record.header.kind, record.header.length, bytes);
    reader_take(&stream->ring, &record);
    reader_unpin(&stream->ring);
    return true;
}

static bool read_batch(struct stream *stream)
{
    struct copied copies[BATCH];
    struct ring_reader ring = stream->ring;
    struct read_record record;
    uint64_t head = ring.position;
    enum read_result result = READ_NONE;
    int count = 0;
    while (count < BATCH && (result = reader_next(&ring, &head, &record)) == READ_RECORD) {
        copies[count].header = record.header;
        if (record.header.length <= sizeof copies[count].bytes)
            ring_copy(copies[count].bytes, record.payload, record.header.length);
        count++;
        reader_take(&ring, &record);
    }
    if (result == READ_NONE && ring.position == stream->ring.position)
        return false;
    if (!reader_consume(&stream->ring, &ring))
        return true; /* detached: nothing counts */
    if (result == READ_CORRUPT && count == 0)
        fail(record.fault, record.expected, record.seen);
    for (int i = 0; i < count; i++)
        deliver(stream, copies[i].header.seq, copies[i].header.kind, copies[i].header.length, copies[i].bytes);
    return true;
}

static bool read_link(struct stream *stream)
{
    struct frame *frame = link_pop(stream->link);
    if (!frame)
        return false;
    if (frame->kind == NOTICE) {
        reader_attach(&stream->ring, frame->position, frame->seq);
    } else {
        deliver(stream, frame->seq, frame->kind, frame->length, frame->bytes);
        reader_took(&stream->ring, 1, frame->length);
    }
    free(frame);
    return true;
}

static bool read_some(struct stream *stream, bool in_place)
{
    if (stream->ended)
        return false;
    if (stream->ring.detached)
        return read_link(stream);
    return in_place ? read_view(stream) : read_batch(stream);
}

static bool is_ready(struct stream *stream)
{
    if (stream->ended)
        return false;
    if (stream->ring.detached)
        return link_holds(stream->link);
    return reader_ready(&stream->ring);
}

static void *read_all(void *argument)
{
    struct thread *me = argument;
    struct world *world = me->world;
    struct bell own = bell_of(world, WRITERS + me->number), bells[WRITERS];
    struct stream streams[WRITERS];
    unsigned seed = world->seed * 7 + (unsigned)me->number;
    memset(streams, 0, sizeof streams);
    for (int i = 0; i < WRITERS; i++) {
        while (!LOAD_ACQUIRE(&world->open[i]))
            cpu_relax();
        bells[i] = bell_of(world, i);
        reader_init(&streams[i].ring, world->maps[i], me->number, &bells[i]);
        streams[i].link = &world->links[i][me->number];
        streams[i].writer = i;
    }
    for (;;) {
        bool busy = false, ended = true;
        for (int i = 0; i < WRITERS; i++) {
            busy = read_some(&streams[i], rand_r(&seed) % 4 == 0) || busy;
            ended = ended && streams[i].ended;
        }
        if (me->die_at && streams[0].count >= me->die_at)
            return NULL;
        if (ended)
            break;
        if (rand_r(&seed) % 64 == 0)
            usleep(rand_r(&seed) % 300); /* a laggard */
        if (busy)
            continue;
        bell_arm(&own);
        bool ready = false;
        for (int i = 0; i < WRITERS; i++)
            ready = ready || is_ready(&streams[i]);
        if (!ready)
            sleep_on(&own);
        bell_awake(&own);
        bell_empty(&own);
    }
    for (int i = 0; i < WRITERS; i++)
        if (streams[i].count != RECORDS)
            fail("records of a stream", RECORDS, streams[i].count);
    return NULL;
}

/* ---- rounds ---- */

static void run(unsigned seed, bool spill)
{
    struct world *world = calloc(1, sizeof *world);
    pthread_t writers[WRITERS], readers[READERS];
    struct thread authors[WRITERS], audience[READERS];
    if (!world)
        abort();
    world->spill = spill;
    world->seed = seed;
    for (int i = 0; i < WRITERS + READERS; i++)
        world->eventfds[i] = eventfd(0, EFD_NONBLOCK);
    for (int i = 0; i < WRITERS; i++) {
        world->maps[i] = aligned_alloc(4096, RING_HEADER_BYTES + CAPACITY + 4096 - CAPACITY % 4096);
        if (!world->maps[i])
            abort();
        memset(world->maps[i], 0, RING_HEADER_BYTES + CAPACITY);
        for (int k = 0; k < READERS; k++) {
            struct link *link = &world->links[i][k];
            pthread_mutex_init(&link->lock, NULL);
            link->last = &link->first;
            link->wakes = world->eventfds[WRITERS + k];
        }
    }
    for (int i = 0; i < READERS; i++) {
        audience[i] = (struct thread){world, i, i == READERS - 1 ? 1 + seed % RECORDS : 0};
        pthread_create(&readers[i], NULL, read_all, &audience[i]);
    }
    for (int i = 0; i < WRITERS; i++) {
        authors[i] = (struct thread){world, i, 0};
        pthread_create(&writers[i], NULL, write_all, &authors[i]);
    }
    pthread_join(readers[READERS - 1], NULL); /* the proof of its death */
    STORE_RELEASE(&world->dead, READERS);
    FENCE_SEQ_CST();
    for (int i = 0; i < WRITERS; i++) {
        struct bell bell = bell_of(world, i);
        bell_notify(&bell);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    for (int i = 0; i < READERS - 1; i++)
        pthread_join(readers[i], NULL);
    for (int i = 0; i < WRITERS; i++) {
        for (int k = 0; k < READERS; k++) {
            struct frame *frame;
            while ((frame = link_pop(&world->links[i][k])))
                free(frame);
            pthread_mutex_destroy(&world->links[i][k].lock);
        }
        free(world->maps[i]);
    }
    for (int i = 0; i < WRITERS + READERS; i++)
        close(world->eventfds[i]);
    free(world);
}

int main(int count, char **arguments)
{
    double seconds = count > 1 ? atof(arguments[1]) : 5;
    bool spill = count > 2 && atoi(arguments[2]);
    struct timespec start, now;
    unsigned rounds = 0;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        run(12345 + rounds++ * 997, spill);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) * 1e-9 < seconds);
    printf("%u rounds of %d records from %d writers to %d readers%s: all in order\n", rounds, RECORDS, WRITERS, READERS,
           spill ? ", with spill" : "");
    return 0;
}
