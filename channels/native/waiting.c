/* Doorbell.wait: the spin and the sleep of a process, and what may end them. The protocol stands in bell.h. */
#include "binding.h"

#include <math.h>
#include <poll.h>
#include <time.h>

/* ---- what a process may sleep on ---- */

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

void sources_close(sources *from)
{
    Py_CLEAR(from->readers);
    Py_CLEAR(from->writers);
}

int sources_open(sources *from, PyObject *self, PyObject *readers, PyObject *writers)
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
bool sources_ready(const sources *from)
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
void sources_take_waits(const sources *from)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(from->writers); i++)
        writer_take_wait(&((RingWriterObject *)PyTuple_GET_ITEM(from->writers, i))->ring);
}

#define NEVER INT64_MAX
#define MAX_SECONDS 1e9
#define LOOK_EVERY_NS 1000000 /* at the descriptors, while rings are ready all the time */
#define COUNT_EVERY_NS 10000000  /* the busy processes, before a spin */
#define CORES_EVERY_NS 250000000 /* that they may run on: this takes system calls, so only when one sleeps anyway */
#define LONG_SPIN_NS 1000000     /* costs more than those calls; perhaps it kept the other side from running */
#define GAP_WEIGHT 8             /* a wait counts for so much of the moving average */
#define GAP_MOST 2               /* spins: one long idle time shall not end spinning, nor many be remembered for long */
#define TRY_EVERY 16             /* waits that are slept through before a spin is tried all the same */

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

/* ---- descriptors ---- */

/* pollfds of the eventfd (first), `fds` and `out_fds`; NULL with an exception set. */
static struct pollfd *open_pollfds(DoorbellObject *self, PyObject *fds, PyObject *out_fds)
{
    Py_ssize_t in_count = PyTuple_GET_SIZE(fds), count = in_count + PyTuple_GET_SIZE(out_fds);
    struct pollfd *polled = PyMem_Calloc((size_t)count + 1, sizeof *polled);
    if (!polled)
        return (struct pollfd *)PyErr_NoMemory();
    polled[0] = (struct pollfd){.fd = self->bell.eventfd, .events = POLLIN};
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = i < in_count ? PyTuple_GET_ITEM(fds, i) : PyTuple_GET_ITEM(out_fds, i - in_count);
        int fd = PyObject_AsFileDescriptor(item);
        if (fd < 0) {
            PyMem_Free(polled);
            return NULL;
        }
        polled[i + 1] = (struct pollfd){.fd = fd, .events = i < in_count ? POLLIN : POLLOUT};
    }
    return polled;
}

/* The fds that poll() found ready, each once, as a list. */
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
            int known = fd ? PySequence_Contains(list, fd) : -1;
            if (known < 0 || (!known && PyList_Append(list, fd) < 0))
                Py_CLEAR(list);
            Py_XDECREF(fd);
        }
    }
    return list;
}

/* ---- spin ---- */

struct board_census board_count(void *board)
{
    const struct board_header *header = board;
    struct board_census census = {0, 0};
    for (uint32_t slot = 0; slot < header->slots; slot++) {
        struct board_slot *at = &board_slots(board)[slot];
        bool owned = LOAD_RELAXED(&at->owner_pid) != 0;
        census.owners += owned;
        census.busy += owned && (LOAD_RELAXED(&at->bell) & BELL_STATE) != BELL_ARMED;
    }
    return census;
}

/* On how many cores how many processes of the board may run. Those that have died are crossed out. */
static unsigned board_cores(void *board, unsigned *owners)
{
    const struct board_header *header = board;
    cpu_set_t all, allowed;
    CPU_ZERO(&all);
    *owners = 0;
    for (uint32_t slot = 0; slot < header->slots; slot++) {
        uint32_t *owner = &board_slots(board)[slot].owner_pid, pid = LOAD_RELAXED(owner);
        if (!pid)
            continue;
        bool lives = true;
        if (sched_getaffinity((pid_t)pid, sizeof allowed, &allowed) == 0)
            CPU_OR(&all, &all, &allowed);
        else if (errno == ESRCH)
            lives = !__atomic_compare_exchange_n(owner, &pid, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        *owners += lives;
    }
    return (unsigned)CPU_COUNT(&all);
}

static void look_at_cores(DoorbellObject *self, int64_t now)
{
    /* Counted in the same pass: who comes in between is missing in both, and so found missing at the next count. */
    unsigned cores = board_cores(((BoardObject *)self->board)->map.base, &self->owners);
    self->usable = self->cores && self->cores < cores ? self->cores : cores;
    self->cores_ns = now;
}

/* Do the board's busy processes, of whom we are one, fill the cores that they may use? A spin would then keep somebody
 * from working, perhaps the very one that it waits for. */
static bool is_crowded(DoorbellObject *self, int64_t now)
{
    if (!self->crowded_ns || now - self->crowded_ns >= COUNT_EVERY_NS) {
        struct board_census census = board_count(((BoardObject *)self->board)->map.base);
        if (!self->cores_ns || census.owners != self->owners)
            look_at_cores(self, now);
        self->crowded = self->usable < 2 || census.busy > self->usable;
        self->crowded_ns = now;
    }
    return self->crowded;
}

void doorbell_look_around(DoorbellObject *self)
{
    int64_t now = self->cores_ns ? now_ns() : 0;
    if (now - self->cores_ns < CORES_EVERY_NS)
        return;
    look_at_cores(self, now);
    self->crowded_ns = 0;
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

/* A wait has lasted so long: what the next spins go by. */
static void learn(DoorbellObject *self, int64_t spent_ns, int64_t spin_ns)
{
    int64_t most = spin_ns * GAP_MOST;
    self->gap_ns += ((spent_ns < most ? spent_ns : most) - self->gap_ns) / GAP_WEIGHT;
}

/* A spin has found something after so long. That says more than any sleep: two processes that answer each other and
 * both sleep make each other's waits long by being woken, and would never learn that a spin ends sooner. */
static void learn_won(DoorbellObject *self, int64_t spent_ns)
{
    self->spins_won++;
    self->gap_ns = spent_ns;
}

/* Is a spin of so long likely to find something? If not, one is tried now and then. */
static bool is_worthwhile(DoorbellObject *self, int64_t spin_ns)
{
    if (self->gap_ns <= spin_ns)
        return true;
    self->slept = (self->slept + 1) % TRY_EVERY;
    return self->slept == 0;
}

static PyObject *wait_on(DoorbellObject *self, const sources *from, PyObject *fds, PyObject *out_fds,
                         double timeout_s, double spin_s)
{
    Py_ssize_t count = PyTuple_GET_SIZE(fds) + PyTuple_GET_SIZE(out_fds);
    bool ready = sources_ready(from);
    if (ready && timeout_s != 0) {
        if (count == 0 || now_ns() - self->looked_ns < LOOK_EVERY_NS)
            return PyList_New(0);
        timeout_s = 0; /* busy rings must not hide a link or a pidfd for ever: a look, no sleep, for nothing is armed */
    }

    struct pollfd *polled = open_pollfds(self, fds, out_fds);
    if (!polled)
        return NULL;
    int64_t start = now_ns(), spin_ns = (int64_t)(spin_s * 1e9);
    int64_t deadline = timeout_s < 0 ? NEVER : start + (int64_t)(timeout_s * 1e9);
    bool blocks = !ready && timeout_s != 0;
    self->waits += blocks;
    if (blocks && spin_ns > 0 && is_worthwhile(self, spin_ns) && !is_crowded(self, start)) {
        self->spins++;
        Py_BEGIN_ALLOW_THREADS
        ready = spin(from, start + spin_ns < deadline ? start + spin_ns : deadline);
        Py_END_ALLOW_THREADS
        if (ready) {
            int64_t spent = now_ns() - start;
            learn_won(self, spent);
            if (spent >= LONG_SPIN_NS)
                doorbell_look_around(self);
            PyMem_Free(polled);
            return PyList_New(0);
        }
    }
    int found;
    self->looked_ns = start;
    if (timeout_s == 0) {
        found = sleep_until(polled, count, deadline); /* a look at the fds; nothing to arm for */
    } else {
        doorbell_look_around(self);
        bell_arm(&self->bell);
        if (sources_ready(from)) {
            found = 0;
        } else {
            self->sleeps++;
            found = sleep_until(polled, count, deadline);
        }
        bell_awake(&self->bell);
        if (spin_ns > 0)
            learn(self, now_ns() - start, spin_ns);
    }
    if (found > 0 && polled[0].revents)
        self->tokens += bell_empty(&self->bell);
    PyObject *list = found < 0 ? NULL : ready_fds(polled, count);
    PyMem_Free(polled);
    return list;
}

static uint64_t records_read(const sources *from)
{
    uint64_t sum = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(from->readers); i++)
        sum += ((RingReaderObject *)PyTuple_GET_ITEM(from->readers, i))->ring.stats.records;
    return sum;
}

/* One idle time of a loop is one wait: it begins with the first of some spins and ends when records are read, or,
 * slept through, with disarm(). */
PyObject *doorbell_spin(DoorbellObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"readers", "writers", "slice_s", "spin_s", NULL};
    PyObject *out[4];
    double slice_s, spin_s;
    sources from;
    if (take_arguments("spin", names, 4, args, given, keywords, out) < 0 || !doorbell_is_usable(self) ||
        take_seconds(out[2], "slice_s", &slice_s) < 0 || take_seconds(out[3], "spin_s", &spin_s) < 0 ||
        sources_open(&from, (PyObject *)self, out[0], out[1]) < 0)
        return NULL;
    doorbell_own(self);
    int64_t now = now_ns();
    uint64_t read = records_read(&from);
    if (!self->idle_ns || read != self->idle_read) {
        if (self->idle_ns && self->spinning)
            learn_won(self, self->idle_spin_ns); /* within that time, in the loop's own turns */
        self->idle_ns = now;
        self->idle_read = read;
        self->idle_spin_ns = (int64_t)(spin_s * 1e9);
        self->waits++;
        self->spinning = self->idle_spin_ns > 0 && is_worthwhile(self, self->idle_spin_ns) && !is_crowded(self, now);
        self->spins += self->spinning;
    }
    int64_t until = self->idle_ns + self->idle_spin_ns, slice = now + (int64_t)(slice_s * 1e9);
    bool found = false, goes_on = self->spinning && now < until;
    if (goes_on) {
        if (LOAD_RELAXED(self->bell.word) & BELL_STATE)
            bell_awake(&self->bell); /* nobody needs to ring who looks; a token that has come already ends the next sleep */
        Py_BEGIN_ALLOW_THREADS
        found = spin(&from, slice < until ? slice : until);
        Py_END_ALLOW_THREADS
    }
    if (found) {
        learn_won(self, now_ns() - self->idle_ns);
        self->idle_ns = 0;
        sources_take_waits(&from);
    }
    sources_close(&from);
    return PyBool_FromLong(goes_on);
}

/* The owner was woken: its idle time has ended. */
void doorbell_woken(DoorbellObject *self)
{
    if (self->idle_ns) {
        self->sleeps++;
        learn(self, now_ns() - self->idle_ns, self->idle_spin_ns);
        self->idle_ns = 0;
    }
}

PyObject *doorbell_may_spin(DoorbellObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!doorbell_is_usable(self))
        return NULL;
    doorbell_own(self);
    return PyBool_FromLong(!is_crowded(self, now_ns()));
}

PyObject *doorbell_wait(DoorbellObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"readers", "writers", "fds", "timeout_s", "spin_s", "out_fds", NULL};
    PyObject *out[6];
    double timeout_s = -1, spin_s;
    sources from;
    if (take_arguments("wait", names, 5, args, given, keywords, out) < 0 || !doorbell_is_usable(self) ||
        (out[3] != Py_None && take_seconds(out[3], "timeout_s", &timeout_s) < 0) ||
        take_seconds(out[4], "spin_s", &spin_s) < 0 || sources_open(&from, (PyObject *)self, out[0], out[1]) < 0)
        return NULL;
    PyObject *fds = PySequence_Tuple(out[2]), *list = NULL;
    PyObject *out_fds = fds ? (out[5] ? PySequence_Tuple(out[5]) : PyTuple_New(0)) : NULL;
    if (out_fds) {
        doorbell_own(self);
        self->waiting++;
        list = wait_on(self, &from, fds, out_fds, timeout_s, spin_s);
        self->waiting--;
        if (list)
            sources_take_waits(&from);
    }
    Py_XDECREF(fds);
    Py_XDECREF(out_fds);
    sources_close(&from);
    return list;
}
