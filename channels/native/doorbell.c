/* Python type Doorbell: ring, arm, and the blocking wait. The protocol stands in bell.h. */
#include "binding.h"

#include <fcntl.h>

static PyObject *doorbell_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"board", "slot", "eventfd", NULL};
    PyObject *board, *number;
    int eventfd;
    native_state *state = native_state_of(type);
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!Oi:Doorbell", names, state->board, &board, &number, &eventfd))
        return NULL;
    uint64_t slot;
    if (mapping_is_forked(&((BoardObject *)board)->map) || !board_is_ours((BoardObject *)board) ||
        take_unsigned(number, "slot", ((BoardObject *)board)->slots - 1, &slot) < 0)
        return NULL;
    int duplicate = fcntl(eventfd, F_DUPFD_CLOEXEC, 0); /* a number that nobody else closes under our writes */
    if (duplicate < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    DoorbellObject *self = (DoorbellObject *)type->tp_alloc(type, 0);
    if (!self) {
        close(duplicate);
        return NULL;
    }
    self->board = Py_NewRef(board);
    self->slot = (uint32_t)slot;
    self->bell.word = &board_slots(((BoardObject *)board)->map.base)[slot].bell;
    self->bell.eventfd = duplicate;
    return (PyObject *)self;
}

static void close_eventfd(DoorbellObject *self)
{
    if (self->bell.eventfd >= 0)
        close(self->bell.eventfd);
    self->bell.eventfd = -1;
}

static uint32_t *doorbell_owner(DoorbellObject *self)
{
    return &board_slots(((BoardObject *)self->board)->map.base)[self->slot].owner_pid;
}

/* Let the board count us among its processes: we are the one who sleeps on this bell. */
void doorbell_own(DoorbellObject *self)
{
    if (!self->owned)
        STORE_RELAXED(doorbell_owner(self), (uint32_t)getpid());
    self->owned = true;
}

static void doorbell_dealloc(DoorbellObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    close_eventfd(self);
    if (self->owned && mapping_is_here(&((BoardObject *)self->board)->map))
        STORE_RELAXED(doorbell_owner(self), 0);
    Py_XDECREF(self->board);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *doorbell_close(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    if (self->waiting) {
        PyErr_SetString(PyExc_RuntimeError, "a thread waits on this doorbell: wake it with notify() and let it end");
        return NULL;
    }
    close_eventfd(self);
    Py_RETURN_NONE;
}

bool doorbell_is_usable(DoorbellObject *self)
{
    if (mapping_is_forked(&((BoardObject *)self->board)->map))
        return false;
    if (self->bell.eventfd < 0) {
        PyErr_SetString(PyExc_ValueError, "the doorbell is closed");
        return false;
    }
    return true;
}

static PyObject *doorbell_ring(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!doorbell_is_usable(self))
        return NULL;
    FENCE_SEQ_CST();
    return PyBool_FromLong(bell_ring(&self->bell));
}

static PyObject *doorbell_notify(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!doorbell_is_usable(self))
        return NULL;
    FENCE_SEQ_CST();
    bell_notify(&self->bell);
    Py_RETURN_NONE;
}

static PyObject *doorbell_arm(DoorbellObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"readers", "writers", NULL};
    PyObject *out[2];
    sources from;
    if (take_arguments("arm", names, 1, args, given, keywords, out) < 0 || !doorbell_is_usable(self) ||
        sources_open(&from, (PyObject *)self, out[0], out[1]) < 0)
        return NULL;
    doorbell_own(self);
    doorbell_look_around(self);
    bell_arm(&self->bell);
    bool ready = sources_ready(&from);
    if (ready) {
        bell_awake(&self->bell);
        sources_take_waits(&from);
    }
    sources_close(&from);
    return PyBool_FromLong(!ready);
}

static PyObject *doorbell_disarm(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!doorbell_is_usable(self))
        return NULL;
    bell_awake(&self->bell);
    self->tokens += bell_empty(&self->bell);
    doorbell_woken(self);
    Py_RETURN_NONE;
}

static PyObject *doorbell_statistics(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *made = PyStructSequence_New(native_state_of(Py_TYPE(self))->doorbell_statistics);
    const uint64_t figures[] = {self->bell.sent, self->bell.suppressed, self->waits,
                                self->spins, self->spins_won,       self->sleeps, self->tokens};
    for (int i = 0; made && i < 7; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(figures[i]);
        if (!number)
            Py_CLEAR(made);
        else
            PyStructSequence_SetItem(made, i, number);
    }
    return made;
}

static PyObject *doorbell_fileno(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(self->bell.eventfd);
}

static PyObject *doorbell_state(DoorbellObject *self, void *Py_UNUSED(closure))
{
    if (mapping_is_forked(&((BoardObject *)self->board)->map))
        return NULL;
    return PyLong_FromUnsignedLong(LOAD_RELAXED(self->bell.word) & BELL_STATE);
}

static PyMethodDef methods[] = {
    METHOD("ring", doorbell_ring, METH_NOARGS,
           "ring() -> bool\n\nWake the owner unless it is awake; True if that took a system call."),
    METHOD("notify", doorbell_notify, METH_NOARGS,
           "notify()\n\nWake the owner whatever its word says: for whoever has seen a ringer die, and for stops."),
    METHOD("arm", doorbell_arm, METH_FASTCALL | METH_KEYWORDS,
           "arm(readers, writers=()) -> bool\n\nTrue: parked, the owner may sleep until fileno() is readable, then "
           "disarm(). False: something is ready\nand the bell is awake. A wait of a writer for space counts when its "
           "space is there, and is reported once."),
    METHOD("disarm", doorbell_disarm, METH_NOARGS, "disarm()\n\nBe awake, then take the eventfd's token."),
    METHOD("wait", doorbell_wait, METH_FASTCALL | METH_KEYWORDS,
           "wait(readers, writers, fds, timeout_s, spin_s, out_fds=()) -> list[int]\n\nBlock until a reader or a writer "
           "is ready, one of fds is readable or hung up, one of out_fds writable, or the\nbell is rung; then retry every "
           "refused send. Returns those of the fds; while rings are ready all the time,\nfds are looked at once a "
           "millisecond, or when timeout_s is 0. May return early with an empty list. None waits\nfor ever. Before it "
           "sleeps it spins for at most spin_s: as long as recent waits were that short, and only while\nthis board's "
           "busy processes have a core each. The GIL is released; signal handlers run, and end the wait if\nthey raise."),
    METHOD("spin", doorbell_spin, METH_FASTCALL | METH_KEYWORDS,
           "spin(readers, writers, slice_s, spin_s) -> bool\n\nFor a loop that has nothing to do: look for at most "
           "slice_s whether a reader or a writer becomes ready, up to\nspin_s in one idle time, and under the conditions "
           "of wait(). True: look what has come, give the loop a turn and call\nagain; the bell is awake. False: arm(), unless "
           "it is armed, and sleep until the bell rings. The GIL is released."),
    METHOD("may_spin", doorbell_may_spin, METH_NOARGS,
           "may_spin() -> bool\n\nWhether polling for a moment takes a core from nobody: there are two or more, and one for "
           "each of this board's\nbusy processes. They are counted anew every 10 ms; where they may run is looked at when one sleeps."),
    METHOD("statistics", doorbell_statistics, METH_NOARGS, "statistics() -> DoorbellStatistics"),
    METHOD("fileno", doorbell_fileno, METH_NOARGS, "fileno() -> int\n\nOur duplicate of the eventfd, to watch; -1 after close."),
    METHOD("close", doorbell_close, METH_NOARGS, "close()\n\nClose the duplicate: rings go nowhere. Again is allowed."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"cores", T_UINT, offsetof(DoorbellObject, cores), 0,
     PyDoc_STR("How many cores the busy processes may use together, if their group has a quota (core_quota()); else 0.")},
    {"slot", T_UINT, offsetof(DoorbellObject, slot), READONLY, PyDoc_STR("The owner's place on the board.")},
    {"sent", T_ULONGLONG, offsetof(DoorbellObject, bell.sent), READONLY, PyDoc_STR("System calls made by this object.")},
    {"suppressed", T_ULONGLONG, offsetof(DoorbellObject, bell.suppressed), READONLY,
     PyDoc_STR("Rings of this object that needed no system call.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"state", (getter)doorbell_state, NULL, PyDoc_STR("AWAKE, ARMED or RINGING, at this moment."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, PyDoc_STR("Doorbell(board, slot, eventfd)\n\nThe doorbell of the process at that slot: its own, to sleep "
                          "on, or another's, to ring. The eventfd (non-blocking)\nis duplicated and stays the caller's.")},
    {Py_tp_new, doorbell_new},
    {Py_tp_dealloc, doorbell_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec doorbell_spec = {"ringcast.channels._native.Doorbell", sizeof(DoorbellObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, type_slots};
