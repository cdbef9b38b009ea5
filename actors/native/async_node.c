/* AsyncNodeCore: what a node does in every turn of its loop. */
#include "actors.h"

enum { LOOKS = 8 };          /* into the inboxes in one turn, while there is no time to arm the bell in between */
#define SPIN_SLICE_S 10e-6   /* of a spin: what else the loop has to do waits no longer */
#define ANSWER_SPIN_S 100e-6 /* for an answer: long enough for the callee to be woken and to answer */

/* loop.call_soon(self._turn, context=...): 0, or -1 with an exception. */
static int turn_soon(NodeObject *self)
{
    PyObject *loop = node_hold(self, LOOP), *context = loop ? node_hold(self, TURN_CONTEXT) : NULL, *handle = NULL;
    PyObject *turn = context ? PyObject_GetAttr((PyObject *)self, NAME(self->state, _turn)) : NULL;
    if (turn) {
        PyObject *args[] = {loop, turn, context};
        handle = PyObject_VectorcallMethod(NAME(self->state, call_soon), args, 2, self->state->context_keyword);
    }
    Py_XDECREF(turn);
    Py_XDECREF(context);
    Py_XDECREF(loop);
    Py_XDECREF(handle);
    return handle ? 0 : -1;
}

static int schedule_turn(NodeObject *self)
{
    if (self->turn_scheduled)
        return 0;
    self->turn_scheduled = 1;
    return turn_soon(self);
}

static PyObject *async_schedule_turn(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    return schedule_turn(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Who sleeps is woken by the first message, and meanwhile the others are written. */
static PyObject *async_schedule_flush(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *ring = node_get(self, OUTBOX, NAME(self->state, ring));
    int flushed = ring ? call_quietly(NAME(self->state, flush), ring, NULL, NULL) : -1;
    Py_XDECREF(ring);
    return flushed < 0 || schedule_turn(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* The first message was flushed when it was sent; now the others, and what waits, if there are any. */
static int flush_rest(NodeObject *self)
{
    Py_ssize_t waiting = node_size_of(self, BACKLOG);
    int is_wanted = waiting < 0 ? -1 : self->unflushed > 1 || waiting > 0;
    if (is_wanted == 0)
        is_wanted = node_get_truth(self, OUTBOX, NAME(self->state, uses_links));
    if (is_wanted < 0 || (is_wanted && node_call(self, NAME(self->state, flush)) < 0))
        return -1;
    self->unflushed = 0;
    return 0;
}

/* Whether bell.arm(readers, writers); -1 with an exception. */
static int arm(NodeObject *self)
{
    PyObject *bell = node_hold(self, BELL), *readers = bell ? node_hold(self, READERS) : NULL;
    PyObject *writers = readers ? node_space_wanted(self, NULL) : NULL;
    int is_armed = writers ? ask_truth(NAME(self->state, arm), bell, readers, writers) : -1;
    Py_XDECREF(writers);
    Py_XDECREF(readers);
    Py_XDECREF(bell);
    return is_armed;
}

/* Whether bell.spin(readers, writers, SPIN_SLICE_S, spin_s); -1 with an exception. */
static int spin(NodeObject *self, double spin_s)
{
    PyObject *bell = node_hold(self, BELL), *readers = bell ? node_hold(self, READERS) : NULL;
    PyObject *writers = readers ? node_space_wanted(self, NULL) : NULL;
    PyObject *slice = writers ? PyFloat_FromDouble(SPIN_SLICE_S) : NULL;
    PyObject *whole = slice ? PyFloat_FromDouble(spin_s) : NULL;
    PyObject *args[] = {bell, readers, writers, slice, whole};
    PyObject *result = whole ? PyObject_VectorcallMethod(NAME(self->state, spin), args, 5, NULL) : NULL;
    int found = result ? PyObject_IsTrue(result) : -1;
    Py_XDECREF(result);
    for (int i = 4; i >= 0; i--)
        Py_XDECREF(args[i]);
    return found;
}

/* Look on for a moment, if that is worth while, and handle what has come: whether it did; -1 with an exception. */
static int poll_on(NodeObject *self)
{
    double spin_s = 0;
    if (self->looks_for_answers) {
        int waits = node_get_truth(self, CALLS, NAME(self->state, in_flight));
        if (waits < 0)
            return -1;
        spin_s = waits ? ANSWER_SPIN_S : 0;
    }
    if (!spin_s) {
        Py_ssize_t living = node_size_of(self, CELLS);
        if (living <= 0)
            return (int)living; /* nothing is to come */
        spin_s = SPIN_S;
    }
    int found = spin(self, spin_s);
    if (found > 0)
        return node_call(self, NAME(self->state, poll_once)) < 0 ? -1 : 1;
    self->looks_for_answers = 0;
    return found;
}

static PyObject *async_poll_on(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    int found = poll_on(self);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

static int ask_poll_on(NodeObject *self)
{
    return ask_truth(NAME(self->state, _poll_on), (PyObject *)self, NULL, NULL);
}

/* Whether the loop has something to do for what an inbox had; -1 with an exception. */
static int take_once(NodeObject *self)
{
    actors_state *state = self->state;
    PyObject *delivery = node_hold(self, DELIVERY), *number = NULL;
    if (delivery) {
        delivery_unsettle(state, delivery);
        number = PyObject_CallMethodNoArgs((PyObject *)self, NAME(state, poll_once));
    }
    Py_ssize_t handled = number ? PyLong_AsSsize_t(number) : -1;
    bool has_settled = delivery && delivery_has_settled(state, delivery);
    Py_XDECREF(number);
    Py_XDECREF(delivery);
    if (handled < 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "poll_once has handled %zd messages", handled);
    if (handled < 0 || (self->unflushed && flush_rest(self) < 0))
        return -1;
    return handled > 1 || (handled == 1 && (!has_settled || self->asked));
}

/* One turn's work: whether another one is to follow; else the bell is armed. -1 with an exception. */
static int look(NodeObject *self)
{
    Py_ssize_t waiting = self->running ? node_size_of(self, BACKLOG) : 0;
    if (!self->running || waiting < 0)
        return (int)waiting;
    if ((self->unflushed || waiting) && flush_rest(self) < 0)
        return -1;
    Py_ssize_t asked = self->asked;
    self->asked = 0;
    if (asked) /* An answer may come so soon that looking for it beats being woken; but each callee needs a core. */
        self->looks_for_answers = asked < self->cores;
    if (self->armed && (waiting = node_size_of(self, BACKLOG)) <= 0) {
        int goes_on = waiting < 0 ? -1 : asked ? ask_poll_on(self) : 0;
        if (goes_on >= 0)
            self->armed = !goes_on;
        return goes_on;
    }
    for (int looks = 0; looks < LOOKS; looks++) {
        int goes_on = take_once(self);
        if (goes_on == 0)
            goes_on = ask_poll_on(self);
        if (goes_on < 0)
            return -1;
        if (goes_on)
            break;
        int is_armed = arm(self);
        if (is_armed < 0)
            return -1;
        if (is_armed) {
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
    self->turn_scheduled = goes_on > 0;
    if (goes_on > 0 && turn_soon(self) < 0)
        return NULL;
    if (!error)
        Py_RETURN_NONE;
    /* A ring is corrupt, or there is no memory for a message: the others are to be heard. */
    if (call_handling(error, NAME(self->state, _look_later), (PyObject *)self, NULL, NULL, NULL) == 0)
        set_exception(error);
    else
        Py_DECREF(error); /* it is the context of what has happened since */
    return NULL;
}

static PyObject *async_on_bell(NodeObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *bell = node_hold(self, BELL);
    int disarmed = bell ? call_quietly(NAME(self->state, disarm), bell, NULL, NULL) : -1;
    Py_XDECREF(bell);
    if (disarmed < 0)
        return NULL;
    self->armed = 0;
    if (!self->turn_scheduled && node_call(self, NAME(self->state, _turn)) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef async_methods[] = {
    FUNCTION("schedule_flush", async_schedule_flush, METH_NOARGS,
             "schedule_flush()\n\nRing the doorbells of what was sent, soon."),
    FUNCTION("_schedule_turn", async_schedule_turn, METH_NOARGS,
             "_schedule_turn()\n\nHave a turn as soon as the loop can."),
    FUNCTION("_turn", async_turn, METH_NOARGS,
             "_turn()\n\nOne turn's work; another one follows if there may be more to do, else the bell is armed."),
    FUNCTION("_on_bell", async_on_bell, METH_NOARGS, "_on_bell()\n\nThe bell was rung."),
    FUNCTION("_poll_on", async_poll_on, METH_NOARGS,
             "_poll_on() -> bool\n\nLook on for a moment, if that is worth while, and handle what has come; else False, "
             "and arm or stay so."),
    {NULL, NULL, 0, NULL},
};

#define FLAG(name, field) {name, T_BOOL, offsetof(NodeObject, field), 0, NULL}

static PyMemberDef async_members[] = {
    NODE_PART("loop", LOOP),
    NODE_PART("_context", TURN_CONTEXT),
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
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                               async_slots};
