/* What concerns whole processes: read-only maps of sealed memory, and the thread that ends an orphan. */
#include "binding.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* ---- sealed memory: a mapping that lives as long as the views of it ---- */

typedef struct {
    PyObject_HEAD
    void *base;
    size_t size;
} SealedMemoryObject;

static void sealed_memory_dealloc(SealedMemoryObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->base)
        munmap(self->base, self->size);
    type->tp_free(self);
    Py_DECREF(type);
}

static int sealed_memory_getbuffer(SealedMemoryObject *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)self, self->base, (Py_ssize_t)self->size, 0, flags);
}

PyObject *map_sealed(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    static const char *const names[] = {"fd", "size_bytes", NULL};
    native_state *state = PyModule_GetState(module);
    PyObject *out[2];
    uint64_t size;
    if (take_arguments("map_sealed", names, 2, args, given, NULL, out) < 0)
        return NULL;
    int fd = PyObject_AsFileDescriptor(out[0]);
    if (fd < 0 || take_unsigned(out[1], "size_bytes", INT64_MAX, &size) < 0)
        return NULL;
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &status) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if ((seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK) || size == 0 ||
        (uint64_t)status.st_size != size)
        return PyErr_Format(state->ring_corrupt,
                            "an oversized message came in memory of %lld bytes with seals 0x%x: expected %llu bytes, "
                            "sealed against writing and shrinking",
                            (long long)status.st_size, seals, (unsigned long long)size);
    SealedMemoryObject *memory = (SealedMemoryObject *)state->sealed_memory->tp_alloc(state->sealed_memory, 0);
    if (!memory)
        return NULL;
    /* MAP_PRIVATE: the pages are shared until one is written to; what is written is seen by this mapping alone. */
    void *base = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        PyErr_Format(state->segment_error, "cannot map an oversized message of %llu bytes: %s",
                     (unsigned long long)size, strerror(errno));
        Py_DECREF(memory);
        return NULL;
    }
    memory->base = base;
    memory->size = (size_t)size;
    PyObject *whole = PyMemoryView_FromObject((PyObject *)memory);
    Py_DECREF(memory);
    PyObject *view = whole ? PyObject_CallMethod(whole, "toreadonly", NULL) : NULL;
    Py_XDECREF(whole);
    return view;
}

static PyType_Slot type_slots[] = {
    {Py_tp_doc, PyDoc_STR("The mapping behind the memoryview of an oversized message; made by map_sealed only. It is private: "
                          "who writes to it changes nobody else's.")},
    {Py_tp_dealloc, sealed_memory_dealloc},
    {Py_bf_getbuffer, sealed_memory_getbuffer},
    {0, NULL},
};

PyType_Spec sealed_memory_spec = {"ringcast.channels._native.SealedMemory", sizeof(SealedMemoryObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
                                      Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  type_slots};

/* ---- the watcher ---- */

struct watch {
    int exit_code;
    bool has_lane; /* the last of `polled` is a socket on which every message is sent back */
    nfds_t count;
    struct pollfd polled[];
};

/* Send back what came over the lane; a lane that has ended is watched no more. */
static void watch_answer(struct pollfd *lane)
{
    char message[64];
    ssize_t size = recv(lane->fd, message, sizeof message, MSG_DONTWAIT);
    if (size > 0)
        size = send(lane->fd, message, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
        lane->fd = -1;
}

/* Runs beside the interpreter and never touches it: it works while the GIL is held, and while Python is stopped in a
 * debugger or in a native call. */
static void *watch_thread(void *argument)
{
    struct watch *watch = argument;
    nfds_t processes = watch->count - watch->has_lane;
    for (;;) {
        if (poll(watch->polled, watch->count, -1) <= 0)
            continue;
        for (nfds_t i = 0; i < processes; i++)
            if (watch->polled[i].revents)
                _exit(watch->exit_code);
        if (watch->has_lane && watch->polled[processes].revents)
            watch_answer(&watch->polled[processes]);
    }
    return NULL;
}

static void watch_free(struct watch *watch)
{
    for (nfds_t i = 0; i < watch->count; i++)
        close(watch->polled[i].fd);
    free(watch);
}

/* Start the detached thread, which owns `watch` from then on; an errno, or 0. */
static int watch_start(struct watch *watch)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: signals are for Python's threads */
    error = pthread_create(&thread, &attributes, watch_thread, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

PyObject *watch_processes(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    static const char *const names[] = {"pidfds", "exit_code", "lane", NULL};
    PyObject *out[3];
    uint64_t exit_code;
    if (take_arguments("watch_processes", names, 2, args, given, NULL, out) < 0 ||
        take_unsigned(out[1], "exit_code", 255, &exit_code) < 0)
        return NULL;
    bool has_lane = out[2] && out[2] != Py_None;
    PyObject *pidfds = PySequence_Tuple(out[0]);
    if (!pidfds)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(pidfds);
    struct watch *watch = NULL;
    if (count == 0) {
        PyErr_SetString(PyExc_ValueError, "pidfds is empty: there is nothing to watch");
        goto fail;
    }
    if (!(watch = calloc(1, sizeof *watch + ((size_t)count + has_lane) * sizeof *watch->polled))) {
        PyErr_NoMemory();
        goto fail;
    }
    watch->exit_code = (int)exit_code;
    watch->has_lane = has_lane;
    for (Py_ssize_t i = 0; i < count + has_lane; i++) {
        int fd = PyObject_AsFileDescriptor(i < count ? PyTuple_GET_ITEM(pidfds, i) : out[2]);
        if (fd < 0)
            goto fail;
        int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (duplicate < 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            goto fail;
        }
        watch->polled[watch->count++] = (struct pollfd){.fd = duplicate, .events = POLLIN};
    }
    int error = watch_start(watch);
    if (error) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        goto fail;
    }
    Py_DECREF(pidfds);
    Py_RETURN_NONE;
fail:
    if (watch)
        watch_free(watch);
    Py_DECREF(pidfds);
    return NULL;
}

PyObject *kill_with_parent(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}
