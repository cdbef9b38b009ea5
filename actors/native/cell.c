/* CellCore: a mailbox from a message's arrival to its handler, and the end of a handler that succeeded. */
#include "actors.h"

#define SHOW_EVERY_S 0.01

/* The fields of cell.Handler and cell.Panel. */
enum { NUMBER, DESCRIPTOR, HANDLER_FUNCTION, IS_STREAM, IS_CONCURRENT, IS_IDEMPOTENT, BEGINS_AT_ONCE, HANDLER_FIELDS };
enum { ADVANCE, SHOW, PANEL_FIELDS };

/* What a cell holds: the first ones are given to the constructor, in this order. */
enum { ACTOR, ACTOR_ID, ACTOR_NAME, CAPACITY, QUEUE, METER, HANDLERS, PLAIN_CONTEXT, PANEL, NUM_GIVEN };
enum { CURRENT = NUM_GIVEN, ARRIVED, TIMER, TASK, TASK_CONTEXT, BEGUN, NUM_PARTS };

typedef struct {
    PyObject_HEAD
    actors_state *state;
    PyObject *parts[NUM_PARTS]; /* NULL or None: there is none */
    double shown_at;
    Py_ssize_t shown_depth;
    char stopping;
} CellObject;

/* ---- making and ending ---- */

static PyObject *cell_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    actors_state *state = actors_state_of(type);
    CellObject *self = state ? (CellObject *)type->tp_alloc(type, 0) : NULL;
    if (self)
        self->state = state;
    return (PyObject *)self;
}

static int cell_init(CellObject *self, PyObject *args, PyObject *keywords)
{
    static const char *const names[] = {"actor", "actor_id", "name", "capacity_bytes", "queue", "meter", "handlers",
                                        "plain_context", "panel"};
    PyTypeObject *wanted[NUM_GIVEN] = {[ACTOR_ID] = &PyLong_Type, [CAPACITY] = &PyLong_Type,
                                       [METER] = self->state->meter, [HANDLERS] = &PyDict_Type};
    if ((keywords && PyDict_GET_SIZE(keywords)) || PyTuple_GET_SIZE(args) != NUM_GIVEN) {
        PyErr_Format(PyExc_TypeError, "CellCore takes %d arguments, by position", NUM_GIVEN);
        return -1;
    }
    for (int i = 0; i < NUM_GIVEN; i++)
        if (wanted[i] && !PyObject_TypeCheck(PyTuple_GET_ITEM(args, i), wanted[i])) {
            PyErr_Format(PyExc_TypeError, "%s is a %s, not a %s", names[i], Py_TYPE(PyTuple_GET_ITEM(args, i))->tp_name,
                         wanted[i]->tp_name);
            return -1;
        }
    for (int i = 0; i < NUM_GIVEN; i++)
        Py_XSETREF(self->parts[i], Py_NewRef(PyTuple_GET_ITEM(args, i)));
    return 0;
}

static int cell_traverse(CellObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < NUM_PARTS; i++)
        Py_VISIT(self->parts[i]);
    return 0;
}

static int cell_clear(CellObject *self)
{
    for (int i = 0; i < NUM_PARTS; i++)
        Py_CLEAR(self->parts[i]);
    return 0;
}

static void cell_dealloc(CellObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    cell_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- help ---- */

static bool is_made(CellObject *self)
{
    if (self->parts[METER])
        return true;
    PyErr_SetString(PyExc_RuntimeError, "the cell's constructor has not been called");
    return false;
}

/* A message as an argument; NULL with an exception. */
static IncomingObject *message_of(CellObject *self, PyObject *given)
{
    if (!is_made(self))
        return NULL;
    if (Py_IS_TYPE(given, self->state->incoming))
        return (IncomingObject *)given;
    PyErr_Format(PyExc_TypeError, "a mailbox takes an Incoming, not a %s", Py_TYPE(given)->tp_name);
    return NULL;
}

/* Its handler, borrowed; NULL if there is none, with an exception if it cannot be looked up. */
static PyObject *handler_of(CellObject *self, IncomingObject *incoming)
{
    PyObject *handler = PyDict_GetItemWithError(self->parts[HANDLERS], incoming->objects[METHOD]);
    if (handler && !(PyTuple_Check(handler) && PyTuple_GET_SIZE(handler) == HANDLER_FIELDS)) {
        PyErr_SetString(PyExc_TypeError, "a cell's handlers are of the class Handler");
        return NULL;
    }
    return handler;
}

static bool handler_is(PyObject *handler, int field)
{
    return PyTuple_GET_ITEM(handler, field) == Py_True;
}

static bool has_context(CellObject *self, IncomingObject *incoming)
{
    return incoming->objects[CONTEXT] != self->state->empty_context;
}

/* Whether messages wait; -1 with an exception. */
static int has_queue(CellObject *self)
{
    Py_ssize_t depth = PyObject_Size(self->parts[QUEUE]);
    return depth < 0 ? -1 : depth > 0;
}

/* ---- figures on the board ---- */

/* One of the panel's functions, borrowed; NULL without an exception if there is no panel. */
static PyObject *panel_function(CellObject *self, int field)
{
    PyObject *panel = self->parts[PANEL];
    if (!is_set(panel))
        return NULL;
    if (PyTuple_Check(panel) && PyTuple_GET_SIZE(panel) == PANEL_FIELDS)
        return PyTuple_GET_ITEM(panel, field);
    PyErr_SetString(PyExc_TypeError, "a cell's panel is a Panel, or None");
    return NULL;
}

/* Show which handler runs, by its number, if anybody looks. */
static int advance(CellObject *self, PyObject *number)
{
    PyObject *function = panel_function(self, ADVANCE);
    PyObject *result = function ? PyObject_CallOneArg(function, number) : NULL;
    Py_XDECREF(result);
    return result || !PyErr_Occurred() ? 0 : -1;
}

/* Put depth, arrival of the oldest and totals on the board, and remember when. */
static int show_figures(CellObject *self, double now)
{
    PyObject *function = panel_function(self, SHOW), *queue = self->parts[QUEUE];
    MeterObject *meter = (MeterObject *)self->parts[METER];
    if (!function)
        return PyErr_Occurred() ? -1 : 0;
    Py_ssize_t depth = PyObject_Size(queue);
    if (depth < 0)
        return -1;
    long long oldest_us = 0;
    if (depth) {
        PyObject *oldest = PySequence_GetItem(queue, 0);
        IncomingObject *incoming = oldest ? message_of(self, oldest) : NULL;
        if (incoming)
            oldest_us = (long long)(incoming->arrived_at * 1e6);
        Py_XDECREF(oldest);
        if (!incoming)
            return -1;
    }
    self->shown_at = now;
    self->shown_depth = depth;
    PyObject *figures[] = {PyLong_FromSsize_t(depth), PyLong_FromLongLong(oldest_us),
                           PyLong_FromUnsignedLongLong(meter->handled),
                           PyLong_FromLongLong((long long)(meter->handling_time_s * 1e6))};
    PyObject *result = NULL;
    if (figures[0] && figures[1] && figures[2] && figures[3])
        result = PyObject_Vectorcall(function, figures, 4, NULL);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(figures[i]);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static int show_idle(CellObject *self)
{
    if (!is_set(self->parts[PANEL]))
        return 0;
    PyObject *none = PyLong_FromLong(0);
    int shown = none ? advance(self, none) : -1;
    Py_XDECREF(none);
    return shown < 0 ? -1 : show_figures(self, ((MeterObject *)self->parts[METER])->taken_at);
}

static PyObject *cell_show_idle(CellObject *self, PyObject *Py_UNUSED(ignored))
{
    return show_idle(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- into the mailbox ---- */

static PyObject *cell_enqueue(CellObject *self, PyObject *given)
{
    actors_state *state = self->state;
    IncomingObject *incoming = message_of(self, given);
    if (!incoming)
        return NULL;
    if (has_context(self, incoming)) {
        int waits = ask_truth(NAME(state, _would_wait_for_itself), (PyObject *)self, given, NULL);
        if (waits < 0)
            return NULL;
        if (waits)
            Py_RETURN_FALSE;
    }
    double now = clock_now(state);
    if ((now == -1 && PyErr_Occurred()) || call_quietly(NAME(state, append), self->parts[QUEUE], given, NULL) < 0)
        return NULL;
    incoming->arrived_at = now;
    Py_ssize_t depth = PyObject_Size(self->parts[QUEUE]);
    MeterObject *meter = (MeterObject *)self->parts[METER];
    if (depth > meter->peak_depth)
        meter->peak_depth = depth;
    Py_RETURN_TRUE;
}

/* Whether it runs beside the handlers, and one of them is in its way; -1 with an exception. */
static int begins_beside(CellObject *self, IncomingObject *incoming)
{
    if (!is_set(self->parts[TASK_CONTEXT]) || self->stopping)
        return 0;
    int is_busy = is_set(self->parts[CURRENT]) ? 1 : has_queue(self);
    if (is_busy <= 0)
        return is_busy;
    PyObject *handler = handler_of(self, incoming);
    if (!handler)
        return PyErr_Occurred() ? -1 : 0;
    return handler_is(handler, IS_CONCURRENT) || handler_is(handler, IS_STREAM);
}

/* Wake who waits for the next message. */
static int announce(CellObject *self)
{
    actors_state *state = self->state;
    if (!is_set(self->parts[ARRIVED]))
        return 0;
    PyObject *arrived = Py_NewRef(self->parts[ARRIVED]);
    int done = ask_truth(NAME(state, done), arrived, NULL, NULL);
    if (done == 0)
        done = call_quietly(NAME(state, set_result), arrived, Py_None, NULL);
    Py_DECREF(arrived);
    return done < 0 ? -1 : 0;
}

static PyObject *cell_put(CellObject *self, PyObject *given)
{
    IncomingObject *incoming = message_of(self, given);
    int beside = incoming ? begins_beside(self, incoming) : -1;
    if (beside < 0)
        return NULL;
    if (beside)
        return PyObject_CallMethodOneArg((PyObject *)self, NAME(self->state, _begin_beside), given);
    int enqueued = ask_truth(NAME(self->state, _enqueue), (PyObject *)self, given, NULL);
    if (enqueued < 0 || (enqueued && announce(self) < 0))
        return NULL;
    Py_RETURN_NONE;
}

/* ---- out of the mailbox ---- */

static PyObject *cell_admit(CellObject *self, PyObject *given)
{
    actors_state *state = self->state;
    IncomingObject *incoming = message_of(self, given);
    double now = incoming ? clock_now(state) : -1;
    if (now == -1 && PyErr_Occurred())
        return NULL;
    incoming->began_at = now;
    meter_took((MeterObject *)self->parts[METER], now, incoming->arrived_at);
    if (origin_took(state, incoming->objects[ORIGIN], self->parts[ACTOR_ID], incoming->size_bytes,
                    self->parts[CAPACITY]) < 0)
        return NULL;
    PyObject *handler = handler_of(self, incoming);
    if (!handler && PyErr_Occurred())
        return NULL;
    if (!handler || handler_is(handler, IS_STREAM) != incoming->is_stream) {
        int told = call_quietly(NAME(state, _misused), (PyObject *)self, given, handler ? handler : Py_None);
        return told < 0 ? NULL : Py_NewRef(Py_None);
    }
    Py_INCREF(handler);
    int refused = has_context(self, incoming) ? ask_truth(NAME(state, _refuses), (PyObject *)self, given, handler) : 0;
    if (refused)
        Py_SETREF(handler, refused < 0 ? NULL : Py_NewRef(Py_None));
    return handler;
}

/* The handler of a message that does not wait in the mailbox: None if it is not to be handled. */
static PyObject *cell_admit_at_once(CellObject *self, PyObject *given)
{
    int enqueued = ask_truth(NAME(self->state, _enqueue), (PyObject *)self, given, NULL);
    if (enqueued <= 0)
        return enqueued < 0 ? NULL : Py_NewRef(Py_None);
    if (call_quietly(NAME(self->state, pop), self->parts[QUEUE], NULL, NULL) < 0)
        return NULL;
    return PyObject_CallMethodOneArg((PyObject *)self, NAME(self->state, _admit), given);
}

/* Before a handler begins. */
static int show_begin(CellObject *self, IncomingObject *incoming, PyObject *handler)
{
    if (!is_set(self->parts[PANEL]))
        return 0;
    int queued = has_queue(self);
    if (queued < 0 || advance(self, PyTuple_GET_ITEM(handler, NUMBER)) < 0)
        return -1;
    if ((self->shown_depth && !queued) || incoming->began_at - self->shown_at > SHOW_EVERY_S)
        return show_figures(self, incoming->began_at);
    return 0;
}

static PyObject *cell_take(CellObject *self, PyObject *Py_UNUSED(ignored))
{
    actors_state *state = self->state;
    PyObject *given = is_made(self) ? PyObject_CallMethodNoArgs(self->parts[QUEUE], NAME(state, popleft)) : NULL;
    IncomingObject *incoming = given ? message_of(self, given) : NULL;
    PyObject *handler = incoming ? PyObject_CallMethodOneArg((PyObject *)self, NAME(state, _admit), given) : NULL;
    PyObject *taken = NULL;
    if (handler && (handler == Py_None || show_begin(self, incoming, handler) == 0))
        taken = PyTuple_Pack(2, given, handler);
    Py_XDECREF(handler);
    Py_XDECREF(given);
    return taken;
}

static int succeeded(CellObject *self, IncomingObject *incoming, PyObject *value)
{
    double now = clock_now(self->state);
    if (now == -1 && PyErr_Occurred())
        return -1;
    meter_handled((MeterObject *)self->parts[METER], now, incoming->began_at);
    if (incoming->objects[CALL_ID] == Py_None || incoming->quiet)
        return 0;
    PyObject *args[] = {incoming->objects[ORIGIN], self->parts[ACTOR_NAME], incoming->objects[CALL_ID], value};
    PyObject *result = PyObject_VectorcallMethod(NAME(self->state, reply), args, 4, NULL);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static PyObject *cell_succeeded(CellObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "_succeeded takes a message and a value");
    IncomingObject *incoming = message_of(self, args[0]);
    return incoming && succeeded(self, incoming, args[1]) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* ---- at once ---- */

/* The coroutine function(actor, *args, **kwargs). */
static PyObject *call_handler(CellObject *self, IncomingObject *incoming, PyObject *function)
{
    enum { FEW = 8 };
    PyObject *args = incoming->objects[ARGS], *kwargs = incoming->objects[KWARGS], *few[FEW + 1];
    if (PyList_CheckExact(args) && PyList_GET_SIZE(args) <= FEW && PyDict_CheckExact(kwargs) && !PyDict_GET_SIZE(kwargs)) {
        Py_ssize_t count = PyList_GET_SIZE(args);
        few[0] = self->parts[ACTOR];
        for (Py_ssize_t i = 0; i < count; i++)
            few[i + 1] = PyList_GET_ITEM(args, i);
        return PyObject_Vectorcall(function, few, (size_t)count + 1, NULL);
    }
    if (!PyDict_Check(kwargs))
        return PyErr_Format(PyExc_TypeError, "arguments by name are a dict, not a %s", Py_TYPE(kwargs)->tp_name);
    PyObject *whole = PyList_New(1), *result = NULL;
    if (whole) {
        PyList_SET_ITEM(whole, 0, Py_NewRef(self->parts[ACTOR]));
        if (PyList_SetSlice(whole, 1, 1, args) == 0)
            Py_SETREF(whole, PyList_AsTuple(whole));
        else
            Py_CLEAR(whole);
    }
    if (whole)
        result = PyObject_Call(function, whole, kwargs);
    Py_XDECREF(whole);
    return result;
}

/* In the task's context: be inside the handler of that message. */
static int enter(CellObject *self, PyObject *given, IncomingObject *incoming)
{
    PyObject *now = NULL;
    if (PyContextVar_Get(self->state->current_context, NULL, &now) < 0)
        return -1;
    bool is_plain = now == self->parts[PLAIN_CONTEXT] && !has_context(self, incoming);
    Py_XDECREF(now);
    if (!is_plain)
        return call_quietly(NAME(self->state, _enter), (PyObject *)self, given, NULL);
    Py_XSETREF(self->parts[CURRENT], Py_NewRef(given));
    return 0;
}

static int leave(CellObject *self)
{
    if (is_set(self->parts[TIMER]))
        return call_quietly(NAME(self->state, _leave), (PyObject *)self, NULL, NULL);
    Py_XSETREF(self->parts[CURRENT], Py_NewRef(Py_None));
    return 0;
}

static int in_task(CellObject *self, PyObject *loop, PyObject **function, const char *name)
{
    if (!*function) {
        PyObject *asyncio = PyImport_ImportModule("asyncio");
        *function = asyncio ? PyObject_GetAttrString(asyncio, name) : NULL;
        Py_XDECREF(asyncio);
        if (!*function)
            return -1;
    }
    PyObject *args[] = {loop, self->parts[TASK]};
    PyObject *result = PyObject_Vectorcall(*function, args, 2, NULL);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* Run the handler in the task's context as far as it goes without waiting, and tell the caller what came of it.
 * `failure` becomes the handler's exception, if it raised one. -1: even telling it has failed. */
static int run_in_context(CellObject *self, PyObject *given, PyObject *handler, PyObject **failure)
{
    actors_state *state = self->state;
    IncomingObject *incoming = (IncomingObject *)given;
    PyObject *context = Py_NewRef(self->parts[TASK_CONTEXT]), *value = NULL;
    int told = -1;
    if (PyContext_Enter(context) < 0) {
        Py_DECREF(context);
        return -1;
    }
    PyObject *running = NULL;
    PySendResult sent = PYGEN_ERROR;
    if (enter(self, given, incoming) == 0) {
        running = call_handler(self, incoming, PyTuple_GET_ITEM(handler, HANDLER_FUNCTION));
        if (running)
            sent = PyIter_Send(running, Py_None, &value);
        if (sent == PYGEN_ERROR) {
            *failure = take_exception();
            told = call_quietly(NAME(state, _ended_by), (PyObject *)self, given, *failure);
        }
    }
    if (PyContext_Exit(context) < 0)
        sent = PYGEN_ERROR;
    if (sent == PYGEN_RETURN) {
        told = succeeded(self, incoming, value);
    } else if (sent == PYGEN_NEXT) {
        PyObject *args[] = {(PyObject *)self, given, running, value};
        PyObject *result = PyObject_VectorcallMethod(NAME(state, _waits), args, 4, NULL);
        told = result ? 0 : -1;
        Py_XDECREF(result);
    }
    Py_XDECREF(value);
    Py_XDECREF(running);
    Py_DECREF(context);
    return told;
}

/* The same as the task that serves the mailbox, though it has no turn; whether the handler is over, -1 with an
 * exception. `arrived` is what that task waits for. */
static int run_at_once(CellObject *self, PyObject *given, PyObject *handler, PyObject *arrived)
{
    actors_state *state = self->state;
    PyObject *failure = NULL, *loop = PyObject_CallMethodNoArgs(arrived, NAME(state, get_loop));
    int ok = loop ? advance(self, PyTuple_GET_ITEM(handler, NUMBER)) : -1;
    if (ok == 0)
        ok = in_task(self, loop, &state->enter_task, "_enter_task"); /* the loop runs none: we are in a callback */
    if (ok < 0) {
        Py_XDECREF(loop);
        return -1;
    }
    int told = run_in_context(self, given, handler, &failure);
    if (told < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        /* Not even the failure could be told: the task's end, as if it had run the handler. */
        PyObject *error = take_exception();
        told = ask_truth(NAME(state, done), arrived, NULL, NULL);
        if (told == 0)
            told = call_quietly(NAME(state, set_exception), arrived, error, NULL);
        Py_DECREF(error);
    }
    PyObject *error = told < 0 ? take_exception() : NULL;
    ok = in_task(self, loop, &state->leave_task, "_leave_task");
    Py_DECREF(loop);
    if (ok == 0 && !is_set(self->parts[BEGUN]))
        ok = leave(self);
    int over = 0;
    if (ok == 0 && !error && !is_set(self->parts[BEGUN])) {
        over = ask_truth(NAME(state, cancelled), arrived, NULL, NULL);
        if (over > 0)
            over = call_quietly(NAME(state, _was_cancelled), (PyObject *)self, failure ? failure : Py_None, NULL);
        int queued = over < 0 ? -1 : has_queue(self);
        if (queued < 0 || (!queued && show_idle(self) < 0))
            over = -1;
        else
            over = ask_truth(NAME(state, done), arrived, NULL, NULL);
        over = over < 0 ? -1 : !over;
    }
    Py_XDECREF(failure);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return ok < 0 || PyErr_Occurred() ? -1 : over;
}

static PyObject *cell_put_and_run(CellObject *self, PyObject *given)
{
    actors_state *state = self->state;
    IncomingObject *incoming = message_of(self, given);
    PyObject *handler = incoming ? handler_of(self, incoming) : NULL;
    if (!incoming || PyErr_Occurred())
        return NULL;
    int waits = !handler || !handler_is(handler, BEGINS_AT_ONCE) || incoming->is_stream || !is_set(self->parts[ARRIVED]) ||
                !is_set(self->parts[TASK]) || !is_set(self->parts[TASK_CONTEXT]);
    if (!waits)
        waits = has_queue(self);
    PyObject *arrived = waits ? NULL : Py_NewRef(self->parts[ARRIVED]);
    if (!waits)
        waits = ask_truth(NAME(state, done), arrived, NULL, NULL);
    int over = waits < 0 ? -1 : 0;
    if (waits > 0)
        over = call_quietly(NAME(state, put), (PyObject *)self, given, NULL);
    else if (waits == 0) {
        PyObject *admitted = cell_admit_at_once(self, given);
        over = !admitted ? -1 : admitted == Py_None ? 1 : run_at_once(self, given, admitted, arrived);
        Py_XDECREF(admitted);
    }
    Py_XDECREF(arrived);
    return over < 0 ? NULL : PyBool_FromLong(over);
}

static PyMethodDef methods[] = {
    FUNCTION("put", cell_put, METH_O, "put(incoming)\n\nAdd a message to the mailbox."),
    FUNCTION("put_and_run", cell_put_and_run, METH_O,
             "put_and_run(incoming) -> bool\n\nThe same from a callback of the actor's loop, where an idle actor may handle "
             "it at once: True if it has."),
    FUNCTION("_enqueue", cell_enqueue, METH_O, "_enqueue(incoming) -> bool\n\nFalse: it was answered and is no message."),
    FUNCTION("_admit", cell_admit, METH_O,
             "_admit(incoming) -> Handler | None\n\nThe handler of a message that has left the mailbox; see _take."),
    FUNCTION("_admit_at_once", cell_admit_at_once, METH_O,
             "_admit_at_once(incoming) -> Handler | None\n\nThe handler of one that does not wait in it; see _take."),
    FUNCTION("_take", cell_take, METH_NOARGS,
             "_take() -> tuple[Incoming, Handler | None]\n\nThe next message and its handler; None if it is not to be handled "
             "(the caller has been told)."),
    FUNCTION("_succeeded", cell_succeeded, METH_FASTCALL, "_succeeded(incoming, value)\n\nA handler has returned."),
    FUNCTION("_show_idle", cell_show_idle, METH_NOARGS, "_show_idle()\n\nNo handler runs, and no message waits."),
    {NULL, NULL, 0, NULL},
};

#define PART(name, number, flags) {name, T_OBJECT, offsetof(CellObject, parts[number]), flags, NULL}

static PyMemberDef members[] = {
    PART("actor", ACTOR, READONLY),
    PART("actor_id", ACTOR_ID, READONLY),
    PART("name", ACTOR_NAME, READONLY),
    PART("capacity_bytes", CAPACITY, READONLY),
    PART("queue", QUEUE, READONLY),
    PART("meter", METER, READONLY),
    PART("_handlers", HANDLERS, READONLY),
    PART("_plain_context", PLAIN_CONTEXT, READONLY),
    PART("_panel", PANEL, 0),
    PART("_current", CURRENT, 0),
    PART("_arrived", ARRIVED, 0),
    PART("_timer", TIMER, 0),
    PART("_task", TASK, 0),
    PART("_context", TASK_CONTEXT, 0),
    PART("_begun", BEGUN, 0),
    {"_stopping", T_BOOL, offsetof(CellObject, stopping), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, PyDoc_STR("CellCore(actor, actor_id, name, capacity_bytes, queue, meter, handlers, plain_context, panel)\n\n"
                          "The native part of ringcast.actors.cell.Cell.")},
    {Py_tp_new, cell_new},
    {Py_tp_init, cell_init},
    {Py_tp_traverse, cell_traverse},
    {Py_tp_clear, cell_clear},
    {Py_tp_dealloc, cell_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec cell_spec = {"ringcast.actors._native.CellCore", sizeof(CellObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
