/* Python type RingWriter: the writing end. The protocol stands in writer.h. */
#include "binding.h"

#include <sys/random.h>

#define STACK_PARTS 16

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
        mapping_open(&self->map, fd, "RingWriter") < 0)
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
                     "the segment is in use already (magic %llx): a new writer starts a new ring in a new segment",
                     (unsigned long long)magic);
        goto fail;
    }
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

/* ---- sending ---- */

static bool may_send(RingWriterObject *self, Py_ssize_t size)
{
    if (mapping_is_forked(&self->map))
        return false;
    if (self->ring.closed) {
        PyErr_SetString(PyExc_ValueError, "the ring is closed");
        return false;
    }
    if (size > (Py_ssize_t)self->ring.header->max_inline) {
        PyErr_Format(PyExc_ValueError, "a payload of %zd bytes is larger than max_inline, %u: it must overflow", size,
                     self->ring.header->max_inline);
        return false;
    }
    return true;
}

static int take_type(PyObject *number, uint16_t *out)
{
    uint64_t type = 0;
    if (number && take_unsigned(number, "type", UINT16_MAX, &type) < 0)
        return -1;
    *out = (uint16_t)type;
    return 0;
}

static PyObject *ring_writer_try_send(RingWriterObject *self, PyObject *const *args, Py_ssize_t given,
                                      PyObject *keywords)
{
    static const char *const names[] = {"payload", "mask", "type", "kind", NULL};
    PyObject *out[4];
    uint64_t mask, kind = KIND_DATA;
    uint16_t type;
    if (take_arguments("try_send", names, 2, args, given, keywords, out) < 0 ||
        take_unsigned(out[1], "mask", UINT64_MAX, &mask) < 0 || take_type(out[2], &type) < 0 ||
        (out[3] && take_unsigned(out[3], "kind (DATA or OVERFLOW)", KIND_OVERFLOW, &kind) < 0))
        return NULL;
    Py_buffer view = {.obj = NULL};
    const void *bytes;
    Py_ssize_t size;
    if (PyBytes_CheckExact(out[0])) {
        bytes = PyBytes_AS_STRING(out[0]);
        size = PyBytes_GET_SIZE(out[0]);
    } else {
        if (PyObject_GetBuffer(out[0], &view, PyBUF_SIMPLE) < 0)
            return NULL;
        bytes = view.buf;
        size = view.len;
    }
    PyObject *result = NULL;
    if (may_send(self, size)) {
        unsigned char *place = writer_begin(&self->ring, (uint32_t)size, (uint8_t)kind, type, mask);
        if (place) {
            memcpy(place, bytes, (size_t)size);
            writer_commit(&self->ring, (uint32_t)size, (uint8_t)kind, mask);
        }
        result = Py_NewRef(place ? Py_True : Py_False);
    }
    PyBuffer_Release(&view);
    return result;
}

static PyObject *send_views(RingWriterObject *self, const Py_buffer *views, Py_ssize_t count, uint64_t mask,
                            uint16_t type)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        size += views[i].len;
    if (!may_send(self, size))
        return NULL;
    unsigned char *place = writer_begin(&self->ring, (uint32_t)size, KIND_DATA, type, mask);
    if (!place)
        Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < count; i++) {
        memcpy(place, views[i].buf, (size_t)views[i].len);
        place += views[i].len;
    }
    writer_commit(&self->ring, (uint32_t)size, KIND_DATA, mask);
    Py_RETURN_TRUE;
}

static PyObject *ring_writer_try_send_parts(RingWriterObject *self, PyObject *const *args, Py_ssize_t given,
                                            PyObject *keywords)
{
    static const char *const names[] = {"parts", "mask", "type", NULL};
    PyObject *out[3];
    uint64_t mask;
    uint16_t type;
    if (take_arguments("try_send_parts", names, 2, args, given, keywords, out) < 0 ||
        take_unsigned(out[1], "mask", UINT64_MAX, &mask) < 0 || take_type(out[2], &type) < 0)
        return NULL;
    PyObject *parts = PySequence_Tuple(out[0]), *result = NULL;
    if (!parts)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(parts), opened = 0;
    Py_buffer few[STACK_PARTS], *views = few;
    if (count > STACK_PARTS && !(views = PyMem_Calloc((size_t)count, sizeof *views))) {
        Py_DECREF(parts);
        return PyErr_NoMemory();
    }
    while (opened < count && PyObject_GetBuffer(PyTuple_GET_ITEM(parts, opened), &views[opened], PyBUF_SIMPLE) == 0)
        opened++;
    if (opened == count)
        result = send_views(self, views, count, mask, type);
    while (opened > 0)
        PyBuffer_Release(&views[--opened]);
    if (views != few)
        PyMem_Free(views);
    Py_DECREF(parts);
    return result;
}

static PyObject *ring_writer_make_room(RingWriterObject *self, PyObject *number)
{
    uint64_t size;
    if (take_unsigned(number, "size", INT64_MAX, &size) < 0 || !may_send(self, (Py_ssize_t)size))
        return NULL;
    uint64_t span = record_span(size);
    return PyBool_FromLong(writer_room(&self->ring, writer_padding(&self->ring, span) + span));
}

static PyObject *ring_writer_await_any(RingWriterObject *self, PyObject *sequence)
{
    if (mapping_is_forked(&self->map))
        return NULL;
    PyObject *pairs = PySequence_Tuple(sequence);
    if (!pairs)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(pairs);
    struct cursor_condition conditions[WRITER_MAX_CONDITIONS];
    if (count == 0 || count > WRITER_MAX_CONDITIONS) {
        PyErr_Format(PyExc_ValueError, "%zd conditions: give 1 to %d", count, WRITER_MAX_CONDITIONS);
        goto fail;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "a condition is a pair (position, mask)");
            goto fail;
        }
        if (take_unsigned(PyTuple_GET_ITEM(pair, 0), "position", self->ring.position, &conditions[i].position) < 0 ||
            take_unsigned(PyTuple_GET_ITEM(pair, 1), "mask", UINT64_MAX, &conditions[i].mask) < 0)
            goto fail;
    }
    memcpy(self->ring.conditions, conditions, (size_t)count * sizeof *conditions);
    self->ring.condition_count = (int)count;
    Py_DECREF(pairs);
    return PyBool_FromLong(writer_await(&self->ring));
fail:
    Py_DECREF(pairs);
    return NULL;
}

static PyObject *ring_writer_flush(RingWriterObject *self, PyObject *Py_UNUSED(ignored))
{
    if (mapping_is_forked(&self->map))
        return NULL;
    return PyLong_FromLong(writer_flush(&self->ring));
}

static PyObject *ring_writer_space_ready(RingWriterObject *self, PyObject *Py_UNUSED(ignored))
{
    if (mapping_is_forked(&self->map))
        return NULL;
    return PyBool_FromLong(!writer_waits(&self->ring) || writer_take_wait(&self->ring));
}

static PyObject *ring_writer_close(RingWriterObject *self, PyObject *Py_UNUSED(ignored))
{
    if (mapping_is_forked(&self->map))
        return NULL;
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
    return Py_BuildValue("KKKKKKKKK", s->records, s->bytes, s->full_waits, s->overflows, s->wakes_sent,
                         s->wakes_suppressed, s->evictions, s->depth_bytes, s->peak_bytes);
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
    METHOD("try_send", ring_writer_try_send, METH_FASTCALL | METH_KEYWORDS,
           "try_send(payload, mask, type=0, kind=DATA) -> bool\n\nPublish one record for the readers in mask; flush() "
           "rings them. False: the ring is full, every reader that\nholds the space was rung, and own_bell is rung when a "
           "retry is worth while."),
    METHOD("try_send_parts", ring_writer_try_send_parts, METH_FASTCALL | METH_KEYWORDS,
           "try_send_parts(parts, mask, type=0) -> bool\n\nThe same with several buffers, which become one payload."),
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
