/* Python types InboxCore and OutboxCore: what Inbox and Outbox do for every message, while rings alone are needed. */
#include "binding.h"

static PyObject *call_slowly(PyObject *self, const char *name, PyObject *const *args, Py_ssize_t given,
                             PyObject *keywords)
{
    PyObject *method = PyObject_GetAttrString(self, name);
    PyObject *result = method ? PyObject_Vectorcall(method, args, (size_t)given, keywords) : NULL;
    Py_XDECREF(method);
    return result;
}

/* ---- InboxCore ---- */

typedef struct {
    PyObject_HEAD
    RingReaderObject *reader;
    PyObject *failure; /* an exception that the next poll raises; NULL or None: none */
} InboxObject;

static PyObject *inbox_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    if (PyTuple_GET_SIZE(args) < 1 ||
        !PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), native_state_of(type)->ring_reader)) {
        PyErr_SetString(PyExc_TypeError, "an inbox is made of a RingReader");
        return NULL;
    }
    InboxObject *self = (InboxObject *)type->tp_alloc(type, 0);
    if (self)
        self->reader = (RingReaderObject *)Py_NewRef(PyTuple_GET_ITEM(args, 0));
    return (PyObject *)self;
}

static int inbox_traverse(InboxObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->reader);
    Py_VISIT(self->failure);
    return 0;
}

static int inbox_clear(InboxObject *self)
{
    Py_CLEAR(self->failure);
    return 0;
}

static void inbox_dealloc(InboxObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->failure);
    Py_XDECREF(self->reader);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Whether the last one is no plain message. */
static bool ends_otherwise(PyObject *messages)
{
    enum { KIND = 2 }; /* of the fields of Message */
    Py_ssize_t count = PyList_GET_SIZE(messages);
    PyObject *kind = count ? PyStructSequence_GetItem(PyList_GET_ITEM(messages, count - 1), KIND) : NULL;
    return kind && PyLong_AsLong(kind) != KIND_DATA;
}

static PyObject *inbox_poll(InboxObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"max_messages", NULL};
    PyObject *limit[1];
    if (take_arguments("poll", names, 0, args, given, keywords, limit) < 0)
        return NULL;
    if (self->failure && self->failure != Py_None) {
        PyObject *failure = self->failure;
        self->failure = NULL;
        PyErr_SetObject((PyObject *)Py_TYPE(failure), failure);
        Py_DECREF(failure);
        return NULL;
    }
    PyObject *messages = ring_reader_poll(self->reader, limit, limit[0] != NULL, NULL);
    if (!messages || (!self->reader->ring.detached && !ends_otherwise(messages)))
        return messages;
    PyObject *number = limit[0] ? Py_NewRef(limit[0]) : PyLong_FromLong(POLL_LIMIT);
    PyObject *rest[] = {messages, number};
    PyObject *result = number ? call_slowly((PyObject *)self, "_go_on", rest, 2, NULL) : NULL;
    Py_XDECREF(result);
    Py_XDECREF(number);
    if (!result)
        Py_CLEAR(messages);
    return messages;
}

static PyMethodDef inbox_methods[] = {
    METHOD("poll", inbox_poll, METH_FASTCALL | METH_KEYWORDS,
           "poll(max_messages=256) -> list[Message]\n\nThe next messages, at most so many, about 64 KiB at once; empty if "
           "there is none yet. Unpack each as\n(type, payload).\n\nThe payload of a large oversized message is a read-only "
           "memoryview of shared memory, unmapped when the last\nview of it goes; others are bytes. While what comes next "
           "must come over the link, ``reader.blocked`` is True:\npoll again when the link was read. `RingCorrupt` or "
           "`SegmentError` are raised after everything before them\nwas delivered."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef inbox_members[] = {
    {"reader", T_OBJECT_EX, offsetof(InboxObject, reader), READONLY,
     PyDoc_STR("Its end of the ring: pass it to arm and wait.")},
    {"_failure", T_OBJECT, offsetof(InboxObject, failure), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot inbox_slots[] = {
    {Py_tp_doc, PyDoc_STR("InboxCore(reader)\n\nThe native part of ringcast.channels.Inbox.")},
    {Py_tp_new, inbox_new},
    {Py_tp_traverse, inbox_traverse},
    {Py_tp_clear, inbox_clear},
    {Py_tp_dealloc, inbox_dealloc},
    {Py_tp_methods, inbox_methods},
    {Py_tp_members, inbox_members},
    {0, NULL},
};

PyType_Spec inbox_spec = {"ringcast.channels._native.InboxCore", sizeof(InboxObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                          inbox_slots};

/* ---- OutboxCore ---- */

typedef struct {
    PyObject_HEAD
    RingWriterObject *ring;
    unsigned long long detached;
    char impatient, uses_links;
} OutboxObject;

static PyObject *outbox_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    if (PyTuple_GET_SIZE(args) < 1 ||
        !PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), native_state_of(type)->ring_writer)) {
        PyErr_SetString(PyExc_TypeError, "an outbox is made of a RingWriter");
        return NULL;
    }
    OutboxObject *self = (OutboxObject *)type->tp_alloc(type, 0);
    if (self)
        self->ring = (RingWriterObject *)Py_NewRef(PyTuple_GET_ITEM(args, 0));
    return (PyObject *)self;
}

static void outbox_dealloc(OutboxObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->ring);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Whether nothing but the ring is needed to send that payload; -1 with an exception. */
static int is_for_ring(OutboxObject *self, PyObject *payload, PyObject *mask)
{
    uint64_t readers = 0;
    if (!PyBytes_CheckExact(payload) || PyBytes_GET_SIZE(payload) > (Py_ssize_t)self->ring->ring.header->max_inline)
        return 0;
    if (self->detached && take_unsigned(mask, "mask", UINT64_MAX, &readers) < 0)
        return -1;
    return !(readers & self->detached);
}

static PyObject *outbox_try_send(OutboxObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"payload", "mask", "type", NULL};
    PyObject *out[3];
    if (mapping_is_forked(&self->ring->map) || take_arguments("try_send", names, 2, args, given, keywords, out) < 0)
        return NULL;
    int alone = is_for_ring(self, out[0], out[1]);
    if (alone < 0)
        return NULL;
    if (alone) {
        PyObject *sent = ring_writer_try_send(self->ring, out, out[2] ? 3 : 2, NULL);
        if (sent != Py_False || !self->impatient)
            return sent;
        Py_DECREF(sent);
    }
    return call_slowly((PyObject *)self, "_try_send_around", args, given, keywords);
}

static PyMethodDef outbox_methods[] = {
    METHOD("try_send", outbox_try_send, METH_FASTCALL | METH_KEYWORDS,
           "try_send(payload, mask, type=0) -> bool\n\nSend one message (several buffers are joined) to the readers in "
           "``mask``; `flush` rings them later.\n\nFalse if the ring is full or too much oversized data is under way: our "
           "own bell rings when a retry is\nworth while. `RingFull` if a reader's policy is not to wait for it, "
           "`SegmentError` if an oversized message\nfinds no memory: nothing was sent to anybody then."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef outbox_members[] = {
    {"ring", T_OBJECT_EX, offsetof(OutboxObject, ring), READONLY, NULL},
    {"uses_links", T_BOOL, offsetof(OutboxObject, uses_links), 0,
     PyDoc_STR("Something of ours may wait on a link, see links_pending.")},
    {"_detached", T_ULONGLONG, offsetof(OutboxObject, detached), 0,
     PyDoc_STR("Mask of the readers that are out of the ring.")},
    {"_impatient", T_BOOL, offsetof(OutboxObject, impatient), 0,
     PyDoc_STR("There are readers that are not waited for.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot outbox_slots[] = {
    {Py_tp_doc, PyDoc_STR("OutboxCore(ring)\n\nThe native part of ringcast.channels.Outbox.")},
    {Py_tp_new, outbox_new},
    {Py_tp_dealloc, outbox_dealloc},
    {Py_tp_methods, outbox_methods},
    {Py_tp_members, outbox_members},
    {0, NULL},
};

PyType_Spec outbox_spec = {"ringcast.channels._native.OutboxCore", sizeof(OutboxObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, outbox_slots};
