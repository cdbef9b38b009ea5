/* CellCore: a mailbox. What arrives, what is taken out, and the end of a handler that succeeded. */
#include "actors.h"

#define SHOW_EVERY_S 0.01

/* The fields of cell.Panel. */
enum { ADVANCE, SHOW, PANEL_FIELDS };

/* ---- making and ending ---- */

static PyObject *cell_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    actors_state *state = actors_state_of(type);
    CellObject *self = state ? (CellObject *)allocate(type) : NULL;
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
    for (int i = 0; i < NUM_CELL_PARTS; i++)
        Py_VISIT(self->parts[i]);
    return 0;
}

static int cell_clear(CellObject *self)
{
    for (int i = 0; i < NUM_CELL_PARTS; i++)
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

IncomingObject *message_of(CellObject *self, PyObject *given)
{
    if (!is_made(self))
        return NULL;
    if (Py_IS_TYPE(given, self->state->incoming))
        return (IncomingObject *)given;
    PyErr_Format(PyExc_TypeError, "a mailbox takes an Incoming, not a %s", Py_TYPE(given)->tp_name);
    return NULL;
}

static bool is_handler(PyObject *object)
{
    if (PyTuple_Check(object) && PyTuple_GET_SIZE(object) == HANDLER_FIELDS)
        return true;
    PyErr_Format(PyExc_TypeError, "a handler of a cell is a Handler, not a %s", Py_TYPE(object)->tp_name);
    return false;
}

PyObject *handler_of(CellObject *self, IncomingObject *incoming)
{
    PyObject *handler = PyDict_GetItemWithError(self->parts[HANDLERS], incoming->objects[METHOD]);
    return handler && is_handler(handler) ? handler : NULL;
}

bool handler_is(PyObject *handler, int field)
{
    return PyTuple_GET_ITEM(handler, field) == Py_True;
}

bool has_context(CellObject *self, IncomingObject *incoming)
{
    return incoming->objects[CONTEXT] != self->state->empty_context;
}

int cell_has_queue(CellObject *self)
{
    Py_ssize_t depth = PyObject_Size(self->parts[QUEUE]);
    return depth < 0 ? -1 : depth > 0;
}

/* ---- figures on the board ---- */

/* One of the panel's functions; NULL without an exception if there is no panel. */
static PyObject *panel_function(CellObject *self, int field)
{
    PyObject *panel = self->parts[PANEL];
    if (!is_set(panel))
        return NULL;
    if (PyTuple_Check(panel) && PyTuple_GET_SIZE(panel) == PANEL_FIELDS)
        return Py_NewRef(PyTuple_GET_ITEM(panel, field));
    PyErr_SetString(PyExc_TypeError, "a cell's panel is a Panel, or None");
    return NULL;
}

int cell_advance(CellObject *self, PyObject *number)
{
    PyObject *function = panel_function(self, ADVANCE);
    PyObject *result = function ? PyObject_CallOneArg(function, number) : NULL;
    Py_XDECREF(function);
    Py_XDECREF(result);
    return result || !PyErr_Occurred() ? 0 : -1;
}

/* When the oldest message arrived, in monotonic microseconds, 0 if there is none; -1 with an exception. */
static long long oldest_us(CellObject *self)
{
    PyObject *oldest = PySequence_GetItem(self->parts[QUEUE], 0);
    IncomingObject *incoming = oldest ? message_of(self, oldest) : NULL;
    long long arrived_us = incoming ? (long long)(incoming->arrived_at * 1e6) : -1;
    Py_XDECREF(oldest);
    return arrived_us;
}

/* Put depth, arrival of the oldest and totals on the board, and remember when. */
static int show_figures(CellObject *self, double now)
{
    MeterObject *meter = (MeterObject *)self->parts[METER];
    Py_ssize_t depth = PyObject_Size(self->parts[QUEUE]);
    long long arrived_us = depth > 0 ? oldest_us(self) : depth;
    if (arrived_us < 0)
        return -1;
    PyObject *function = panel_function(self, SHOW);
    if (!function)
        return PyErr_Occurred() ? -1 : 0;
    self->shown_at = now;
    self->shown_depth = depth;
    PyObject *figures[] = {PyLong_FromSsize_t(depth), PyLong_FromLongLong(arrived_us),
                           PyLong_FromUnsignedLongLong(meter->handled),
                           PyLong_FromLongLong((long long)(meter->handling_time_s * 1e6))};
    PyObject *result = NULL;
    if (figures[0] && figures[1] && figures[2] && figures[3])
        result = PyObject_Vectorcall(function, figures, 4, NULL);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(figures[i]);
    Py_DECREF(function);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

int cell_show_idle(CellObject *self)
{
    if (!is_made(self))
        return -1;
    if (!is_set(self->parts[PANEL]))
        return 0;
    PyObject *none = PyLong_FromLong(0);
    int shown = none ? cell_advance(self, none) : -1;
    Py_XDECREF(none);
    return shown < 0 ? -1 : show_figures(self, ((MeterObject *)self->parts[METER])->taken_at);
}

static PyObject *show_idle(CellObject *self, PyObject *Py_UNUSED(ignored))
{
    return cell_show_idle(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- into the mailbox ---- */

static PyObject *cell_enqueue(CellObject *self, PyObject *given)
{
    actors_state *state = self->state;
    IncomingObject *incoming = message_of(self, given);
    if (!incoming)
        return NULL;
    if (has_context(self, incoming)) {
        int is_cycle = ask_truth(NAME(state, _would_wait_for_itself), (PyObject *)self, given, NULL);
        if (is_cycle)
            return is_cycle < 0 ? NULL : Py_NewRef(Py_False);
    }
    double now = clock_now(state);
    if (now == -1 && PyErr_Occurred())
        return NULL;
    incoming->arrived_at = now;
    if (call_quietly(NAME(state, append), self->parts[QUEUE], given, NULL) < 0)
        return NULL;
    Py_ssize_t depth = PyObject_Size(self->parts[QUEUE]);
    MeterObject *meter = (MeterObject *)self->parts[METER];
    if (depth > meter->peak_depth)
        meter->peak_depth = depth;
    Py_RETURN_TRUE;
}

/* Whether it runs beside the handlers, and one of them is in its way, or only so many of it may run; -1 with an
 * exception. */
static int begins_beside(CellObject *self, IncomingObject *incoming)
{
    if (!is_set(self->parts[TASK_CONTEXT]) || self->stopping)
        return 0;
    PyObject *handler = handler_of(self, incoming);
    if (!handler)
        return PyErr_Occurred() ? -1 : 0;
    if (is_set(PyTuple_GET_ITEM(handler, LIMIT)))
        return 1;
    int is_busy = is_set(self->parts[RUNNING]) ? 1 : cell_has_queue(self);
    if (is_busy <= 0)
        return is_busy;
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
    PyObject *handler = Py_XNewRef(handler_of(self, incoming));
    if (!handler && PyErr_Occurred())
        return NULL;
    int refused = 0;
    if (!handler || handler_is(handler, IS_STREAM) != incoming->is_stream)
        refused = call_quietly(NAME(state, _misused), (PyObject *)self, given, handler ? handler : Py_None) ? -1 : 1;
    else if (has_context(self, incoming))
        refused = ask_truth(NAME(state, _refuses), (PyObject *)self, given, handler);
    if (!refused)
        return handler;
    Py_XDECREF(handler);
    return refused < 0 ? NULL : Py_NewRef(Py_None);
}

/* What _admit, by whatever class, says of a message: its handler, or None. */
static PyObject *admitted(CellObject *self, PyObject *given)
{
    PyObject *handler = PyObject_CallMethodOneArg((PyObject *)self, NAME(self->state, _admit), given);
    if (handler && handler != Py_None && !is_handler(handler))
        Py_CLEAR(handler);
    return handler;
}

PyObject *cell_admit_at_once(CellObject *self, PyObject *given)
{
    int enqueued = ask_truth(NAME(self->state, _enqueue), (PyObject *)self, given, NULL);
    if (enqueued <= 0)
        return enqueued < 0 ? NULL : Py_NewRef(Py_None);
    if (call_quietly(NAME(self->state, pop), self->parts[QUEUE], NULL, NULL) < 0)
        return NULL;
    return admitted(self, given);
}

/* Before a handler begins. */
static int show_begin(CellObject *self, IncomingObject *incoming, PyObject *handler)
{
    if (!is_set(self->parts[PANEL]))
        return 0;
    int queued = cell_has_queue(self);
    if (queued < 0 || cell_advance(self, PyTuple_GET_ITEM(handler, NUMBER)) < 0)
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
    PyObject *handler = incoming ? admitted(self, given) : NULL;
    PyObject *taken = NULL;
    if (handler && (handler == Py_None || show_begin(self, incoming, handler) == 0))
        taken = PyTuple_Pack(2, given, handler);
    Py_XDECREF(handler);
    Py_XDECREF(given);
    return taken;
}

/* ---- its handlers ---- */

static int open_scope(CellObject *self, PyObject *incoming, PyObject *context)
{
    actors_state *state = self->state;
    PyObject *scope = scope_make(state, context), *token = NULL;
    if (scope)
        token = PyContextVar_Set(state->scope_variable, scope);
    if (!token) {
        Py_XDECREF(scope);
        return -1;
    }
    Py_DECREF(token);
    Py_XSETREF(self->parts[SCOPE], scope);
    Py_XSETREF(self->parts[RUNNING], Py_NewRef(incoming));
    return 0;
}

int cell_begin(CellObject *self, PyObject *given)
{
    if (has_context(self, (IncomingObject *)given))
        return call_quietly(NAME(self->state, _enter), (PyObject *)self, given, NULL);
    return open_scope(self, given, self->parts[PLAIN_CONTEXT]);
}

static PyObject *begin(CellObject *self, PyObject *given)
{
    return !message_of(self, given) || cell_begin(self, given) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *open_for(CellObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "_open takes a message and a context");
    return !message_of(self, args[0]) || open_scope(self, args[0], args[1]) < 0 ? NULL : Py_NewRef(Py_None);
}

void cell_close(CellObject *self)
{
    if (self->parts[SCOPE])
        scope_close(self->parts[SCOPE]);
    Py_CLEAR(self->parts[SCOPE]);
    Py_CLEAR(self->parts[RUNNING]);
}

static PyObject *close_it(CellObject *self, PyObject *Py_UNUSED(ignored))
{
    cell_close(self);
    Py_RETURN_NONE;
}

int cell_succeeded(CellObject *self, IncomingObject *incoming, PyObject *value)
{
    double now = clock_now(self->state);
    if (now == -1 && PyErr_Occurred())
        return -1;
    meter_handled((MeterObject *)self->parts[METER], now, incoming->began_at);
    if (incoming->objects[CALL_ID] == Py_None || incoming->quiet)
        return 0;
    PyObject *args[] = {incoming->objects[ORIGIN], self->parts[ACTOR_NAME], incoming->objects[CALL_ID], value};
    return call_with(NAME(self->state, reply), args, 4);
}

static PyObject *succeeded(CellObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "_succeeded takes a message and a value");
    IncomingObject *incoming = message_of(self, args[0]);
    return incoming && cell_succeeded(self, incoming, args[1]) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* Whether the task that ran the handler has nothing else to settle; -1 with an exception. */
static int is_settled(CellObject *self)
{
    if (is_set(self->parts[TIMER]) || self->stopping || !is_set(self->parts[TASK]))
        return 0;
    int is_cancelled = ask_truth(NAME(self->state, cancelling), self->parts[TASK], NULL, NULL);
    return is_cancelled < 0 ? -1 : !is_cancelled;
}

static PyObject *finish(CellObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "_finish takes a message and a value");
    IncomingObject *incoming = message_of(self, args[0]);
    int settled = incoming && cell_succeeded(self, incoming, args[1]) == 0 ? is_settled(self) : -1;
    if (settled > 0)
        cell_close(self);
    return settled < 0 ? NULL : PyBool_FromLong(settled);
}

static PyMethodDef methods[] = {
    FUNCTION("put", cell_put, METH_O, "put(incoming)\n\nAdd a message to the mailbox."),
    FUNCTION("put_and_run", cell_put_and_run, METH_O,
             "put_and_run(incoming) -> bool\n\nThe same from a callback of the actor's loop, where an idle actor may "
             "handle it at once: True if it has."),
    FUNCTION("_enqueue", cell_enqueue, METH_O,
             "_enqueue(incoming) -> bool\n\nFalse: it was answered and is no message."),
    FUNCTION("_admit", cell_admit, METH_O,
             "_admit(incoming) -> Handler | None\n\nThe handler of a message that has left the mailbox; see _take."),
    FUNCTION("_admit_at_once", cell_admit_at_once, METH_O,
             "_admit_at_once(incoming) -> Handler | None\n\nThe handler of one that does not wait in it; see _take."),
    FUNCTION("_take", cell_take, METH_NOARGS,
             "_take() -> tuple[Incoming, Handler | None]\n\nThe next message and its handler; None if it is not to be "
             "handled (the caller has been told)."),
    FUNCTION("_begin", begin, METH_O, "_begin(incoming)\n\nIts handler begins: _enter, or the same for no context."),
    FUNCTION("_finish", finish, METH_FASTCALL,
             "_finish(incoming, value) -> bool\n\n_succeeded, and _close if nothing else is left to settle: True."),
    FUNCTION("_open", open_for, METH_FASTCALL,
             "_open(incoming, context)\n\nA handler begins: from here on, in this task, calls are made in that "
             "context."),
    FUNCTION("_close", close_it, METH_NOARGS,
             "_close()\n\nIt has ended, and with it that context, also for tasks that it has made."),
    FUNCTION("_succeeded", succeeded, METH_FASTCALL, "_succeeded(incoming, value)\n\nA handler has returned."),
    FUNCTION("_show_idle", show_idle, METH_NOARGS, "_show_idle()\n\nNo handler runs, and no message waits."),
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
    PART("_current", RUNNING, READONLY),
    PART("_arrived", ARRIVED, 0),
    PART("_timer", TIMER, 0),
    PART("_task", TASK, 0),
    PART("_context", TASK_CONTEXT, 0),
    PART("_begun", BEGUN, 0),
    {"_stopping", T_BOOL, offsetof(CellObject, stopping), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, PyDoc_STR("CellCore(actor, actor_id, name, capacity_bytes, queue, meter, handlers, plain_context, "
                          "panel)\n\nThe native part of ringcast.actors.cell.Cell.")},
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
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                         slots};
