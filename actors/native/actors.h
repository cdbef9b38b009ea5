/* What the actors' native files share: the way of a message through a mailbox, as far as every message takes it.
 *
 * A process that was woken for one message runs on cold caches, where each step in Python costs several times as much as
 * in a busy loop; so the usual way is here, and what is seldom (failures, streams, deadlines) stays in the Python classes
 * that derive from these. Methods that those classes, or a test, may replace are called by name. No clock is read but
 * time.monotonic, which may be a simulation's.
 */
#ifndef RINGCAST_ACTORS_H
#define RINGCAST_ACTORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <stdint.h>

/* Names that are looked up: NAME(state, append) is "append", interned. */
#define FOR_EACH_NAME(X)                                                                                               \
    X(append) X(pop) X(popleft) X(done) X(cancelled) X(set_result) X(set_exception) X(get_loop) X(reply) X(took)      \
    X(put) X(put_and_run) X(handle) X(finish) X(origin) X(cells) X(calls) X(monotonic) X(_enqueue) X(_admit)          \
    X(_refuses) X(_misused) X(_begin_beside) X(_enter) X(_leave) X(_ended_by) X(_waits) X(_was_cancelled) X(_send)    \
    X(_cannot_travel) X(_would_wait_for_itself) X(_undecodable) X(_take_other) X(_gone) X(try_send)      \
    X(schedule_flush) X(flush) X(ring) X(poll) X(handle_all) X(reader) X(blocked) X(read_link) X(_turn) X(call_soon)   \
    X(uses_links) X(in_flight) X(spin) X(poll_once) X(_poll_on) X(arm) X(disarm) X(_look_later)
#define NAME_AS_ENUM(name) NAME_##name,
enum { FOR_EACH_NAME(NAME_AS_ENUM) NUM_NAMES };
#define NAME(state, name) ((state)->names[NAME_##name])

typedef struct {
    PyTypeObject *incoming, *meter, *cell, *delivery, *origin, *node, *async_node;
    PyObject *empty_context, *current_context, *unpack_context; /* of call_context: EMPTY, CURRENT, unpack */
    PyObject *clock_module;                                     /* the dictionary of `time` */
    PyObject *decode_error;
    PyObject *unencodable, *undecodable; /* tuples of exceptions: what ends the call alone */
    PyObject *enter_task, *leave_task;   /* of asyncio, once an actor has a task */
    PyObject *context_keyword;           /* the names of the arguments of call_soon(function, context=...) */
    PyObject *names[NUM_NAMES];
} actors_state;

/* wire.Envelope */
enum envelope { CALL, CAST, REPLY, FAILURE, CANCEL, CREDIT, OPEN, ITEMS, MORE, GROUP };

enum { CALL_ID, METHOD, ARGS, KWARGS, ORIGIN, CONTEXT, NUM_OBJECTS };

typedef struct {
    PyObject_HEAD
    PyObject *objects[NUM_OBJECTS];
    Py_ssize_t size_bytes;
    double arrived_at, began_at;
    bool is_stream, quiet;
} IncomingObject;

enum { BUCKETS = 48 }; /* bucket b counts times below 2**b microseconds, and at or above half of that */

typedef struct {
    PyObject_HEAD
    Py_ssize_t peak_depth;
    unsigned long long handled, failed, expired;
    double taken_at, queue_time_s, handling_time_s;
    uint64_t queue_histogram[BUCKETS], handling_histogram[BUCKETS];
} MeterObject;

enum { POLL_BATCH = 128 }; /* messages of one inbox at once */
#define SPIN_S 50e-6 /* how long to poll for more before sleeping, while messages come that close together */

extern PyType_Spec incoming_spec, meter_spec, cell_spec, delivery_spec, origin_spec, node_spec, async_node_spec;

actors_state *actors_state_of(PyTypeObject *type);

PyObject *incoming_make(PyTypeObject *type, PyObject *const *objects, Py_ssize_t size_bytes, bool is_stream, bool quiet);
PyObject *incoming_call(PyObject *type, PyObject *const *args, size_t flags, PyObject *names);

void meter_took(MeterObject *self, double now, double then);
void meter_handled(MeterObject *self, double now, double then);

/* A message of that size left the mailbox of an actor: origin.took(...). */
int origin_took(actors_state *state, PyObject *origin, PyObject *actor_id, Py_ssize_t size_bytes, PyObject *capacity);

/* Delivery.has_settled: the message that was handled is over, the loop needs no turn for it. */
bool delivery_has_settled(actors_state *state, PyObject *delivery);
void delivery_unsettle(actors_state *state, PyObject *delivery);

/* Monotonic seconds; -1 with an exception. */
double clock_now(actors_state *state);

/* The exception that is set, which is cleared; it has its traceback. */
PyObject *take_exception(void);

/* object.name(...) with as many arguments as are not NULL: 0, or its truth; -1 with an exception. */
int call_quietly(PyObject *name, PyObject *object, PyObject *first, PyObject *second);
int ask_truth(PyObject *name, PyObject *object, PyObject *first, PyObject *second);

static inline bool is_set(PyObject *object)
{
    return object && object != Py_None;
}

#define FUNCTION(name, function, flags, doc) {name, (PyCFunction)(void (*)(void))(function), (flags), PyDoc_STR(doc)}

#endif
