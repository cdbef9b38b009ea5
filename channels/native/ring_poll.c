/* The copying reads of RingReader. The protocol stands in reader.h: copy first, then consume, then deliver. */
#include "binding.h"

/* Of payload at once: the writer gets their space back while we go on, and what the caller drops is used for the next
 * batch while it is still in the cache. Fresh pages for each would cost several times the copy. */
#define BATCH_BYTES (64 * 1024)

bool reader_may_read(RingReaderObject *self)
{
    if (mapping_is_forked(&self->map))
        return false;
    if (self->ring.pinned) {
        PyErr_SetString(PyExc_BufferError, "a view of the next record is open: end it first");
        return false;
    }
    return true;
}

PyObject *raise_corrupt(RingReaderObject *self, const struct read_record *record)
{
    return PyErr_Format(self->state->ring_corrupt,
                        "ring of epoch %llu, reader slot %d, position %llu: %s is %llu, expected %llu",
                        (unsigned long long)self->ring.header->epoch, self->ring.slot,
                        (unsigned long long)self->ring.position, record->fault, (unsigned long long)record->seen,
                        (unsigned long long)record->expected);
}

/* What a loop over reader_next does with a record. */
enum verdict { TAKEN, NOT_NOW, FAILED };

typedef enum verdict (*take_record)(RingReaderObject *self, const struct read_record *record, void *into);

/* Show up to `limit` records to `take`, which copies them, and consume those it took. 0: they may be delivered, as may
 * what it copied of one that it did not take. 1: we are detached, and nothing that was copied counts. -1: an exception
 * is set and nothing was consumed, or the ring is corrupt after all that had been taken. */
static inline __attribute__((always_inline)) int read_batch(RingReaderObject *self, uint64_t limit, take_record take,
                                                            void *into)
{
    struct ring_reader ring = self->ring; /* goes ahead */
    struct read_record record;
    enum read_result result = READ_NONE;
    uint64_t taken = 0, most = ring.stats.bytes + BATCH_BYTES;
    if (ring.detached || ring.closed)
        return 0;
    uint64_t head = LOAD_ACQUIRE(&ring.header->head); /* once: to chase the writer would take its lines away from it */
    for (; taken < limit && ring.position != head && !ring.closed && ring.stats.bytes < most; taken++) {
        result = reader_next(&ring, &head, &record);
        if (result != READ_RECORD)
            break;
        enum verdict verdict = take(self, &record, into);
        if (verdict == FAILED)
            return -1;
        if (verdict == NOT_NOW)
            break;
        reader_take(&ring, &record);
    }
    if ((result != READ_NONE || ring.position != self->ring.position) && !reader_consume(&self->ring, &ring))
        return 1;
    if (taken == 0)
        reader_check_closed(&self->ring);
    if (taken == 0 && result == READ_CORRUPT) {
        raise_corrupt(self, &record);
        return -1;
    }
    return 0;
}

/* The list that a batch filled, or what its end makes of it. */
static PyObject *end_list(PyObject *list, int ended)
{
    if (ended < 0 || (ended > 0 && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) < 0))
        Py_CLEAR(list);
    return list;
}

static int take_limit(PyObject *number, uint64_t *limit)
{
    *limit = POLL_LIMIT;
    return number ? take_unsigned(number, "max_records", INT64_MAX, limit) : 0;
}

static enum verdict append(PyObject *list, PyObject *item)
{
    int appended = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return appended < 0 ? FAILED : TAKEN;
}

static enum verdict take_message(RingReaderObject *self, const struct read_record *record, void *list)
{
    enum verdict verdict = append(list, make_message(self->state, &record->header, record->payload));
    return verdict == TAKEN && record->header.kind == KIND_OVERFLOW ? NOT_NOW : verdict; /* until step() */
}

PyObject *ring_reader_poll(RingReaderObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"max_records", NULL};
    PyObject *out[1];
    uint64_t limit;
    if (!reader_may_read(self) || take_arguments("poll", names, 0, args, given, keywords, out) < 0 ||
        take_limit(out[0], &limit) < 0)
        return NULL;
    PyObject *list = PyList_New(0);
    return list ? end_list(list, read_batch(self, limit, take_message, list)) : NULL;
}

static enum verdict take_payload(RingReaderObject *Py_UNUSED(self), const struct read_record *record, void *list)
{
    if (record->header.kind == KIND_CLOSE)
        return TAKEN;
    if (record->header.kind != KIND_DATA)
        return NOT_NOW;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, record->header.length);
    if (bytes)
        ring_copy(PyBytes_AS_STRING(bytes), record->payload, record->header.length);
    return append(list, bytes);
}

PyObject *ring_reader_poll_payloads(RingReaderObject *self, PyObject *const *args, Py_ssize_t given,
                                    PyObject *keywords)
{
    static const char *const names[] = {"max_records", NULL};
    PyObject *out[1];
    uint64_t limit;
    if (!reader_may_read(self) || take_arguments("poll_payloads", names, 0, args, given, keywords, out) < 0 ||
        take_limit(out[0], &limit) < 0)
        return NULL;
    PyObject *list = PyList_New(0);
    return list ? end_list(list, read_batch(self, limit, take_payload, list)) : NULL;
}

struct equal_records {
    unsigned char *place;
    uint32_t size;
    uint64_t count;
    bool other_size;
    uint32_t seen_size;
};

static enum verdict take_equal(RingReaderObject *Py_UNUSED(self), const struct read_record *record, void *into)
{
    struct equal_records *records = into;
    if (record->header.kind == KIND_CLOSE)
        return TAKEN;
    if (record->header.kind != KIND_DATA)
        return NOT_NOW;
    if (record->header.length != records->size) {
        records->other_size = true;
        records->seen_size = record->header.length;
        return NOT_NOW;
    }
    ring_copy(records->place, record->payload, records->size);
    records->place += records->size;
    records->count++;
    return TAKEN;
}

PyObject *ring_reader_poll_into(RingReaderObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"buffer", "record_bytes", NULL};
    PyObject *out[2];
    uint64_t size;
    Py_buffer view;
    if (!reader_may_read(self) || take_arguments("poll_into", names, 2, args, given, keywords, out) < 0 ||
        take_unsigned(out[1], "record_bytes", UINT32_MAX, &size) < 0 ||
        PyObject_GetBuffer(out[0], &view, PyBUF_WRITABLE) < 0)
        return NULL;
    if (size == 0 || (uint64_t)view.len < size) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes for records of %llu bytes", view.len,
                     (unsigned long long)size);
        PyBuffer_Release(&view);
        return NULL;
    }
    struct equal_records records = {.place = view.buf, .size = (uint32_t)size};
    int ended = read_batch(self, (uint64_t)view.len / size, take_equal, &records);
    PyBuffer_Release(&view);
    if (ended < 0)
        return NULL;
    if (ended == 0 && records.count == 0 && records.other_size)
        return PyErr_Format(PyExc_ValueError, "the next record has %u bytes, not %llu: poll() takes it",
                            records.seen_size, (unsigned long long)size);
    return PyLong_FromUnsignedLongLong(ended ? 0 : records.count);
}

PyObject *ring_reader_step(RingReaderObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!reader_may_read(self))
        return NULL;
    if (self->ring.detached)
        Py_RETURN_FALSE;
    struct ring_reader ring = self->ring;
    struct read_record record = {.fault = NULL};
    uint64_t head = ring.position;
    enum read_result result = reader_next(&ring, &head, &record);
    if (result == READ_RECORD && record.header.kind == KIND_OVERFLOW) {
        reader_move(&ring, &record);
        ring.stats.records++;
    }
    if (!reader_consume(&self->ring, &ring))
        Py_RETURN_FALSE;
    if (result == READ_CORRUPT)
        return raise_corrupt(self, &record);
    if (result != READ_RECORD || record.header.kind != KIND_OVERFLOW)
        return PyErr_Format(PyExc_RuntimeError, "step() passes over an OVERFLOW record that poll() returned last");
    Py_RETURN_TRUE;
}
