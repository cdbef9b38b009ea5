/* Python type Doorbell: ring, arm, and the blocking wait. The protocol stands in bell.h. */
#include "binding.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <time.h>

static PyObject *doorbell_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"board", "slot", "eventfd", NULL};
    PyObject *board, *number;
    int eventfd;
    native_state *state = native_state_of(type);
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!Oi:Doorbell", names, state->board, &board, &number, &eventfd))
        return NULL;
    uint64_t slot;
    if (mapping_is_forked(&((BoardObject *)board)->map) ||
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

static void doorbell_dealloc(DoorbellObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    close_eventfd(self);
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

static bool is_usable(DoorbellObject *self)
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
    if (!is_usable(self))
        return NULL;
    FENCE_SEQ_CST();
    return PyBool_FromLong(bell_ring(&self->bell));
}

static PyObject *doorbell_notify(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!is_usable(self))
        return NULL;
    FENCE_SEQ_CST();
    bell_notify(&self->bell);
    Py_RETURN_NONE;
}

/* ---- what a process may sleep on ---- */

/* Readers and writers as tuples, which keep them alive and in place while the GIL is released. */
typedef struct {
    PyObject *readers, *writers;
} sources;

static int check_all(PyObject *tuple, PyTypeObject *type, const char *name)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        if (!PyObject_TypeCheck(item, type)) {
            PyErr_Format(PyExc_TypeError, "%s must hold %s objects, not %.100s", name, type->tp_name,
                         Py_TYPE(item)->tp_name);
            return -1;
        }
    }
    return 0;
}

static void sources_close(sources *from)
{
    Py_CLEAR(from->readers);
    Py_CLEAR(from->writers);
}

static int sources_open(sources *from, PyObject *self, PyObject *readers, PyObject *writers)
{
    native_state *state = native_state_of(Py_TYPE(self));
    *from = (sources){NULL, NULL};
    if ((from->readers = PySequence_Tuple(readers)) && check_all(from->readers, state->ring_reader, "readers") == 0 &&
        (from->writers = writers ? PySequence_Tuple(writers) : PyTuple_New(0)) &&
        check_all(from->writers, state->ring_writer, "writers") == 0)
        return 0;
    sources_close(from);
    return -1;
}

/* Only looks, so it needs no GIL. */
static bool sources_ready(const sources *from)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(from->readers); i++)
        if (reader_ready(&((RingReaderObject *)PyTuple_GET_ITEM(from->readers, i))->ring))
            return true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(from->writers); i++)
        if (writer_wait_holds(&((RingWriterObject *)PyTuple_GET_ITEM(from->writers, i))->ring))
            return true;
    return false;
}

/* Report waits for space once: the caller is about to be told. */
static void sources_take_waits(const sources *from)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(from->writers); i++)
        writer_take_wait(&((RingWriterObject *)PyTuple_GET_ITEM(from->writers, i))->ring);
}

static PyObject *doorbell_arm(DoorbellObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"readers", "writers", NULL};
    PyObject *out[2];
    sources from;
    if (take_arguments("arm", names, 1, args, given, keywords, out) < 0 || !is_usable(self) ||
        sources_open(&from, (PyObject *)self, out[0], out[1]) < 0)
        return NULL;
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
    if (!is_usable(self))
        return NULL;
    bell_awake(&self->bell);
    bell_empty(&self->bell);
    Py_RETURN_NONE;
}

/* ---- wait ---- */

#define NEVER INT64_MAX
#define MAX_SECONDS 1e9
#define LOOK_EVERY_NS 1000000 /* at the descriptors, while rings are ready all the time */

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static int take_seconds(PyObject *value, const char *name, double *out)
{
    *out = PyFloat_AsDouble(value);
    if (*out == -1.0 && PyErr_Occurred())
        return -1;
    if (isnan(*out)) {
        PyErr_Format(PyExc_ValueError, "%s is not a number", name);
        return -1;
    }
    *out = fmin(fmax(*out, 0.0), MAX_SECONDS);
    return 0;
}

/* pollfds of the eventfd (first) and `fds`; NULL with an exception set. */
static struct pollfd *open_pollfds(DoorbellObject *self, PyObject *fds)
{
    Py_ssize_t count = PyTuple_GET_SIZE(fds);
    struct pollfd *polled = PyMem_Calloc((size_t)count + 1, sizeof *polled);
    if (!polled)
        return (struct pollfd *)PyErr_NoMemory();
    polled[0] = (struct pollfd){.fd = self->bell.eventfd, .events = POLLIN};
    for (Py_ssize_t i = 0; i < count; i++) {
        int fd = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(fds, i));
        if (fd < 0) {
            PyMem_Free(polled);
            return NULL;
        }
        polled[i + 1] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    return polled;
}

/* The fds that poll() found readable or hung up, as a list. */
static PyObject *ready_fds(const struct pollfd *polled, Py_ssize_t count)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 1; list && i <= count; i++) {
        if (polled[i].revents & POLLNVAL) {
            errno = EBADF;
            PyErr_SetFromErrno(PyExc_OSError);
            Py_CLEAR(list);
        } else if (polled[i].revents) {
            PyObject *fd = PyLong_FromLong(polled[i].fd);
            if (!fd || PyList_Append(list, fd) < 0)
                Py_CLEAR(list);
            Py_XDECREF(fd);
        }
    }
    return list;
}

/* Needs no GIL. */
static bool spin(const sources *from, int64_t until)
{
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (sources_ready(from))
                return true;
            cpu_relax();
        }
        if (now_ns() >= until)
            return false;
    }
}

/* ppoll until `deadline`; the number of ready fds, 0 in time-out, -1 with an exception set. Signals are handled by
 * Python on the way: only a handler that raises ends the wait. */
static int sleep_until(struct pollfd *polled, Py_ssize_t count, int64_t deadline)
{
    for (;;) {
        struct timespec left = {0, 0}, *limit = NULL;
        if (deadline != NEVER) {
            int64_t ns = deadline - now_ns();
            if (ns > 0)
                left = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
            limit = &left;
        }
        int found;
        Py_BEGIN_ALLOW_THREADS
        found = ppoll(polled, (nfds_t)count + 1, limit, NULL);
        Py_END_ALLOW_THREADS
        if (found >= 0)
            return found;
        if (errno != EINTR) {
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (PyErr_CheckSignals() < 0)
            return -1;
    }
}

static PyObject *wait_on(DoorbellObject *self, const sources *from, PyObject *fds, double timeout_s, double spin_s)
{
    Py_ssize_t count = PyTuple_GET_SIZE(fds);
    bool forever = timeout_s < 0, ready = sources_ready(from);
    if (ready && timeout_s != 0) {
        if (count == 0 || now_ns() - self->looked_ns < LOOK_EVERY_NS)
            return PyList_New(0);
        timeout_s = 0; /* busy rings must not hide a link or a pidfd for ever: only look, */
        forever = false; /* and never sleep, since the bell is not armed */
    }

    struct pollfd *polled = open_pollfds(self, fds);
    if (!polled)
        return NULL;
    int64_t start = now_ns();
    int64_t deadline = forever ? NEVER : start + (int64_t)(timeout_s * 1e9);
    if (!ready && timeout_s != 0 && spin_s > 0) {
        int64_t until = start + (int64_t)(spin_s * 1e9);
        Py_BEGIN_ALLOW_THREADS
        ready = spin(from, until < deadline ? until : deadline);
        Py_END_ALLOW_THREADS
        if (ready) {
            PyMem_Free(polled);
            return PyList_New(0);
        }
    }
    int found;
    self->looked_ns = start;
    if (timeout_s == 0) {
        found = sleep_until(polled, count, deadline); /* a look at the fds; nothing to arm for */
    } else {
        bell_arm(&self->bell);
        found = sources_ready(from) ? 0 : sleep_until(polled, count, deadline);
        bell_awake(&self->bell);
    }
    if (found > 0 && polled[0].revents)
        bell_empty(&self->bell);
    PyObject *list = found < 0 ? NULL : ready_fds(polled, count);
    PyMem_Free(polled);
    return list;
}

static PyObject *doorbell_wait(DoorbellObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"readers", "writers", "fds", "timeout_s", "spin_s", NULL};
    PyObject *out[5];
    double timeout_s = -1, spin_s;
    sources from;
    if (take_arguments("wait", names, 5, args, given, keywords, out) < 0 || !is_usable(self) ||
        (out[3] != Py_None && take_seconds(out[3], "timeout_s", &timeout_s) < 0) ||
        take_seconds(out[4], "spin_s", &spin_s) < 0 || sources_open(&from, (PyObject *)self, out[0], out[1]) < 0)
        return NULL;
    PyObject *fds = PySequence_Tuple(out[2]), *list = NULL;
    if (fds) {
        self->waiting++;
        list = wait_on(self, &from, fds, timeout_s, spin_s);
        self->waiting--;
        if (list)
            sources_take_waits(&from);
        Py_DECREF(fds);
    }
    sources_close(&from);
    return list;
}

static PyObject *doorbell_fileno(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(self->bell.eventfd);
}

static PyObject *doorbell_state(DoorbellObject *self, void *Py_UNUSED(closure))
{
    if (mapping_is_forked(&((BoardObject *)self->board)->map))
        return NULL;
    return PyLong_FromUnsignedLong(LOAD_RELAXED(self->bell.word));
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
           "wait(readers, writers, fds, timeout_s, spin_s) -> list[int]\n\nBlock until a reader or a writer is ready, "
           "one of fds is readable or hung up, or the bell is rung;\nthen retry every refused send. Returns those of "
           "fds; while rings are ready all the time, fds are looked\nat once a millisecond, or when timeout_s is 0. May "
           "return early with an empty list. None waits for ever.\nThe GIL is released; signal handlers run, and end the "
           "wait if they raise."),
    METHOD("fileno", doorbell_fileno, METH_NOARGS, "fileno() -> int\n\nOur duplicate of the eventfd, to watch; -1 after close."),
    METHOD("close", doorbell_close, METH_NOARGS, "close()\n\nClose the duplicate: rings go nowhere. Again is allowed."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
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
