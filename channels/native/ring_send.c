/* The sending methods of RingWriter. The protocol stands in writer.h. */
#include "binding.h"

#define STACK_PARTS 16
#define PUBLISH_EVERY 32 /* records of a batch: early enough for readers to work at the same time */

bool writer_may_send(RingWriterObject *self, Py_ssize_t size)
{
    if (mapping_is_forked(&self->map))
        return false;
    if (self->ring.closed) {
        PyErr_SetString(PyExc_ValueError, "the ring is closed");
        return false;
    }
    if (self->ring.reserved) {
        PyErr_SetString(PyExc_RuntimeError, "a reserved record is being built: commit or cancel it first");
        return false;
    }
    if (size > (Py_ssize_t)self->ring.header->max_inline) {
        PyErr_Format(PyExc_ValueError, "a payload of %zd bytes is larger than max_inline, %u: it must overflow", size,
                     self->ring.header->max_inline);
        return false;
    }
    return true;
}

int take_type(PyObject *number, uint16_t *out)
{
    uint64_t type = 0;
    if (number && take_unsigned(number, "type", UINT16_MAX, &type) < 0)
        return -1;
    *out = (uint16_t)type;
    return 0;
}

/* The bytes of an object; -1 with an exception set. */
static int open_bytes(PyObject *object, Py_buffer *view, const void **bytes, Py_ssize_t *size)
{
    view->obj = NULL;
    if (PyBytes_CheckExact(object)) {
        *bytes = PyBytes_AS_STRING(object);
        *size = PyBytes_GET_SIZE(object);
        return 0;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0)
        return -1;
    *bytes = view->buf;
    *size = view->len;
    return 0;
}

PyObject *ring_writer_try_send(RingWriterObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"payload", "mask", "type", "kind", NULL};
    PyObject *out[4];
    uint64_t mask, kind = KIND_DATA;
    uint16_t type;
    Py_buffer view;
    const void *bytes;
    Py_ssize_t size;
    if (take_arguments("try_send", names, 2, args, given, keywords, out) < 0 ||
        take_unsigned(out[1], "mask", UINT64_MAX, &mask) < 0 || take_type(out[2], &type) < 0 ||
        (out[3] && take_unsigned(out[3], "kind (DATA or OVERFLOW)", KIND_OVERFLOW, &kind) < 0) ||
        open_bytes(out[0], &view, &bytes, &size) < 0)
        return NULL;
    PyObject *result = NULL;
    if (writer_may_send(self, size)) {
        unsigned char *place = writer_begin(&self->ring, (uint32_t)size, (uint8_t)kind, type, mask);
        if (place) {
            ring_copy(place, bytes, (size_t)size);
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
    if (!writer_may_send(self, size))
        return NULL;
    unsigned char *place = writer_begin(&self->ring, (uint32_t)size, KIND_DATA, type, mask);
    if (!place)
        Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < count; i++) {
        ring_copy(place, views[i].buf, (size_t)views[i].len);
        place += views[i].len;
    }
    writer_commit(&self->ring, (uint32_t)size, KIND_DATA, mask);
    Py_RETURN_TRUE;
}

PyObject *ring_writer_try_send_parts(RingWriterObject *self, PyObject *const *args, Py_ssize_t given,
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

/* Put one record of a batch, unpublished; false if the ring is full. */
static bool put(struct ring_writer *ring, const void *bytes, uint32_t size, uint64_t mask, uint16_t type)
{
    unsigned char *place = writer_begin(ring, size, KIND_DATA, type, mask);
    if (!place)
        return false;
    ring_copy(place, bytes, size);
    writer_end(ring, writer_padding(ring, record_span(size)), size, KIND_DATA, mask);
    return true;
}

PyObject *ring_writer_send_many(RingWriterObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"payloads", "mask", "type", NULL};
    PyObject *out[3];
    uint64_t mask;
    uint16_t type;
    if (take_arguments("send_many", names, 2, args, given, keywords, out) < 0 ||
        take_unsigned(out[1], "mask", UINT64_MAX, &mask) < 0 || take_type(out[2], &type) < 0)
        return NULL;
    PyObject *items = PySequence_Tuple(out[0]); /* ours: nobody shortens it while a buffer is asked for */
    if (!items)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(items), sent = 0;
    bool failed = false;
    for (; sent < count; sent++) {
        Py_buffer view;
        const void *bytes;
        Py_ssize_t size;
        if ((failed = open_bytes(PyTuple_GET_ITEM(items, sent), &view, &bytes, &size) < 0 ||
                      !writer_may_send(self, size)))
            break;
        bool done = put(&self->ring, bytes, (uint32_t)size, mask, type);
        if (view.obj)
            PyBuffer_Release(&view);
        if (!done)
            break;
        if (sent % PUBLISH_EVERY == PUBLISH_EVERY - 1)
            writer_publish(&self->ring);
    }
    Py_DECREF(items);
    if (!mapping_is_forked(&self->map))
        writer_publish(&self->ring);
    if (failed && sent == 0)
        return NULL;
    PyErr_Clear(); /* the next call begins with that one, and raises */
    return PyLong_FromSsize_t(sent);
}

PyObject *ring_writer_send_records(RingWriterObject *self, PyObject *const *args, Py_ssize_t given,
                                   PyObject *keywords)
{
    static const char *const names[] = {"data", "record_bytes", "mask", "type", NULL};
    PyObject *out[4];
    uint64_t mask, size;
    uint16_t type;
    Py_buffer view;
    const void *data;
    Py_ssize_t length;
    if (take_arguments("send_records", names, 3, args, given, keywords, out) < 0 ||
        take_unsigned(out[1], "record_bytes", INT64_MAX, &size) < 0 ||
        take_unsigned(out[2], "mask", UINT64_MAX, &mask) < 0 || take_type(out[3], &type) < 0 ||
        !writer_may_send(self, (Py_ssize_t)size) || open_bytes(out[0], &view, &data, &length) < 0)
        return NULL;
    if (size == 0 || length % (Py_ssize_t)size) {
        PyBuffer_Release(&view);
        return PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of records of %llu bytes", length,
                            (unsigned long long)size);
    }
    const char *record = data, *end = record + length;
    Py_ssize_t sent = 0;
    while (record < end && put(&self->ring, record, (uint32_t)size, mask, type)) {
        record += size;
        if (++sent % PUBLISH_EVERY == 0)
            writer_publish(&self->ring);
    }
    writer_publish(&self->ring);
    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(sent);
}

static uint64_t needed_bytes(const struct ring_writer *ring, uint64_t size)
{
    uint64_t span = record_span(size);
    return writer_padding(ring, span) + span;
}

PyObject *ring_writer_make_room(RingWriterObject *self, PyObject *number)
{
    uint64_t size;
    if (take_unsigned(number, "size", INT64_MAX, &size) < 0 || !writer_may_send(self, (Py_ssize_t)size))
        return NULL;
    return PyBool_FromLong(writer_room(&self->ring, needed_bytes(&self->ring, size)));
}

PyObject *ring_writer_required(RingWriterObject *self, PyObject *number)
{
    uint64_t size;
    if (take_unsigned(number, "size", INT64_MAX, &size) < 0 || !writer_may_send(self, (Py_ssize_t)size))
        return NULL;
    uint64_t end = self->ring.position + needed_bytes(&self->ring, size);
    return PyLong_FromUnsignedLongLong(end > self->ring.capacity ? end - self->ring.capacity : 0);
}

PyObject *ring_writer_await_any(RingWriterObject *self, PyObject *sequence)
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

PyObject *ring_writer_flush(RingWriterObject *self, PyObject *Py_UNUSED(ignored))
{
    if (mapping_is_forked(&self->map))
        return NULL;
    return PyLong_FromLong(writer_flush(&self->ring));
}

PyObject *ring_writer_space_ready(RingWriterObject *self, PyObject *Py_UNUSED(ignored))
{
    if (mapping_is_forked(&self->map))
        return NULL;
    return PyBool_FromLong(!writer_waits(&self->ring) || writer_take_wait(&self->ring));
}
