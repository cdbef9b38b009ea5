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
        mapping_open(&self->map, fd, "RingReader", false) < 0 ||
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

static PyObject *ring_reader_ready(RingReaderObject *self, PyObject *Py_UNUSED(ignored))
{
    return mapping_is_forked(&self->map) ? NULL : PyBool_FromLong(reader_ready(&self->ring));
}

static PyObject *ring_reader_counters(RingReaderObject *self, PyObject *Py_UNUSED(ignored))
{
    const struct reader_stats *s = &self->ring.stats;
    return Py_BuildValue("KKKKKK", s->records, s->bytes, s->skipped, s->wakes_sent, s->spilled, s->detaches);
}

static PyObject *ring_reader_took(RingReaderObject *self, PyObject *const *args, Py_ssize_t given,
                                  PyObject *keywords)
{
    static const char *const names[] = {"records", "size_bytes", NULL};
    PyObject *out[2];
    uint64_t records, size;
    if (mapping_is_forked(&self->map) || take_arguments("took", names, 2, args, given, keywords, out) < 0 ||
        take_unsigned(out[0], "records", INT64_MAX, &records) < 0 ||
        take_unsigned(out[1], "size_bytes", INT64_MAX, &size) < 0)
        return NULL;
    reader_took(&self->ring, records, size);
    Py_RETURN_NONE;
}

static PyObject *ring_reader_attach(RingReaderObject *self, PyObject *const *args, Py_ssize_t given,
                                    PyObject *keywords)
{
    static const char *const names[] = {"position", "seq", NULL};
    PyObject *out[2];
    uint64_t position, seq;
    if (!reader_may_read(self) || take_arguments("attach", names, 2, args, given, keywords, out) < 0 ||
        take_unsigned(out[0], "position", UINT64_MAX, &position) < 0 ||
        take_unsigned(out[1], "seq", UINT64_MAX, &seq) < 0)
        return NULL;
    if (!self->ring.detached || position <= self->ring.position || position % RING_ALIGN)
        return PyErr_Format(self->state->ring_corrupt,
                            "ring of epoch %llu, reader slot %d, position %llu: a notice to go on at %llu makes no "
                            "sense here",
                            (unsigned long long)self->ring.header->epoch, self->ring.slot,
                            (unsigned long long)self->ring.position, (unsigned long long)position);
    reader_attach(&self->ring, position, seq);
    Py_RETURN_NONE;
}

static PyObject *get_head(RingReaderObject *self, void *Py_UNUSED(closure))
{
    return mapping_is_forked(&self->map) ? NULL : PyLong_FromUnsignedLongLong(LOAD_ACQUIRE(&self->ring.header->head));
}

static PyObject *get_epoch(RingReaderObject *self, void *Py_UNUSED(closure))
{
    return mapping_is_forked(&self->map) ? NULL : PyLong_FromUnsignedLongLong(self->ring.header->epoch);
}

static PyObject *get_writer_bell_slot(RingReaderObject *self, void *Py_UNUSED(closure))
{
    if (mapping_is_forked(&self->map))
        return NULL;
    uint32_t slot = self->ring.header->writer_bell_slot;
    return PyLong_FromLong(slot == UINT32_MAX ? -1 : (long)slot);
}

static PyMethodDef methods[] = {
    METHOD("poll", ring_reader_poll, METH_FASTCALL | METH_KEYWORDS,
           "poll(max_records=256) -> list[Message]\n\nThe next records for this reader, copied out; their space is free "
           "then. At most so many, and no more after 64 KiB.\nAn OVERFLOW record ends the list and comes again until "
           "step(); CLOSE is the last one ever. Nothing while\ndetached. RingCorrupt after all good records were "
           "returned."),
    METHOD("poll_payloads", ring_reader_poll_payloads, METH_FASTCALL | METH_KEYWORDS,
           "poll_payloads(max_records=256) -> list[bytes]\n\nThe same without the Message around each; ends before an "
           "OVERFLOW record, which poll() returns."),
    METHOD("poll_into", ring_reader_poll_into, METH_FASTCALL | METH_KEYWORDS,
           "poll_into(buffer, record_bytes) -> int\n\nPayloads of equal size, one after another into a writable buffer: "
           "no object for each. How many; ends before\nan OVERFLOW record, and before one of another size, which is a "
           "ValueError when it is the first."),
    METHOD("step", ring_reader_step, METH_NOARGS,
           "step() -> bool\n\nPass over the OVERFLOW record that poll() returned last. False: we are detached, and it "
           "comes again by link."),
    METHOD("view", ring_reader_view, METH_NOARGS,
           "view() -> RecordView | None\n\nThe next record in place: its space is kept until the view ends. None if "
           "there is none, or if it is no\nDATA record, which poll() takes."),
    METHOD("attach", ring_reader_attach, METH_FASTCALL | METH_KEYWORDS,
           "attach(position, seq)\n\nThe writer's notice: the records sent over the link end here, go on in the ring."),
    METHOD("took", ring_reader_took, METH_FASTCALL | METH_KEYWORDS,
           "took(records, size_bytes)\n\nTell the writer that so much more from the link has been delivered."),
    METHOD("ready", ring_reader_ready, METH_NOARGS, "ready() -> bool\n\nWhether a poll would have something to do."),
    METHOD("counters", ring_reader_counters, METH_NOARGS, "counters() -> tuple\n\nThe fields of ReaderStatistics."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"slot", T_INT, offsetof(RingReaderObject, ring.slot), READONLY, PyDoc_STR("Our bit in masks.")},
    {"capacity", T_ULONGLONG, offsetof(RingReaderObject, ring.capacity), READONLY, PyDoc_STR("Bytes of records.")},
    {"position", T_ULONGLONG, offsetof(RingReaderObject, ring.position), READONLY, PyDoc_STR("Bytes consumed.")},
    {"detached", T_BOOL, offsetof(RingReaderObject, ring.detached), READONLY,
     PyDoc_STR("The writer took us out of the ring for lagging: records come over the link until attach().")},
    {"closed", T_BOOL, offsetof(RingReaderObject, ring.closed), READONLY,
     PyDoc_STR("The writer has closed and everything before was returned.")},
    {"blocked", T_BOOL, offsetof(RingReaderObject, ring.blocked), 0,
     PyDoc_STR("The next record waits for something outside the ring, so arm and wait do not count it as ready.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"head", (getter)get_head, NULL, PyDoc_STR("Bytes published by the writer, at this moment."), NULL},
    {"writer_bell_slot", (getter)get_writer_bell_slot, NULL,
     PyDoc_STR("The writer's place on the board; -1 if it has no doorbell."), NULL},
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
