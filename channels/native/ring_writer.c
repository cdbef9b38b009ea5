/* Python type RingWriter: the writing end. The protocol stands in writer.h. */
#include "binding.h"

#include <sys/random.h>

static PyObject *ring_writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"fd", "own_bell", "epoch", NULL};
    PyObject *fd, *own_bell, *epoch_number;
    uint64_t epoch, ring_id = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO$O:RingWriter", names, &fd, &own_bell, &epoch_number))
        return NULL;
    if (!epoch_number) {
        PyErr_SetString(PyExc_TypeError, "RingWriter() misses the argument 'epoch'");
        return NULL;
    }
    if (take_unsigned(epoch_number, "epoch", UINT64_MAX, &epoch) < 0)
        return NULL;
    RingWriterObject *self = (RingWriterObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->state = native_state_of(type);
    if (take_doorbell(self->state, own_bell, "own_bell", &self->own_bell) < 0 ||
        mapping_open(&self->map, fd, "RingWriter", false) < 0)
        goto fail;
    uint64_t capacity = self->map.size > RING_HEADER_BYTES ? self->map.size - RING_HEADER_BYTES : 0;
    if (capacity < RING_MIN_CAPACITY || capacity > RING_MAX_CAPACITY || (capacity & (capacity - 1))) {
        PyErr_Format(PyExc_ValueError,
                     "a segment of %zu bytes fits no ring: make it with create_segment(RingWriter.size_bytes(capacity))",
                     self->map.size);
        goto fail;
    }
    uint64_t magic = LOAD_ACQUIRE(&((struct ring_header *)self->map.base)->magic);
    if (magic != 0) {
        PyErr_Format(self->state->ring_mismatch,
                     "the segment is in use already (magic %08x%08x): a new writer starts a new ring in a new segment",
                     (unsigned)(magic >> 32), (unsigned)magic);
        goto fail;
    }
    if (self->own_bell)
        doorbell_own((DoorbellObject *)self->own_bell); /* a writer may never wait, and yet be one of the board's busy */
    if (getrandom(&ring_id, sizeof ring_id, 0) != sizeof ring_id) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto fail;
    }
    writer_init(&self->ring, self->map.base, capacity, epoch, ring_id,
                self->own_bell ? ((DoorbellObject *)self->own_bell)->slot : UINT32_MAX);
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static void ring_writer_dealloc(RingWriterObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    mapping_close(&self->map);
    for (int slot = 0; slot < RING_MAX_READERS; slot++)
        Py_CLEAR(self->bells[slot]);
    Py_CLEAR(self->own_bell);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *ring_writer_size_bytes(PyObject *Py_UNUSED(type), PyObject *const *args, Py_ssize_t given,
                                        PyObject *keywords)
{
    static const char *const names[] = {"capacity", NULL};
    PyObject *out[1];
    uint64_t capacity = 2 << 20;
    if (take_arguments("size_bytes", names, 0, args, given, keywords, out) < 0 ||
        (out[0] && take_unsigned(out[0], "capacity", UINT64_MAX, &capacity) < 0))
        return NULL;
    if (capacity < RING_MIN_CAPACITY || capacity > RING_MAX_CAPACITY || (capacity & (capacity - 1)))
        return PyErr_Format(PyExc_ValueError, "capacity is %llu: it must be a power of two from %d to %llu",
                            (unsigned long long)capacity, RING_MIN_CAPACITY, RING_MAX_CAPACITY);
    return PyLong_FromUnsignedLongLong(RING_HEADER_BYTES + capacity);
}

/* ---- membership ---- */

static PyObject *ring_writer_admit(RingWriterObject *self, PyObject *doorbell)
{
    PyObject *bell;
    if (mapping_is_forked(&self->map) || take_doorbell(self->state, doorbell, "bell", &bell) < 0)
        return NULL;
    if (!bell)
        return PyErr_Format(PyExc_TypeError, "bell must be a Doorbell: a reader that cannot be woken would be lost");
    int slot = writer_admit(&self->ring, &((DoorbellObject *)bell)->bell, ((DoorbellObject *)bell)->slot);
    if (slot < 0) {
        Py_DECREF(bell);
        return PyErr_Format(self->state->reader_limit, "all %d reader slots of this ring are taken: use a second ring",
                            RING_MAX_READERS);
    }
    self->bells[slot] = bell;
    return PyLong_FromLong(slot);
}

/* The number of an admitted reader, or -1 with ValueError set. */
static int active_slot(RingWriterObject *self, PyObject *number)
{
    uint64_t slot;
    if (mapping_is_forked(&self->map) || take_unsigned(number, "slot", RING_MAX_READERS - 1, &slot) < 0)
        return -1;
    if (!(self->ring.active >> slot & 1)) {
        PyErr_Format(PyExc_ValueError, "no reader in slot %d", (int)slot);
        return -1;
    }
    return (int)slot;
}

static PyObject *ring_writer_evict(RingWriterObject *self, PyObject *number)
{
    int slot = active_slot(self, number);
    if (slot < 0)
        return NULL;
    writer_evict(&self->ring, slot);
    Py_CLEAR(self->bells[slot]);
    if (self->own_bell && writer_wait_holds(&self->ring)) {
        FENCE_SEQ_CST();
        bell_ring(&((DoorbellObject *)self->own_bell)->bell);
    }
    Py_RETURN_NONE;
}

/* ---- spill ---- */

/* Every record from the cursor on that was addressed to the slot, as Messages; NULL with an exception set. */
static PyObject *records_for(RingWriterObject *self, int slot, uint64_t cursor)
{
    PyObject *list = PyList_New(0);
    struct ring_record header;
    const unsigned char *payload;
    while (list && writer_reread(&self->ring, &cursor, &header, &payload)) {
        if (header.kind == KIND_PAD || !(header.dest_mask >> slot & 1))
            continue;
        PyObject *message = make_message(self->state, &header, payload);
        if (!message || PyList_Append(list, message) < 0)
            Py_CLEAR(list);
        Py_XDECREF(message);
    }
    return list;
}

static PyObject *ring_writer_detach(RingWriterObject *self, PyObject *const *args, Py_ssize_t given,
                                    PyObject *keywords)
{
    static const char *const names[] = {"slot", "position", NULL};
    PyObject *out[2];
    uint64_t position, cursor;
    int slot;
    if (take_arguments("detach", names, 2, args, given, keywords, out) < 0 || (slot = active_slot(self, out[0])) < 0 ||
        take_unsigned(out[1], "position", self->ring.position, &position) < 0 || !writer_may_send(self, 0))
        return NULL;
    if (!(self->ring.attached >> slot & 1) || writer_detach(&self->ring, slot, position, &cursor) != DETACH_DONE)
        Py_RETURN_NONE;
    PyObject *records = records_for(self, slot, cursor);
    if (!records)
        writer_attach(&self->ring, slot, cursor); /* nothing was reused yet: as if nothing had happened */
    return records;
}

static PyObject *ring_writer_attach(RingWriterObject *self, PyObject *number)
{
    int slot = active_slot(self, number);
    if (slot < 0)
        return NULL;
    if (self->ring.attached >> slot & 1)
        return PyErr_Format(PyExc_ValueError, "the reader in slot %d is attached", slot);
    writer_attach(&self->ring, slot, self->ring.position);
    return Py_BuildValue("KK", self->ring.position, self->ring.seq);
}

static PyObject *ring_writer_taken(RingWriterObject *self, PyObject *number)
{
    int slot = active_slot(self, number);
    if (slot < 0)
        return NULL;
    const struct ring_reader_line *line = &self->ring.header->readers[slot];
    uint64_t records = LOAD_ACQUIRE(&line->taken_records);
    return Py_BuildValue("KK", records, LOAD_RELAXED(&line->taken_bytes));
}

static PyObject *ring_writer_close(RingWriterObject *self, PyObject *Py_UNUSED(ignored))
{
    if (mapping_is_forked(&self->map))
        return NULL;
    if (self->ring.reserved) {
        PyErr_SetString(PyExc_RuntimeError, "a reserved record is being built: commit or cancel it first");
        return NULL;
    }
    writer_close(&self->ring);
    Py_RETURN_NONE;
}

/* ---- figures ---- */

static PyObject *ring_writer_lag(RingWriterObject *self, PyObject *number)
{
    int slot = active_slot(self, number);
    if (slot < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(self->ring.position - writer_min_cursor(&self->ring, 1ull << slot));
}

static PyObject *ring_writer_laggards(RingWriterObject *self, PyObject *number)
{
    uint64_t position;
    if (mapping_is_forked(&self->map) || take_unsigned(number, "position", UINT64_MAX, &position) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(writer_laggards(&self->ring, position));
}

static PyObject *ring_writer_min_cursor(RingWriterObject *self, PyObject *const *args, Py_ssize_t given,
                                        PyObject *keywords)
{
    static const char *const names[] = {"mask", NULL};
    PyObject *out[1];
    uint64_t mask = UINT64_MAX;
    if (mapping_is_forked(&self->map) || take_arguments("min_cursor", names, 0, args, given, keywords, out) < 0 ||
        (out[0] && take_unsigned(out[0], "mask", UINT64_MAX, &mask) < 0))
        return NULL;
    return PyLong_FromUnsignedLongLong(writer_min_cursor(&self->ring, mask));
}

static PyObject *ring_writer_counters(RingWriterObject *self, PyObject *Py_UNUSED(ignored))
{
    if (mapping_is_forked(&self->map))
        return NULL;
    writer_refresh(&self->ring);
    writer_publish_stats(&self->ring);
    const struct writer_stats *s = &self->ring.stats;
    return Py_BuildValue("KKKKKKKKKKKK", s->records, s->bytes, s->full_waits, s->overflows, s->wakes_sent,
                         s->wakes_suppressed, s->evictions, s->depth_bytes, s->depth_records, s->peak_bytes,
                         s->peak_records, s->detaches);
}

static PyObject *ring_writer_reader_lag(RingWriterObject *self, PyObject *number)
{
    int slot = active_slot(self, number);
    if (slot < 0)
        return NULL;
    writer_refresh(&self->ring);
    int64_t since = self->ring.lags_since_ns[slot];
    uint64_t lag = self->ring.position - writer_cursor(&self->ring, slot);
    return Py_BuildValue("KKdI", lag, lag ? writer_lag_records(&self->ring, slot) : 0,
                         lag && since ? (double)(coarse_now_ns() - since) * 1e-9 : 0.0,
                         self->ring.header->readers[slot].bell_slot);
}

static PyObject *get_max_inline(RingWriterObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->ring.capacity / 8);
}

static PyObject *get_epoch(RingWriterObject *self, void *Py_UNUSED(closure))
{
    return mapping_is_forked(&self->map) ? NULL : PyLong_FromUnsignedLongLong(self->ring.header->epoch);
}

static PyObject *get_wants_space(RingWriterObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(writer_waits(&self->ring));
}

static PyMethodDef methods[] = {
    METHOD("size_bytes", ring_writer_size_bytes, METH_FASTCALL | METH_KEYWORDS | METH_STATIC,
           "size_bytes(capacity=2097152) -> int\n\nHow large the segment of a ring of that capacity must be."),
    METHOD("admit", ring_writer_admit, METH_O,
           "admit(bell) -> int\n\nA free slot, from now on a reader whose first record is the next one sent. "
           "Tell it slot, position and\nepoch. ReaderLimit if all 64 slots are taken."),
    METHOD("evict", ring_writer_evict, METH_O,
           "evict(slot)\n\nForget a reader. Only on proof of its death: a living one would read torn records."),
    METHOD("detach", ring_writer_detach, METH_FASTCALL | METH_KEYWORDS,
           "detach(slot, position) -> list[Message] | None\n\nTake the ring away from a reader that has not come to the "
           "position: its unread records, which must now\nreach it over its link. None: it stays attached, for it has a "
           "view open or has come there."),
    METHOD("attach", ring_writer_attach, METH_O,
           "attach(slot) -> (position, seq)\n\nA detached reader's next record is the next one sent: tell it both over "
           "its link, behind its records."),
    METHOD("taken", ring_writer_taken, METH_O,
           "taken(slot) -> (records, bytes)\n\nWhat this reader has taken from its link since it was admitted."),
    METHOD("try_send", ring_writer_try_send, METH_FASTCALL | METH_KEYWORDS,
           "try_send(payload, mask, type=0, kind=DATA) -> bool\n\nPublish one record for the readers in mask; flush() "
           "rings them. False: the ring is full, every reader that\nholds the space was rung, and own_bell is rung when a "
           "retry is worth while."),
    METHOD("try_send_parts", ring_writer_try_send_parts, METH_FASTCALL | METH_KEYWORDS,
           "try_send_parts(parts, mask, type=0) -> bool\n\nThe same with several buffers, which become one payload."),
    METHOD("send_many", ring_writer_send_many, METH_FASTCALL | METH_KEYWORDS,
           "send_many(payloads, mask, type=0) -> int\n\nPublish a record for each payload, in order, until one does not "
           "fit; how many were. An error of the first\nis raised, one of a later payload ends the batch before it."),
    METHOD("send_records", ring_writer_send_records, METH_FASTCALL | METH_KEYWORDS,
           "send_records(data, record_bytes, mask, type=0) -> int\n\nThe same for equal payloads that lie one after "
           "another in a buffer: no object for each."),
    METHOD("reserve", ring_writer_reserve, METH_FASTCALL | METH_KEYWORDS,
           "reserve(size, mask, type=0) -> Reservation | None\n\nBuild a record in place; nothing is visible before its "
           "commit(). None: the ring is full, as with try_send.\nWhile it is open, nothing else can be sent."),
    METHOD("required", ring_writer_required, METH_O,
           "required(size) -> int\n\nThe position that all readers must have reached before a payload of that size fits."),
    METHOD("laggards", ring_writer_laggards, METH_O,
           "laggards(position) -> int\n\nMask of the attached readers that have not come to the position."),
    METHOD("make_room", ring_writer_make_room, METH_O,
           "make_room(size) -> bool\n\nWhether a payload of that size goes in now; if not, as if it had been refused."),
    METHOD("await_any", ring_writer_await_any, METH_O,
           "await_any(conditions) -> bool\n\nWhether all readers of a mask have consumed up to a position, for any of "
           "these pairs (position, mask).\nIf not, own_bell is rung when that may have come."),
    METHOD("flush", ring_writer_flush, METH_NOARGS,
           "flush() -> int\n\nRing the readers addressed since the last flush that are not awake; system calls made."),
    METHOD("space_ready", ring_writer_space_ready, METH_NOARGS,
           "space_ready() -> bool\n\nWhether refused sends may be tried again; True when none waits."),
    METHOD("close", ring_writer_close, METH_NOARGS, "close()\n\nTell all readers that nothing will follow."),
    METHOD("lag", ring_writer_lag, METH_O, "lag(slot) -> int\n\nBytes that this reader has not consumed."),
    METHOD("reader_lag", ring_writer_reader_lag, METH_O,
           "reader_lag(slot) -> (bytes, records, age_s, bell_slot)\n\nWhat a reader has not consumed (records: padding "
           "and those of others included), and how long it was seen\nto stand there: at least, for the writer looks once "
           "a lap and when the ring is full."),
    METHOD("min_cursor", ring_writer_min_cursor, METH_FASTCALL | METH_KEYWORDS,
           "min_cursor(mask=all) -> int\n\nUp to where all readers in mask have consumed; the position if there are none."),
    METHOD("counters", ring_writer_counters, METH_NOARGS, "counters() -> tuple\n\nThe fields of RingStatistics."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"capacity", T_ULONGLONG, offsetof(RingWriterObject, ring.capacity), READONLY, PyDoc_STR("Bytes of records.")},
    {"position", T_ULONGLONG, offsetof(RingWriterObject, ring.position), READONLY,
     PyDoc_STR("Bytes ever published: where the next record begins.")},
    {"head", T_ULONGLONG, offsetof(RingWriterObject, ring.position), READONLY, PyDoc_STR("The commit word: position.")},
    {"readers", T_ULONGLONG, offsetof(RingWriterObject, ring.active), READONLY, PyDoc_STR("Mask of the admitted.")},
    {"attached", T_ULONGLONG, offsetof(RingWriterObject, ring.attached), READONLY,
     PyDoc_STR("Mask of those who read the ring; the others' records must take another way.")},
    {"seq", T_ULONGLONG, offsetof(RingWriterObject, ring.seq), READONLY, PyDoc_STR("Number of the next record.")},
    {"closed", T_BOOL, offsetof(RingWriterObject, ring.closed), READONLY, PyDoc_STR("close() was called.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"max_inline", (getter)get_max_inline, NULL, PyDoc_STR("The largest payload, in bytes."), NULL},
    {"epoch", (getter)get_epoch, NULL, PyDoc_STR("Which life of its writer this ring belongs to."), NULL},
    {"wants_space", (getter)get_wants_space, NULL, PyDoc_STR("A refused send waits and was not called for yet."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, PyDoc_STR("The native writing end; ringcast.channels.RingWriter documents it.")},
    {Py_tp_new, ring_writer_new},
    {Py_tp_dealloc, ring_writer_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec ring_writer_spec = {"ringcast.channels._native.RingWriter", sizeof(RingWriterObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, type_slots};
