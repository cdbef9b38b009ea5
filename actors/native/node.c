/* NodeCore: what a node does for every message that it sends or receives. */
#include "actors.h"

enum { FLUSH_EVERY = 32 }; /* messages: a receiver that sleeps shall not wait for the end of a long burst */

PyObject *node_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    actors_state *state = actors_state_of(type);
    NodeObject *self = state ? (NodeObject *)allocate(type) : NULL;
    if (self)
        self->state = state;
    return (PyObject *)self;
}

int node_traverse(NodeObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < NUM_NODE_PARTS; i++)
        Py_VISIT(self->parts[i]);
    return 0;
}

int node_clear(NodeObject *self)
{
    for (int i = 0; i < NUM_NODE_PARTS; i++)
        Py_CLEAR(self->parts[i]);
    return 0;
}

void node_dealloc(NodeObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    node_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject *node_hold(NodeObject *self, int number)
{
    static const char *const names[] = {"bell", "outbox", "_backlog", "_inboxes", "readers",
                                        "cells", "calls", "delivery", "loop", "_context"};
    if (is_set(self->parts[number]))
        return Py_NewRef(self->parts[number]);
    PyErr_Format(PyExc_AttributeError, "the node's %s is not set", names[number]);
    return NULL;
}

Py_ssize_t node_size_of(NodeObject *self, int number)
{
    PyObject *object = node_hold(self, number);
    Py_ssize_t size = object ? PyObject_Size(object) : -1;
    Py_XDECREF(object);
    return size;
}

PyObject *node_get(NodeObject *self, int number, PyObject *name)
{
    PyObject *object = node_hold(self, number), *value = object ? PyObject_GetAttr(object, name) : NULL;
    Py_XDECREF(object);
    return value;
}

int node_get_truth(NodeObject *self, int number, PyObject *name)
{
    PyObject *value = node_get(self, number, name);
    int truth = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return truth;
}

int node_call(NodeObject *self, PyObject *name)
{
    return call_quietly(name, (PyObject *)self, NULL, NULL);
}

/* ---- sending ---- */

/* Put a message behind those that wait for room. */
static int keep_back(NodeObject *self, PyObject *mask, PyObject *payload)
{
    unsigned long long readers = PyLong_AsUnsignedLongLong(mask);
    PyObject *backlog = PyErr_Occurred() ? NULL : node_hold(self, BACKLOG);
    PyObject *pair = backlog ? PyTuple_Pack(2, payload, mask) : NULL;
    int kept = pair ? call_quietly(NAME(self->state, append), backlog, pair, NULL) : -1;
    Py_XDECREF(pair);
    Py_XDECREF(backlog);
    if (kept == 0)
        self->backlog_mask |= readers;
    return kept;
}

static int send_masked(NodeObject *self, PyObject *mask, PyObject *payload)
{
    Py_ssize_t waiting = node_size_of(self, BACKLOG);
    int sent = waiting < 0 ? -1 : 0;
    if (waiting == 0) {
        PyObject *outbox = node_hold(self, OUTBOX);
        sent = outbox ? ask_truth(NAME(self->state, try_send), outbox, payload, mask) : -1;
        Py_XDECREF(outbox);
    }
    if (sent < 0 || (sent == 0 && keep_back(self, mask, payload) < 0))
        return -1;
    self->unflushed++;
    if (self->unflushed == 1)
        return node_call(self, NAME(self->state, schedule_flush));
    return self->unflushed == FLUSH_EVERY ? node_call(self, NAME(self->state, flush)) : 0;
}

static PyObject *node_send_masked(NodeObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "send_masked takes a mask and a payload");
    return send_masked(self, args[0], args[1]) < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *node_space_wanted(NodeObject *self, void *Py_UNUSED(closure))
{
    Py_ssize_t waiting = node_size_of(self, BACKLOG);
    if (waiting <= 0)
        return waiting < 0 ? NULL : PyTuple_New(0);
    PyObject *ring = node_get(self, OUTBOX, NAME(self->state, ring));
    PyObject *rings = ring ? PyTuple_Pack(1, ring) : NULL;
    Py_XDECREF(ring);
    return rings;
}

/* ---- receiving ---- */

/* How many messages of the peer's inbox were handled; -1 with an exception. */
static Py_ssize_t take_from(NodeObject *self, PyObject *peer, PyObject *inbox, bool may_be_alone)
{
    actors_state *state = self->state;
    PyObject *limit = PyLong_FromLong(POLL_BATCH);
    PyObject *args[] = {inbox, limit};
    PyObject *messages = limit ? PyObject_VectorcallMethod(NAME(state, poll), args, 2, NULL) : NULL;
    Py_XDECREF(limit);
    Py_ssize_t count = messages ? PyObject_Size(messages) : -1;
    if (count > 0) {
        PyObject *is_alone = may_be_alone && count == 1 ? Py_True : Py_False, *delivery = node_hold(self, DELIVERY);
        PyObject *rest[] = {delivery, peer, messages, is_alone};
        if (!delivery || call_with(NAME(state, handle_all), rest, 4) < 0)
            count = -1;
        Py_XDECREF(delivery);
    }
    Py_XDECREF(messages);
    return count;
}

/* The same, and once more if what comes next has to come over the link. */
static Py_ssize_t take_all_from(NodeObject *self, PyObject *peer, PyObject *inbox)
{
    actors_state *state = self->state;
    Py_ssize_t count = take_from(self, peer, inbox, true);
    PyObject *reader = count < 0 ? NULL : PyObject_GetAttr(inbox, NAME(state, reader));
    PyObject *blocked = reader ? PyObject_GetAttr(reader, NAME(state, blocked)) : NULL;
    int is_blocked = blocked ? PyObject_IsTrue(blocked) : -1;
    Py_XDECREF(reader);
    Py_XDECREF(blocked);
    if (is_blocked <= 0)
        return is_blocked < 0 ? -1 : count;
    if (call_quietly(NAME(state, read_link), (PyObject *)self, peer, NULL) < 0)
        return -1;
    Py_ssize_t more = take_from(self, peer, inbox, false);
    return more < 0 ? -1 : count + more;
}

static Py_ssize_t take_from_all(NodeObject *self, PyObject *inboxes)
{
    Py_ssize_t handled = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inboxes); i++) {
        PyObject *pair = PyTuple_GET_ITEM(inboxes, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "the node's _inboxes are no pairs");
            return -1;
        }
        Py_ssize_t count = take_all_from(self, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
        if (count < 0)
            return -1;
        handled += count;
    }
    return handled;
}

static PyObject *node_poll_once(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *inboxes = node_hold(self, INBOXES);
    Py_ssize_t handled = -1;
    if (inboxes && PyTuple_Check(inboxes))
        handled = take_from_all(self, inboxes);
    else if (inboxes)
        PyErr_SetString(PyExc_TypeError, "the node's _inboxes are no tuple");
    Py_XDECREF(inboxes);
    Py_ssize_t waiting = handled < 0 ? -1 : node_size_of(self, BACKLOG);
    if (waiting < 0 || (waiting && node_call(self, NAME(self->state, flush)) < 0))
        return NULL;
    return PyLong_FromSsize_t(handled);
}

static PyMethodDef node_methods[] = {
    FUNCTION("send_masked", node_send_masked, METH_FASTCALL,
             "send_masked(mask, payload)\n\nPut an envelope into our ring for several peers: one record that all of them "
             "read."),
    FUNCTION("poll_once", node_poll_once, METH_NOARGS,
             "poll_once() -> int\n\nHandle a batch from every inbox; the number of messages handled."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef node_members[] = {
    NODE_PART("bell", BELL),
    NODE_PART("outbox", OUTBOX),
    NODE_PART("_backlog", BACKLOG),
    NODE_PART("_inboxes", INBOXES),
    NODE_PART("readers", READERS),
    NODE_PART("cells", CELLS),
    NODE_PART("calls", CALLS),
    NODE_PART("delivery", DELIVERY),
    {"_backlog_mask", T_ULONGLONG, offsetof(NodeObject, backlog_mask), 0,
     PyDoc_STR("Of the readers of what has been in the backlog since it was last empty.")},
    {"_unflushed", T_PYSSIZET, offsetof(NodeObject, unflushed), 0, PyDoc_STR("Messages sent since the last flush.")},
    {"asked", T_PYSSIZET, offsetof(NodeObject, asked), 0,
     PyDoc_STR("Calls and streams that left since the last turn.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef node_properties[] = {
    {"_space_wanted", (getter)node_space_wanted, NULL,
     PyDoc_STR("For waits: our ring, if messages wait for room in it."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot node_slots[] = {
    {Py_tp_doc, PyDoc_STR("NodeCore()\n\nThe native part of ringcast.actors.node.Node.")},
    {Py_tp_new, node_new},
    {Py_tp_traverse, node_traverse},
    {Py_tp_clear, node_clear},
    {Py_tp_dealloc, node_dealloc},
    {Py_tp_methods, node_methods},
    {Py_tp_members, node_members},
    {Py_tp_getset, node_properties},
    {0, NULL},
};

PyType_Spec node_spec = {"ringcast.actors._native.NodeCore", sizeof(NodeObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                         node_slots};
