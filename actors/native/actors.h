/* What the actors' native files share: the way of a message through a node and a mailbox, as far as every one takes it.
 *
 * A process that was woken for one message runs on cold caches, where each step in Python costs several times as much
 * as in a busy loop; so the usual way is here, and what is seldom (failures, streams, deadlines) stays in the Python
 * classes that derive from these types. What those classes supply or may replace, and what an observer wraps, is called
 * by its name, see FOR_EACH_NAME; the other methods call each other directly. No clock is read but time.monotonic,
 * which may be a simulation's.
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
    X(append) X(pop) X(popleft) X(done) X(cancelled) X(cancelling) X(set_result) X(set_exception) X(get_loop) X(reply) X(took)      \
    X(put) X(put_and_run) X(handle) X(finish) X(origin) X(cells) X(calls) X(monotonic) X(_enqueue) X(_admit)          \
    X(_refuses) X(_misused) X(_begin_beside) X(_enter) X(_leave) X(_ended_by) X(_waits) X(_was_cancelled) X(_send)    \
    X(_cannot_travel) X(_would_wait_for_itself) X(_undecodable) X(_take_other) X(_gone) X(try_send)                   \
    X(schedule_flush) X(flush) X(ring) X(poll) X(handle_all) X(reader) X(blocked) X(read_link) X(_turn) X(call_soon)  \
    X(context) X(uses_links) X(in_flight) X(spin) X(poll_once) X(_poll_on) X(arm) X(disarm) X(_look_later)
#define NAME_AS_ENUM(name) NAME_##name,
enum { FOR_EACH_NAME(NAME_AS_ENUM) NUM_NAMES };
#define NAME(state, name) ((state)->names[NAME_##name])

typedef struct {
    PyTypeObject *incoming, *meter, *scope, *cell, *delivery, *origin, *node, *async_node;
    PyObject *empty_context, *unpack_context; /* of call_context: EMPTY, unpack */
    PyObject *scope_variable;                 /* the context variable that holds the Scope of the code that runs */
    PyObject *clock_module;                                     /* the dictionary of `time` */
    PyObject *decode_error;
    PyObject *unencodable, *undecodable; /* tuples of exceptions: what ends the call alone */
    PyObject *enter_task, *leave_task;   /* of asyncio, once an actor has a task */
    PyObject *context_keyword;           /* the names of the arguments of call_soon(function, context=...) */
    PyObject *names[NUM_NAMES];
} actors_state;

/* wire.Envelope */
enum envelope { CALL, CAST, REPLY, FAILURE, CANCEL, CREDIT, OPEN, ITEMS, MORE, GROUP };

/* ---- mailbox.c: a message in a mailbox, and the mailbox's figures ---- */

enum { CALL_ID, METHOD, ARGS, KWARGS, ORIGIN, CONTEXT, NUM_OBJECTS };

typedef struct {
    PyObject_HEAD
    PyObject *objects[NUM_OBJECTS]; /* none is ever NULL */
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

PyObject *incoming_make(PyTypeObject *type, PyObject *const *objects, Py_ssize_t size_bytes, bool is_stream,
                        bool quiet);
PyObject *incoming_call(PyObject *type, PyObject *const *args, size_t flags, PyObject *names);
void meter_took(MeterObject *self, double now, double then);
void meter_handled(MeterObject *self, double now, double then);

/* ---- scope.c: how long the context of a call counts ---- */

typedef struct {
    PyObject_HEAD
    PyObject *context; /* NULL once the call has ended; it refers to numbers and texts only */
} ScopeObject;

PyObject *scope_make(actors_state *state, PyObject *context);
void scope_close(PyObject *scope);
/* The context of the code that runs, as a new reference. */
PyObject *context_now(actors_state *state);

/* ---- cell.c and at_once.c: from a message's arrival to the end of its handler ---- */

/* The fields of cell.Handler. */
enum { NUMBER, DESCRIPTOR, HANDLER_FUNCTION, IS_STREAM, IS_CONCURRENT, IS_IDEMPOTENT, BEGINS_AT_ONCE, LIMIT, HANDLER_FIELDS };

/* What a cell holds: the first ones are given to the constructor, in this order. */
enum { ACTOR, ACTOR_ID, ACTOR_NAME, CAPACITY, QUEUE, METER, HANDLERS, PLAIN_CONTEXT, PANEL, NUM_GIVEN };
enum { RUNNING = NUM_GIVEN, SCOPE, ARRIVED, TIMER, TASK, TASK_CONTEXT, BEGUN, NUM_CELL_PARTS };

typedef struct {
    PyObject_HEAD
    actors_state *state;
    PyObject *parts[NUM_CELL_PARTS]; /* NULL or None: there is none; the given ones are never NULL once it is made */
    double shown_at;
    Py_ssize_t shown_depth;
    char stopping;
} CellObject;

/* An argument that is to be a message; NULL with an exception, also if the cell is not made. */
IncomingObject *message_of(CellObject *self, PyObject *given);
/* A message's handler, borrowed; NULL if there is none, with an exception if it cannot be looked up. */
PyObject *handler_of(CellObject *self, IncomingObject *incoming);
bool handler_is(PyObject *handler, int field);
/* Whether messages wait; -1 with an exception. */
int cell_has_queue(CellObject *self);
/* Whether it came with a context that is not the empty one. */
bool has_context(CellObject *self, IncomingObject *incoming);
/* Show on the board, if anybody looks, which handler runs, and that none does: 0, or -1 with an exception. */
int cell_advance(CellObject *self, PyObject *number);
int cell_show_idle(CellObject *self);
/* The handler of a message that does not wait in the mailbox, as a new reference; None if it is not to be handled. */
PyObject *cell_admit_at_once(CellObject *self, PyObject *given);
/* A message's handler begins: 0, or -1 with an exception; and it has ended. From here to there calls are made in its
 * context. */
int cell_begin(CellObject *self, PyObject *given);
void cell_close(CellObject *self);
/* A handler has returned: 0, or -1 with an exception. */
int cell_succeeded(CellObject *self, IncomingObject *incoming, PyObject *value);
PyObject *cell_put_and_run(CellObject *self, PyObject *given);

/* ---- origin.c and delivery.c ---- */

/* A message of that size left the mailbox of an actor: origin.took(...), or the same directly. */
int origin_took(actors_state *state, PyObject *origin, PyObject *actor_id, Py_ssize_t size_bytes, PyObject *capacity);

/* Whether the message that was handled last is over, so that the loop needs no turn for it. */
bool delivery_has_settled(actors_state *state, PyObject *delivery);
void delivery_unsettle(actors_state *state, PyObject *delivery);

/* ---- node.c and async_node.c ---- */

/* What a node holds, as the classes in Python have set it: node_hold asks whether they have. */
enum { BELL, OUTBOX, BACKLOG, INBOXES, READERS, CELLS, CALLS, DELIVERY, LOOP, TURN_CONTEXT, NUM_NODE_PARTS };

typedef struct {
    PyObject_HEAD
    actors_state *state;
    PyObject *parts[NUM_NODE_PARTS];
    unsigned long long backlog_mask;
    Py_ssize_t unflushed; /* messages sent since the last flush */
    Py_ssize_t asked;     /* calls and streams that left since the last turn */
    /* Of AsyncNode: */
    Py_ssize_t cores;
    char running, turn_scheduled;
    char armed;             /* the bell rings for anything new; else look first */
    char looks_for_answers; /* polls on for them */
} NodeObject;

PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *keywords);
int node_traverse(NodeObject *self, visitproc visit, void *arg);
int node_clear(NodeObject *self);
void node_dealloc(NodeObject *self);

/* One of its parts, as a new reference: what is called may replace it. NULL with AttributeError if it is not set. */
PyObject *node_hold(NodeObject *self, int number);
/* How much of a part there is; -1 with an exception. */
Py_ssize_t node_size_of(NodeObject *self, int number);
/* part.name: a new reference, or its truth; NULL or -1 with an exception. */
PyObject *node_get(NodeObject *self, int number, PyObject *name);
int node_get_truth(NodeObject *self, int number, PyObject *name);
/* self.name(), whose result is dropped: 0, or -1 with an exception. */
int node_call(NodeObject *self, PyObject *name);
/* For waits: a tuple of our ring, if messages wait for room in it. */
PyObject *node_space_wanted(NodeObject *self, void *closure);

#define NODE_PART(name, number) {name, T_OBJECT_EX, offsetof(NodeObject, parts[number]), 0, NULL}

enum { POLL_BATCH = 128 }; /* messages of one inbox at once */
#define SPIN_S 50e-6 /* how long to poll for more before sleeping, while messages come that close together */

/* ---- module.c ---- */

extern PyType_Spec incoming_spec, meter_spec, scope_spec, cell_spec, delivery_spec, origin_spec, node_spec, async_node_spec;

/* NULL with an exception if the module is gone. */
actors_state *actors_state_of(PyTypeObject *type);
/* A new object; NULL with TypeError if its class is abstract. */
PyObject *allocate(PyTypeObject *type);

/* Monotonic seconds; -1 with an exception. */
double clock_now(actors_state *state);

/* The exception that is set, which is cleared; it has its traceback. */
PyObject *take_exception(void);
/* Set it again; it is stolen. */
void set_exception(PyObject *error);

/* args[0].name(args[1], ...), whose result is dropped: 0, or -1 with an exception. */
int call_with(PyObject *name, PyObject *const *args, size_t count);
/* object.name(...) with as many arguments as are not NULL: 0, or its truth; -1 with an exception. */
int call_quietly(PyObject *name, PyObject *object, PyObject *first, PyObject *second);
int ask_truth(PyObject *name, PyObject *object, PyObject *first, PyObject *second);
/* As call_quietly, for three at most, and as in `except`: while that error is handled. */
int call_handling(PyObject *error, PyObject *name, PyObject *object, PyObject *first, PyObject *second,
                  PyObject *third);

static inline bool is_set(PyObject *object)
{
    return object && object != Py_None;
}

#define FUNCTION(name, function, flags, doc) {name, (PyCFunction)(void (*)(void))(function), (flags), PyDoc_STR(doc)}

#endif
