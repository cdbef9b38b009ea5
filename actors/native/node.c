/* NodeCore and AsyncNodeCore: what a node does for every message that it sends, and in every turn of its loop. */
#include "actors.h"

enum {
    FLUSH_EVERY = 32, /* messages: a receiver that sleeps shall not wait for the end of a long burst */
    LOOKS = 8, /* into the inboxes in one turn, while there is no time to arm the bell in between */
};
#define SPIN_SLICE_S 10e-6   /* of a spin: what else the loop has to do waits no longer */
#define ANSWER_SPIN_S 100e-6 /* for an answer: long enough for the callee to be woken and to answer */

/* What a node holds, all set by the classes in Python. */
enum { BELL, OUTBOX, BACKLOG, INBOXES, READERS, CELLS, CALLS, DELIVERY, LOOP, TURN_CONTEXT, NUM_PARTS };

typedef struct {
    PyObject_HEAD
    actors_state *state;
    PyObject *parts[NUM_PARTS];
    unsigned long long backlog_mask;
    Py_ssize_t unflushed; /* messages sent since the last flush */
    Py_ssize_t asked;     /* calls and streams that left since the last turn */
    /* Of AsyncNode: */
    Py_ssize_t cores;
    char running, turn_scheduled, armed, looks_for_answers;
} NodeObject;

static PyObject *node_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    actors_state *state = actors_state_of(type);
    NodeObject *self = state ? (NodeObject *)type->tp_alloc(type, 0) : NULL;
    if (self)
        self->state = state;
    return (PyObject *)self;
}

static int node_traverse(NodeObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < NUM_PARTS; i++)
        Py_VISIT(self->parts[i]);
    return 0;
}

static int node_clear(NodeObject *self)
{
    for (int i = 0; i < NUM_PARTS; i++)
        Py_CLEAR(self->parts[i]);
    return 0;
}

static void node_dealloc(NodeObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    node_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* One of its parts, borrowed; NULL with AttributeError if it is not set. */
static PyObject *part(NodeObject *self, int number)
{
    static const char *const names[] = {"bell", "outbox", "_backlog", "_inboxes", "readers",
                                        "cells", "calls", "delivery", "loop", "_context"};
    if (is_set(self->parts[number]))
        return self->parts[number];
    PyErr_Format(PyExc_AttributeError, "the node's %s is not set", names[number]);
    return NULL;
}

/* How much of a part there is; -1 with an exception. */
static Py_ssize_t size_of(NodeObject *self, int number)
{
    PyObject *object = part(self, number);
    return object ? PyObject_Size(object) : -1;
}

/* ---- sending ---- */

static int send_masked(NodeObject *self, PyObject *mask, PyObject *payload)
{
    actors_state *state = self->state;
    PyObject *outbox = part(self, OUTBOX);
    Py_ssize_t waiting = outbox ? size_of(self, BACKLOG) : -1;
    int sent = waiting ? 0 : ask_truth(NAME(state, try_send), outbox, payload, mask);
    if (waiting < 0 || sent < 0)
        return -1;
    if (!sent) {
        unsigned long long bits = PyLong_AsUnsignedLongLong(mask);
        PyObject *pair = PyErr_Occurred() ? NULL : PyTuple_Pack(2, payload, mask);
        int kept = pair ? call_quietly(NAME(state, append), self->parts[BACKLOG], pair, NULL) : -1;
        Py_XDECREF(pair);
        if (kept < 0)
            return -1;
        self->backlog_mask |= bits;
    }
    self->unflushed++;
    if (self->unflushed == 1)
        return call_quietly(NAME(state, schedule_flush), (PyObject *)self, NULL, NULL);
    if (self->unflushed == FLUSH_EVERY)
        return call_quietly(NAME(state, flush), (PyObject *)self, NULL, NULL);
    return 0;
}

static PyObject *node_send_masked(NodeObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "send_masked takes a mask and a payload");
    return send_masked(self, args[0], args[1]) < 0 ? NULL : Py_NewRef(Py_None);
}

/* For waits: our ring, if messages wait for room in it. */
static PyObject *space_wanted(NodeObject *self)
{
    Py_ssize_t waiting = size_of(self, BACKLOG);
    if (waiting <= 0)
        return waiting < 0 ? NULL : PyTuple_New(0);
    PyObject *ring = part(self, OUTBOX) ? PyObject_GetAttr(self->parts[OUTBOX], NAME(self->state, ring)) : NULL;
    PyObject *rings = ring ? PyTuple_Pack(1, ring) : NULL;
    Py_XDECREF(ring);
    return rings;
}

static PyObject *node_space_wanted(NodeObject *self, void *Py_UNUSED(closure))
{
    return space_wanted(self);
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
        PyObject *alone = may_be_alone && count == 1 ? Py_True : Py_False;
        PyObject *rest[] = {self->parts[DELIVERY], peer, messages, alone};
        PyObject *result = PyObject_VectorcallMethod(NAME(state, handle_all), rest, 4, NULL);
        if (!result)
            count = -1;
        Py_XDECREF(result);
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

/* Handle a batch from every inbox; the number of messages handled. */
static PyObject *node_poll_once(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *inboxes = part(self, INBOXES) && part(self, DELIVERY) ? Py_NewRef(self->parts[INBOXES]) : NULL;
    if (!inboxes || !PyTuple_Check(inboxes)) {
        Py_XDECREF(inboxes);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "the node's _inboxes are no tuple");
    }
    Py_ssize_t handled = 0;
    for (Py_ssize_t i = 0; handled >= 0 && i < PyTuple_GET_SIZE(inboxes); i++) {
        PyObject *pair = PyTuple_GET_ITEM(inboxes, i);
        Py_ssize_t count = -1;
        if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2)
            count = take_all_from(self, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
        else
            PyErr_SetString(PyExc_TypeError, "the node's _inboxes are no pairs");
        handled = count < 0 ? -1 : handled + count;
    }
    Py_DECREF(inboxes);
    Py_ssize_t waiting = handled < 0 ? -1 : size_of(self, BACKLOG);
    if (waiting < 0 || (waiting && call_quietly(NAME(self->state, flush), (PyObject *)self, NULL, NULL) < 0))
        return NULL;
    return PyLong_FromSsize_t(handled);
}

static PyMethodDef node_methods[] = {
    FUNCTION("send_masked", node_send_masked, METH_FASTCALL,
             "send_masked(mask, payload)\n\nPut an envelope into our ring for several peers: one record that all of them read."),
    FUNCTION("poll_once", node_poll_once, METH_NOARGS,
             "poll_once() -> int\n\nHandle a batch from every inbox; the number of messages handled."),
    {NULL, NULL, 0, NULL},
};

#define PART(name, number) {name, T_OBJECT_EX, offsetof(NodeObject, parts[number]), 0, NULL}
#define FLAG(name, field) {name, T_BOOL, offsetof(NodeObject, field), 0, NULL}

static PyMemberDef node_members[] = {
    PART("bell", BELL),
    PART("outbox", OUTBOX),
    PART("_backlog", BACKLOG),
    PART("_inboxes", INBOXES),
    PART("readers", READERS),
    PART("cells", CELLS),
    PART("calls", CALLS),
    PART("delivery", DELIVERY),
    {"_backlog_mask", T_ULONGLONG, offsetof(NodeObject, backlog_mask), 0,
     PyDoc_STR("Of the readers of what has been in the backlog since it was last empty.")},
    {"_unflushed", T_PYSSIZET, offsetof(NodeObject, unflushed), 0, PyDoc_STR("Messages sent since the last flush.")},
    {"asked", T_PYSSIZET, offsetof(NodeObject, asked), 0, PyDoc_STR("Calls and streams that left since the last turn.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef node_properties[] = {
    {"_space_wanted", (getter)node_space_wanted, NULL, PyDoc_STR("For waits: our ring, if messages wait for room in it."),
     NULL},
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
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, node_slots};

/* ---- turns of a loop ---- */

static PyObject *turn_soon(NodeObject *self)
{
    PyObject *loop = part(self, LOOP), *context = loop ? part(self, TURN_CONTEXT) : NULL;
    PyObject *turn = context ? PyObject_GetAttr((PyObject *)self, NAME(self->state, _turn)) : NULL;
    if (!turn)
        return NULL;
    PyObject *args[] = {loop, turn, context};
    PyObject *handle = PyObject_VectorcallMethod(NAME(self->state, call_soon), args, 2, self->state->context_keyword);
    Py_DECREF(turn);
    return handle;
}

static int schedule_turn(NodeObject *self)
{
    if (self->turn_scheduled)
        return 0;
    self->turn_scheduled = 1;
    PyObject *handle = turn_soon(self);
    Py_XDECREF(handle);
    return handle ? 0 : -1;
}

static PyObject *async_schedule_turn(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    return schedule_turn(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Who sleeps is woken by the first message, and meanwhile the others are written. */
static PyObject *async_schedule_flush(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *ring = part(self, OUTBOX) ? PyObject_GetAttr(self->parts[OUTBOX], NAME(self->state, ring)) : NULL;
    int flushed = ring ? call_quietly(NAME(self->state, flush), ring, NULL, NULL) : -1;
    Py_XDECREF(ring);
    return flushed < 0 || schedule_turn(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* The first message was flushed when it was sent; the others, and what waits, if there are any. */
static int flush_rest(NodeObject *self)
{
    Py_ssize_t waiting = size_of(self, BACKLOG);
    if (waiting < 0)
        return -1;
    bool wanted = self->unflushed > 1 || waiting > 0;
    if (!wanted) {
        PyObject *uses = PyObject_GetAttr(self->parts[OUTBOX], NAME(self->state, uses_links));
        int uses_links = uses ? PyObject_IsTrue(uses) : -1;
        Py_XDECREF(uses);
        if (uses_links < 0)
            return -1;
        wanted = uses_links;
    }
    if (wanted && call_quietly(NAME(self->state, flush), (PyObject *)self, NULL, NULL) < 0)
        return -1;
    self->unflushed = 0;
    return 0;
}

/* bell.name(readers, writers, ...): its truth, or -1 with an exception. */
static int ask_bell(NodeObject *self, PyObject *name, const double *numbers, int count)
{
    PyObject *bell = part(self, BELL), *readers = bell ? part(self, READERS) : NULL;
    PyObject *writers = readers ? space_wanted(self) : NULL, *args[5] = {bell, readers, writers};
    int truth = writers ? 0 : -1, given = 0;
    for (; truth == 0 && given < count; given++)
        if (!(args[3 + given] = PyFloat_FromDouble(numbers[given])))
            truth = -1;
    if (truth == 0) {
        PyObject *result = PyObject_VectorcallMethod(name, args, 3 + (size_t)count, NULL);
        truth = result ? PyObject_IsTrue(result) : -1;
        Py_XDECREF(result);
    }
    for (int i = 0; i < given; i++)
        Py_XDECREF(args[3 + i]);
    Py_XDECREF(writers);
    return truth;
}

static int poll_on(NodeObject *self)
{
    actors_state *state = self->state;
    double spin_s = 0;
    if (self->looks_for_answers && part(self, CALLS)) {
        PyObject *in_flight = PyObject_GetAttr(self->parts[CALLS], NAME(state, in_flight));
        int waits = in_flight ? PyObject_IsTrue(in_flight) : -1;
        Py_XDECREF(in_flight);
        if (waits < 0)
            return -1;
        spin_s = waits ? ANSWER_SPIN_S : 0;
    }
    if (!spin_s) {
        Py_ssize_t living = size_of(self, CELLS);
        if (living <= 0)
            return (int)living; /* nothing is to come */
        spin_s = SPIN_S;
    }
    int found = ask_bell(self, NAME(state, spin), (double[]){SPIN_SLICE_S, spin_s}, 2);
    if (found <= 0) {
        self->looks_for_answers = 0;
        return found;
    }
    return call_quietly(NAME(state, poll_once), (PyObject *)self, NULL, NULL) < 0 ? -1 : 1;
}

static PyObject *async_poll_on(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    int found = poll_on(self);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

/* One turn's work: whether another one is to follow; else the bell is armed. -1 with an exception. */
static int look(NodeObject *self)
{
    actors_state *state = self->state;
    if (!self->running)
        return 0;
    Py_ssize_t waiting = size_of(self, BACKLOG);
    if (waiting < 0 || ((self->unflushed || waiting) && flush_rest(self) < 0))
        return -1;
    Py_ssize_t asked = self->asked;
    self->asked = 0;
    if (asked) /* An answer may come so soon that looking for it beats being woken; but each callee needs a core. */
        self->looks_for_answers = asked < self->cores;
    if (self->armed && (waiting = size_of(self, BACKLOG)) <= 0) {
        if (waiting < 0)
            return -1;
        int goes_on = asked ? ask_truth(NAME(state, _poll_on), (PyObject *)self, NULL, NULL) : 0;
        if (goes_on >= 0)
            self->armed = !goes_on;
        return goes_on;
    }
    for (int looks = 0; looks < LOOKS; looks++) {
        delivery_unsettle(state, self->parts[DELIVERY]);
        PyObject *number = PyObject_CallMethodNoArgs((PyObject *)self, NAME(state, poll_once));
        Py_ssize_t handled = number ? PyLong_AsSsize_t(number) : -1;
        Py_XDECREF(number);
        if (handled < 0 || (self->unflushed && flush_rest(self) < 0))
            return -1;
        if (handled && (handled > 1 || !delivery_has_settled(state, self->parts[DELIVERY]) || self->asked))
            break; /* the loop has something to do for what has come */
        int goes_on = ask_truth(NAME(state, _poll_on), (PyObject *)self, NULL, NULL);
        if (goes_on < 0)
            return -1;
        if (goes_on)
            break;
        int armed = ask_bell(self, NAME(state, arm), NULL, 0);
        if (armed < 0)
            return -1;
        if (armed) {
            self->armed = 1;
            return 0;
        }
        /* Something has come since: whom we woke has run before us. */
    }
    self->armed = 0;
    return 1;
}

static PyObject *async_turn(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    self->turn_scheduled = 1; /* what is sent meanwhile needs no turn of its own */
    int goes_on = look(self);
    PyObject *error = goes_on < 0 ? take_exception() : NULL;
    if (error) /* a ring is corrupt, or there is no memory for a message: the others are to be heard */
        goes_on = call_quietly(NAME(self->state, _look_later), (PyObject *)self, NULL, NULL) < 0 ? -1 : 0;
    self->turn_scheduled = goes_on > 0;
    PyObject *handle = goes_on > 0 ? turn_soon(self) : NULL;
    Py_XDECREF(handle);
    if (error && !PyErr_Occurred())
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *async_on_bell(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *bell = part(self, BELL);
    if (!bell || call_quietly(NAME(self->state, disarm), bell, NULL, NULL) < 0)
        return NULL;
    self->armed = 0;
    return self->turn_scheduled ? Py_NewRef(Py_None) : PyObject_CallMethodNoArgs((PyObject *)self, NAME(self->state, _turn));
}

static PyMethodDef async_methods[] = {
    FUNCTION("schedule_flush", async_schedule_flush, METH_NOARGS,
             "schedule_flush()\n\nRing the doorbells of what was sent, soon."),
    FUNCTION("_schedule_turn", async_schedule_turn, METH_NOARGS, "_schedule_turn()\n\nHave a turn as soon as the loop can."),
    FUNCTION("_turn", async_turn, METH_NOARGS,
             "_turn()\n\nOne turn's work; another one follows if there may be more to do, else the bell is armed."),
    FUNCTION("_on_bell", async_on_bell, METH_NOARGS, "_on_bell()\n\nThe bell was rung."),
    FUNCTION("_poll_on", async_poll_on, METH_NOARGS,
             "_poll_on() -> bool\n\nLook on for a moment, if that is worth while, and handle what has come; else False, and arm "
             "or stay so."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef async_members[] = {
    PART("loop", LOOP),
    PART("_context", TURN_CONTEXT),
    FLAG("_running", running),
    FLAG("_turn_scheduled", turn_scheduled),
    FLAG("_armed", armed),
    FLAG("_looks_for_answers", looks_for_answers),
    {"_cores", T_PYSSIZET, offsetof(NodeObject, cores), 0, PyDoc_STR("That a callee may run on.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot async_slots[] = {
    {Py_tp_doc, PyDoc_STR("AsyncNodeCore()\n\nThe native part of ringcast.actors.async_node.AsyncNode.")},
    {Py_tp_new, node_new},
    {Py_tp_traverse, node_traverse},
    {Py_tp_clear, node_clear},
    {Py_tp_dealloc, node_dealloc},
    {Py_tp_methods, async_methods},
    {Py_tp_members, async_members},
    {0, NULL},
};

PyType_Spec async_node_spec = {"ringcast.actors._native.AsyncNodeCore", sizeof(NodeObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, async_slots};
