/* Records in place: a reservation to be filled, a view to be read. Both are windows onto the bytes of a ring that know
 * who still looks through them, so that no memoryview outlives its right to the bytes. */
#include "binding.h"

/* What the memoryviews are views of. Its end comes when it was ended and the last of them is gone. */
typedef struct {
    PyObject_HEAD
    PyObject *ring; /* RingReader of a view, RingWriter of a reservation: keeps the mapping */
    void *base;
    Py_ssize_t size;
    Py_ssize_t exports;
    bool is_view;
    bool ended; /* by its user */
} WindowObject;

/* As soon as it was ended and nobody looks any more, the ring goes on: a view's record is consumed. */
static void window_settle(WindowObject *self)
{
    if (!self->ended || self->exports || !self->base)
        return;
    self->base = NULL;
    if (!self->is_view) {
        ((RingWriterObject *)self->ring)->ring.reserved = false;
        return;
    }
    RingReaderObject *reader = (RingReaderObject *)self->ring;
    if (!mapping_is_here(&reader->map))
        return;
    reader_take(&reader->ring, &reader->viewed);
    reader_unpin(&reader->ring);
}

static int window_getbuffer(WindowObject *self, Py_buffer *view, int flags)
{
    if (self->ended) {
        PyErr_SetString(PyExc_BufferError, "the record is no longer open");
        view->obj = NULL;
        return -1;
    }
    if (PyBuffer_FillInfo(view, (PyObject *)self, self->base, self->size, self->is_view, flags) < 0)
        return -1;
    self->exports++;
    return 0;
}

static void window_releasebuffer(WindowObject *self, Py_buffer *Py_UNUSED(view))
{
    self->exports--;
    window_settle(self);
}

static void window_dealloc(WindowObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(self->ring);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot window_slots[] = {
    {Py_tp_doc, PyDoc_STR("The bytes behind the memoryview of a Reservation or a RecordView.")},
    {Py_tp_dealloc, window_dealloc},
    {Py_bf_getbuffer, window_getbuffer},
    {Py_bf_releasebuffer, window_releasebuffer},
    {0, NULL},
};

PyType_Spec window_spec = {"ringcast.channels._native.Window", sizeof(WindowObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           window_slots};

/* A window and the memoryview of it. */
typedef struct {
    WindowObject *window;
    PyObject *view;
} pane;

static int pane_open(pane *pane, native_state *state, PyObject *ring, void *base, Py_ssize_t size, bool is_view)
{
    pane->view = NULL;
    pane->window = (WindowObject *)state->window->tp_alloc(state->window, 0);
    if (!pane->window)
        return -1;
    *pane->window = (WindowObject){.ob_base = pane->window->ob_base, .ring = Py_NewRef(ring), .base = base,
                                   .size = size, .is_view = is_view};
    pane->view = PyMemoryView_FromObject((PyObject *)pane->window);
    if (!pane->view)
        Py_CLEAR(pane->window);
    return pane->view ? 0 : -1;
}

/* Take the memoryview away from whoever holds it. -1 with BufferError set if others made of it are still alive. */
static int pane_shut(pane *pane, const char *what)
{
    PyObject *released = PyObject_CallMethod(pane->view, "release", NULL);
    if (!released) /* something exports directly from it, so it cannot be released */
        return -1;
    Py_DECREF(released);
    if (pane->window->exports == 0)
        return 0;
    PyErr_Format(PyExc_BufferError, "%s while %zd slices or arrays made of its memoryview are still in use: drop them",
                 what, pane->window->exports);
    return -1;
}

static void pane_clear(pane *pane)
{
    if (pane->window && !pane->window->ended) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        pane->window->ended = true;
        PyObject *released = PyObject_CallMethod(pane->view, "release", NULL);
        Py_XDECREF(released); /* if it is still exported, the window settles with the last export */
        window_settle(pane->window);
        PyErr_Restore(type, value, traceback);
    }
    Py_CLEAR(pane->view);
    Py_CLEAR(pane->window);
}

/* ---- Reservation ---- */

typedef struct {
    PyObject_HEAD
    pane pane;
    uint64_t mask, padding;
    uint32_t size;
    uint16_t type;
    bool open;
} ReservationObject;

PyObject *ring_writer_reserve(RingWriterObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"size", "mask", "type", NULL};
    PyObject *out[3];
    uint64_t size, mask;
    uint16_t type;
    if (take_arguments("reserve", names, 2, args, given, keywords, out) < 0 ||
        take_unsigned(out[0], "size", INT64_MAX, &size) < 0 || take_unsigned(out[1], "mask", UINT64_MAX, &mask) < 0 ||
        take_type(out[2], &type) < 0 || !writer_may_send(self, (Py_ssize_t)size))
        return NULL;
    uint64_t padding = writer_padding(&self->ring, record_span(size));
    unsigned char *place = writer_begin(&self->ring, (uint32_t)size, KIND_DATA, type, mask);
    if (!place)
        Py_RETURN_NONE;
    ReservationObject *made = (ReservationObject *)self->state->reservation->tp_alloc(self->state->reservation, 0);
    if (!made)
        return NULL;
    if (pane_open(&made->pane, self->state, (PyObject *)self, place, (Py_ssize_t)size, false) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    made->mask = mask;
    made->padding = padding;
    made->size = (uint32_t)size;
    made->type = type;
    made->open = self->ring.reserved = true;
    return (PyObject *)made;
}

static bool reservation_is_open(ReservationObject *self)
{
    if (mapping_is_forked(&((RingWriterObject *)self->pane.window->ring)->map))
        return false;
    if (!self->open)
        PyErr_SetString(PyExc_ValueError, "the reservation was committed or cancelled before");
    return self->open;
}

static void reservation_end(ReservationObject *self)
{
    self->open = false;
    self->pane.window->ended = true;
    window_settle(self->pane.window);
}

static PyObject *reservation_commit(ReservationObject *self, PyObject *const *args, Py_ssize_t given,
                                    PyObject *keywords)
{
    static const char *const names[] = {"size", NULL};
    PyObject *out[1];
    uint64_t size = self->size;
    if (!reservation_is_open(self) || take_arguments("commit", names, 0, args, given, keywords, out) < 0 ||
        (out[0] && out[0] != Py_None && take_unsigned(out[0], "size", self->size, &size) < 0) ||
        pane_shut(&self->pane, "commit()") < 0)
        return NULL;
    struct ring_writer *ring = &((RingWriterObject *)self->pane.window->ring)->ring;
    struct ring_record header = {.length = (uint32_t)size, .kind = KIND_DATA, .type = self->type,
                                 .seq = ring->seq + (self->padding ? 1 : 0), .dest_mask = self->mask};
    writer_put_header(ring, ring->position + self->padding, header);
    writer_end(ring, self->padding, (uint32_t)size, KIND_DATA, self->mask);
    writer_publish(ring);
    reservation_end(self);
    Py_RETURN_NONE;
}

static PyObject *reservation_cancel(ReservationObject *self, PyObject *Py_UNUSED(ignored))
{
    if (self->open) {
        if (pane_shut(&self->pane, "cancel()") < 0)
            return NULL;
        reservation_end(self);
    }
    Py_RETURN_NONE;
}

static PyObject *reservation_enter(ReservationObject *self, PyObject *Py_UNUSED(ignored))
{
    return reservation_is_open(self) ? Py_NewRef(self->pane.view) : NULL;
}

static PyObject *reservation_exit(ReservationObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (!self->open)
        Py_RETURN_NONE;
    if (given > 0 && args[0] != Py_None)
        return reservation_cancel(self, NULL);
    return reservation_commit(self, NULL, 0, NULL);
}

static void reservation_dealloc(ReservationObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pane_clear(&self->pane);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef reservation_methods[] = {
    METHOD("commit", reservation_commit, METH_FASTCALL | METH_KEYWORDS,
           "commit(size=None)\n\nPublish the record, or only its first bytes; flush() rings its readers. BufferError, and "
           "nothing published,\nwhile something else made of the memoryview is in use."),
    METHOD("cancel", reservation_cancel, METH_NOARGS, "cancel()\n\nPublish nothing. Again is allowed."),
    METHOD("__enter__", reservation_enter, METH_NOARGS, "The writable memoryview of the payload."),
    METHOD("__exit__", reservation_exit, METH_FASTCALL, "commit() if it is still open, cancel() after an exception."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef reservation_members[] = {
    {"payload", T_OBJECT_EX, offsetof(ReservationObject, pane.view), READONLY,
     PyDoc_STR("Writable memoryview of the payload; released by commit and cancel.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot reservation_slots[] = {
    {Py_tp_doc, PyDoc_STR("A record under construction, of RingWriter.reserve(); `with` it, or call commit().")},
    {Py_tp_dealloc, reservation_dealloc},
    {Py_tp_methods, reservation_methods},
    {Py_tp_members, reservation_members},
    {0, NULL},
};

PyType_Spec reservation_spec = {"ringcast.channels.Reservation", sizeof(ReservationObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                reservation_slots};

/* ---- RecordView ---- */

typedef struct {
    PyObject_HEAD
    pane pane;
    uint64_t seq;
    uint16_t type;
} RecordViewObject;

PyObject *ring_reader_view(RingReaderObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!reader_may_read(self))
        return NULL;
    struct ring_reader ring = self->ring;
    struct read_record record;
    uint64_t head = ring.position;
    if (ring.detached || ring.closed)
        Py_RETURN_NONE;
    enum read_result result = reader_next(&ring, &head, &record);
    bool moved = ring.position != self->ring.position;
    if (moved && !reader_consume(&self->ring, &ring))
        Py_RETURN_NONE;
    if (result == READ_NONE) {
        reader_check_closed(&self->ring);
        Py_RETURN_NONE;
    }
    if (!reader_pin(&self->ring))
        Py_RETURN_NONE;
    result = reader_peek(&self->ring, head, &record); /* again: only now it cannot be torn */
    if (result == READ_CORRUPT || record.header.kind != KIND_DATA) {
        reader_unpin(&self->ring);
        if (result == READ_CORRUPT)
            return raise_corrupt(self, &record);
        Py_RETURN_NONE;
    }
    self->viewed = record;
    RecordViewObject *made = (RecordViewObject *)self->state->record_view->tp_alloc(self->state->record_view, 0);
    if (!made || pane_open(&made->pane, self->state, (PyObject *)self, (void *)record.payload,
                           (Py_ssize_t)record.header.length, true) < 0) {
        Py_XDECREF(made);
        reader_unpin(&self->ring); /* the record stays the next one */
        return NULL;
    }
    made->type = record.header.type;
    made->seq = record.header.seq;
    return (PyObject *)made;
}

static PyObject *record_view_release(RecordViewObject *self, PyObject *Py_UNUSED(ignored))
{
    WindowObject *window = self->pane.window;
    if (window->ended)
        Py_RETURN_NONE;
    window->ended = true;
    int shut = pane_shut(&self->pane, "the view of a record ended"); /* the last release settles the window */
    window_settle(window);
    if (shut < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *record_view_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(self);
}

static PyObject *record_view_exit(RecordViewObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(given))
{
    return record_view_release(self, NULL);
}

static void record_view_dealloc(RecordViewObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pane_clear(&self->pane);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef record_view_methods[] = {
    METHOD("release", record_view_release, METH_NOARGS,
           "release()\n\nConsume the record and give its space back. BufferError while something else made of the "
           "memoryview is in\nuse: the space is kept until that is gone, too. Again is allowed."),
    METHOD("__enter__", record_view_enter, METH_NOARGS, "The view itself."),
    METHOD("__exit__", record_view_exit, METH_FASTCALL, "release()."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef record_view_members[] = {
    {"payload", T_OBJECT_EX, offsetof(RecordViewObject, pane.view), READONLY,
     PyDoc_STR("Read-only memoryview into the ring; using it after release() raises ValueError.")},
    {"type", T_USHORT, offsetof(RecordViewObject, type), READONLY, PyDoc_STR("The sender's number.")},
    {"seq", T_ULONGLONG, offsetof(RecordViewObject, seq), READONLY, PyDoc_STR("The record's number in its ring.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot record_view_slots[] = {
    {Py_tp_doc, PyDoc_STR("A record in place, of RingReader.view(); `with` it, or call release().")},
    {Py_tp_dealloc, record_view_dealloc},
    {Py_tp_methods, record_view_methods},
    {Py_tp_members, record_view_members},
    {0, NULL},
};

PyType_Spec record_view_spec = {"ringcast.channels.RecordView", sizeof(RecordViewObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                record_view_slots};
