/* Python type RingReader: a reading end. The protocol stands in reader.h. */
#include "binding.h"

static int check_header(RingReaderObject *self, uint64_t epoch, int slot, uint64_t join_position)
{
    PyObject *mismatch = self->state->ring_mismatch;
    const struct ring_header *header = self->map.base;
    if (self->map.size < RING_HEADER_BYTES || LOAD_ACQUIRE(&header->magic) != RING_MAGIC) {
        PyErr_Format(mismatch, "this segment of %zu bytes holds no ring (has its writer opened it?)", self->map.size);
        return -1;
    }
    if (header->abi != RING_ABI || header->header_bytes != RING_HEADER_BYTES || header->align != RING_ALIGN ||
        header->max_readers != RING_MAX_READERS) {
        PyErr_Format(mismatch, "the ring has layout %u, this process knows %u: both ends need the same version",
                     header->abi, RING_ABI);
        return -1;
    }
    uint64_t capacity = header->capacity;
    if (capacity < RING_MIN_CAPACITY || (capacity & (capacity - 1)) ||
        capacity != self->map.size - RING_HEADER_BYTES) {
        PyErr_Format(mismatch, "the ring claims a capacity of %llu bytes, its segment has %zu",
                     (unsigned long long)capacity, self->map.size);
        return -1;
    }
    if (header->epoch != epoch) {
        PyErr_Format(mismatch, "the ring is of epoch %llu, expected %llu: its writer has been restarted",
                     (unsigned long long)header->epoch, (unsigned long long)epoch);
        return -1;
    }
    const struct ring_reader_line *line = &header->readers[slot];
    if ((LOAD_ACQUIRE(&line->gen_state) & 0xFF) != SLOT_ACTIVE || line->join_position != join_position) {
        PyErr_Format(mismatch, "reader slot %d was not admitted at position %llu", slot,
                     (unsigned long long)join_position);
        return -1;
    }
    return 0;
}

static PyObject *ring_reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"fd", "slot", "join_position", "writer_bell", "epoch", NULL};
    PyObject *fd, *slot_number, *position_number, *writer_bell, *epoch_number;
    uint64_t slot, join_position, epoch;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOO:RingReader", names, &fd, &slot_number, &position_number,
                                     &writer_bell, &epoch_number) ||
        take_unsigned(slot_number, "slot", RING_MAX_READERS - 1, &slot) < 0 ||
        take_unsigned(position_number, "join_position", UINT64_MAX, &join_position) < 0 ||
        take_unsigned(epoch_number, "epoch", UINT64_MAX, &epoch) < 0)
        return NULL;
    RingReaderObject *self = (RingReaderObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->state = native_state_of(type);
    if (take_doorbell(self->state, writer_bell, "writer_bell", &self->writer_bell) < 0 ||
        mapping_open(&self->map, fd, "RingReader") < 0 ||
        check_header(self, epoch, (int)slot, join_position) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    reader_init(&self->ring, self->map.base, (int)slot,
                self->writer_bell ? &((DoorbellObject *)self->writer_bell)->bell : NULL);
    return (PyObject *)self;
}

static void ring_reader_dealloc(RingReaderObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    mapping_close(&self->map);
    Py_CLEAR(self->writer_bell);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *make_message(RingReaderObject *self, const struct read_record *record)
{
    PyObject *message = PyStructSequence_New(self->state->message);
    if (!message)
        return NULL;
    PyObject *fields[] = {
        PyLong_FromLong(record->header.type),
        PyBytes_FromStringAndSize((const char *)record->payload, record->header.length),
        PyLong_FromLong(record->header.kind),
        PyLong_FromUnsignedLongLong(record->header.seq),
    };
    bool complete = true;
    for (int i = 0; i < 4; i++) {
        PyStructSequence_SetItem(message, i, fields[i]);
        complete = complete && fields[i];
    }
    if (!complete)
        Py_CLEAR(message);
    return message;
}

static PyObject *raise_corrupt(RingReaderObject *self, const struct read_record *record)
{
    return PyErr_Format(self->state->ring_corrupt,
                        "ring of epoch %llu, reader slot %d, position %llu: %s is %llu, expected %llu",
                        (unsigned long long)self->ring.header->epoch, self->ring.slot,
                        (unsigned long long)self->ring.position, record->fault, (unsigned long long)record->seen,
                        (unsigned long long)record->expected);
}

static PyObject *ring_reader_poll(RingReaderObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"max_records", NULL};
    PyObject *out[1];
    uint64_t max_records = 256;
    if (mapping_is_forked(&self->map) || take_arguments("poll", names, 0, args, given, keywords, out) < 0 ||
        (out[0] && take_unsigned(out[0], "max_records", INT64_MAX, &max_records) < 0))
        return NULL;
    PyObject *list = PyList_New(0);
    if (!list)
        return NULL;
    struct ring_reader ring = self->ring; /* a copy: an exception on the way leaves the reader where it was */
    struct read_record record;
    uint64_t head = ring.position;
    while ((uint64_t)PyList_GET_SIZE(list) < max_records) {
        enum read_result result = reader_next(&ring, &head, &record);
        if (result == READ_NONE)
            break;
        if (result == READ_CORRUPT) {
            if (PyList_GET_SIZE(list))
                break; /* what came before is good; the next poll raises */
            Py_DECREF(list);
            return raise_corrupt(self, &record);
        }
        PyObject *message = make_message(self, &record);
        int appended = message ? PyList_Append(list, message) : -1;
        Py_XDECREF(message);
        if (appended < 0) {
            Py_DECREF(list);
            return NULL;
        }
        if (record.header.kind == KIND_OVERFLOW)
            break; /* stays the next one until step() */
        reader_move(&ring, &record);
        ring.stats.records++;
        ring.stats.bytes += record.header.length;
        if (record.header.kind == KIND_CLOSE) {
            ring.closed = true;
            break;
        }
    }
    self->ring = ring;
    reader_release(&self->ring);
    if (PyList_GET_SIZE(list) == 0)
        reader_check_closed(&self->ring);
    return list;
}

static PyObject *ring_reader_step(RingReaderObject *self, PyObject *Py_UNUSED(ignored))
{
    if (mapping_is_forked(&self->map))
        return NULL;
    struct ring_reader ring = self->ring;
    struct read_record record;
    uint64_t head = ring.position;
    enum read_result result = reader_next(&ring, &head, &record);
    if (result == READ_CORRUPT)
        return raise_corrupt(self, &record);
    if (result != READ_RECORD || record.header.kind != KIND_OVERFLOW)
        return PyErr_Format(PyExc_RuntimeError, "step() passes over an OVERFLOW record that poll() returned last");
    reader_move(&ring, &record);
    ring.stats.records++;
    self->ring = ring;
    reader_release(&self->ring);
    Py_RETURN_NONE;
}

static PyObject *ring_reader_ready(RingReaderObject *self, PyObject *Py_UNUSED(ignored))
{
    return mapping_is_forked(&self->map) ? NULL : PyBool_FromLong(reader_ready(&self->ring));
}

static PyObject *ring_reader_counters(RingReaderObject *self, PyObject *Py_UNUSED(ignored))
{
    const struct reader_stats *s = &self->ring.stats;
    return Py_BuildValue("KKKK", s->records, s->bytes, s->skipped, s->wakes_sent);
}

static PyObject *get_head(RingReaderObject *self, void *Py_UNUSED(closure))
{
    return mapping_is_forked(&self->map) ? NULL : PyLong_FromUnsignedLongLong(LOAD_ACQUIRE(&self->ring.header->head));
}

static PyObject *get_epoch(RingReaderObject *self, void *Py_UNUSED(closure))
{
    return mapping_is_forked(&self->map) ? NULL : PyLong_FromUnsignedLongLong(self->ring.header->epoch);
}

static PyMethodDef methods[] = {
    METHOD("poll", ring_reader_poll, METH_FASTCALL | METH_KEYWORDS,
           "poll(max_records=256) -> list[Message]\n\nThe next records for this reader, copied out; their space is free "
           "then. An OVERFLOW record ends the list\nand comes again until step(); CLOSE is the last one ever. RingCorrupt "
           "after all good records were returned."),
    METHOD("step", ring_reader_step, METH_NOARGS, "step()\n\nPass over the OVERFLOW record that poll() returned last."),
    METHOD("ready", ring_reader_ready, METH_NOARGS, "ready() -> bool\n\nWhether a poll would have something to do."),
    METHOD("counters", ring_reader_counters, METH_NOARGS, "counters() -> tuple\n\nThe fields of ReaderStatistics."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"slot", T_INT, offsetof(RingReaderObject, ring.slot), READONLY, PyDoc_STR("Our bit in masks.")},
    {"capacity", T_ULONGLONG, offsetof(RingReaderObject, ring.capacity), READONLY, PyDoc_STR("Bytes of records.")},
    {"position", T_ULONGLONG, offsetof(RingReaderObject, ring.position), READONLY, PyDoc_STR("Bytes consumed.")},
    {"closed", T_BOOL, offsetof(RingReaderObject, ring.closed), READONLY,
     PyDoc_STR("The writer has closed and everything before was returned.")},
    {"blocked", T_BOOL, offsetof(RingReaderObject, ring.blocked), 0,
     PyDoc_STR("The next record waits for something outside the ring, so arm and wait do not count it as ready.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"head", (getter)get_head, NULL, PyDoc_STR("Bytes published by the writer, at this moment."), NULL},
    {"epoch", (getter)get_epoch, NULL, PyDoc_STR("Which life of its writer this ring belongs to."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, PyDoc_STR("The native reading end; ringcast.channels.RingReader documents it.")},
    {Py_tp_new, ring_reader_new},
    {Py_tp_dealloc, ring_reader_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec ring_reader_spec = {"ringcast.channels._native.RingReader", sizeof(RingReaderObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, type_slots};
