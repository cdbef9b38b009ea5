/* What the binding's files share. The binding turns Python calls into calls of bell.h, writer.h and reader.h. */
#ifndef RINGCAST_BINDING_H
#define RINGCAST_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sched.h>
#include <structmember.h>

#include "reader.h"
#include "writer.h"

typedef struct {
    PyTypeObject *board, *doorbell, *ring_writer, *ring_reader, *message, *sealed_memory;
    PyTypeObject *window, *reservation, *record_view, *doorbell_statistics, *codec, *inbox, *outbox;
    /* Of ringcast.channels.errors: */
    PyObject *ring_corrupt, *ring_mismatch, *reader_limit, *segment_error, *encode_error, *decode_error;
} native_state;

/* A shared mapping, not inherited by fork. `born` tells a forked child from its parent: the child has no mapping. */
typedef struct {
    void *base;
    size_t size;
    unsigned born;
} mapping;

typedef struct {
    PyObject_HEAD
    mapping map;
    uint32_t slots;
    bool is_read_only;
} BoardObject;

typedef struct {
    PyObject_HEAD
    struct bell bell;
    PyObject *board;
    uint32_t slot;
    bool owned;        /* arm() or wait() was called: this is our process's own bell */
    int waiting;       /* threads inside wait(): the eventfd must stay open */
    int64_t looked_ns; /* when wait() looked at descriptors last */

    /* Spinning: worth while if recent waits were short, and if it takes a core from nobody. */
    unsigned cores;      /* that its processes may use at once, by quota; 0: as many as there are */
    int64_t gap_ns;      /* how long waits last, a moving average */
    unsigned slept;      /* waits since a spin was tried that did not look worth while */
    int64_t idle_ns;     /* since when a loop that spins in slices has had nothing to do; 0: it is busy */
    int64_t idle_spin_ns; /* how long it may spin in this idle time */
    uint64_t idle_read;  /* records read when it began */
    bool spinning;       /* whether it does */
    unsigned usable;     /* cores of all processes of the board, */
    unsigned owners;     /* of which there were so many */
    bool crowded;        /* more of those are busy */
    int64_t cores_ns, crowded_ns; /* when these were looked at; 0: never */
    uint64_t waits, spins, spins_won, sleeps, tokens;
} DoorbellObject;

typedef struct {
    PyObject_HEAD
    mapping map;
    native_state *state;
    struct ring_writer ring;
    PyObject *own_bell;                 /* Doorbell or NULL */
    PyObject *bells[RING_MAX_READERS];  /* keep ring.bells alive */
} RingWriterObject;

typedef struct {
    PyObject_HEAD
    mapping map;
    native_state *state;
    struct ring_reader ring;
    struct read_record viewed; /* while ring.pinned */
    PyObject *writer_bell;     /* Doorbell or NULL */
} RingReaderObject;

extern struct PyModuleDef native_module;
extern PyType_Spec board_spec, doorbell_spec, ring_writer_spec, ring_reader_spec, sealed_memory_spec, window_spec,
    reservation_spec, record_view_spec, codec_spec, inbox_spec, outbox_spec;

native_state *native_state_of(PyTypeObject *type);

/* Map the whole file behind `fd` (an int or an object with fileno()); -1 with an exception set if that fails. */
int mapping_open(mapping *map, PyObject *fd, const char *what, bool is_read_only);
void mapping_close(mapping *map);
bool mapping_is_here(const mapping *map);
/* True with RuntimeError set in a forked child, where nothing of the layer may be used. */
bool mapping_is_forked(const mapping *map);

/* Put positional and keyword arguments into out[] by name (NULL: not given); -1 with TypeError set. */
int take_arguments(const char *function, const char *const *names, Py_ssize_t required, PyObject *const *args,
                   Py_ssize_t given, PyObject *keywords, PyObject **out);
/* An unsigned integer of at most `limit`; -1 with an exception that names it. */
int take_unsigned(PyObject *value, const char *name, uint64_t limit, uint64_t *out);

/* None or a Doorbell into *out as a new reference (NULL for None); -1 with TypeError set. */
int take_doorbell(native_state *state, PyObject *value, const char *name, PyObject **out);

/* Whether it may be written to; ValueError set if not. */
bool board_is_ours(const BoardObject *self);

int take_type(PyObject *number, uint16_t *out);
/* A record as the Message that Python sees, its payload copied. */
PyObject *make_message(native_state *state, const struct ring_record *header, const unsigned char *payload);

/* ring_send.c: may a payload of that size be sent now? If not, an exception is set. */
bool writer_may_send(RingWriterObject *self, Py_ssize_t size);
PyObject *ring_writer_try_send(RingWriterObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords);
PyObject *ring_writer_try_send_parts(RingWriterObject *self, PyObject *const *args, Py_ssize_t given,
                                     PyObject *keywords);
PyObject *ring_writer_send_many(RingWriterObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords);
PyObject *ring_writer_send_records(RingWriterObject *self, PyObject *const *args, Py_ssize_t given,
                                   PyObject *keywords);
PyObject *ring_writer_make_room(RingWriterObject *self, PyObject *number);
PyObject *ring_writer_required(RingWriterObject *self, PyObject *number);
PyObject *ring_writer_await_any(RingWriterObject *self, PyObject *sequence);
PyObject *ring_writer_flush(RingWriterObject *self, PyObject *ignored);
PyObject *ring_writer_space_ready(RingWriterObject *self, PyObject *ignored);

/* ring_poll.c */
#define POLL_LIMIT 256 /* records, where none is given */
bool reader_may_read(RingReaderObject *self);
PyObject *raise_corrupt(RingReaderObject *self, const struct read_record *record);
PyObject *ring_reader_poll(RingReaderObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords);
PyObject *ring_reader_poll_payloads(RingReaderObject *self, PyObject *const *args, Py_ssize_t given,
                                    PyObject *keywords);
PyObject *ring_reader_poll_into(RingReaderObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords);
PyObject *ring_reader_step(RingReaderObject *self, PyObject *ignored);

/* ring_window.c */
PyObject *ring_writer_reserve(RingWriterObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords);
PyObject *ring_reader_view(RingReaderObject *self, PyObject *ignored);

/* waiting.c: what a process may sleep on, as tuples, which keep them alive and in place while the GIL is released. */
typedef struct {
    PyObject *readers, *writers;
} sources;

int sources_open(sources *from, PyObject *self, PyObject *readers, PyObject *writers);
bool sources_ready(const sources *from);
void sources_take_waits(const sources *from);
void sources_close(sources *from);
void doorbell_own(DoorbellObject *self);
bool doorbell_is_usable(DoorbellObject *self);
/* Once in a while, look anew where the board's processes may run: system calls, so only when they matter little. */
void doorbell_look_around(DoorbellObject *self);
struct board_census {
    unsigned owners, busy; /* processes with a slot; those of them that do not sleep */
};
struct board_census board_count(void *board);
PyObject *doorbell_may_spin(DoorbellObject *self, PyObject *ignored);
PyObject *doorbell_spin(DoorbellObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords);
void doorbell_woken(DoorbellObject *self);
PyObject *doorbell_wait(DoorbellObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords);

PyObject *map_sealed(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *watch_processes(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *kill_with_parent(PyObject *module, PyObject *ignored);

#define METHOD(name, function, flags, doc) {name, (PyCFunction)(void (*)(void))(function), (flags), PyDoc_STR(doc)}

#endif
