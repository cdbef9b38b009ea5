/* A message to an idle actor, handled in the callback that brought it: in the context of the task that serves the
 * mailbox, and as that task, though it has no turn. If the handler waits, the task goes on with it (async_cell.Begun). */
#include "actors.h"

/* The coroutine function(actor, *args, **kwargs). */
static PyObject *call_handler(CellObject *self, IncomingObject *incoming, PyObject *function)
{
    enum { FEW = 8 };
    PyObject *args = incoming->objects[ARGS], *kwargs = incoming->objects[KWARGS], *few[FEW + 1];
    if (!PyDict_Check(kwargs))
        return PyErr_Format(PyExc_TypeError, "arguments by name are a dict, not a %s", Py_TYPE(kwargs)->tp_name);
    if (PyList_CheckExact(args) && PyList_GET_SIZE(args) <= FEW && !PyDict_GET_SIZE(kwargs)) {
        Py_ssize_t count = PyList_GET_SIZE(args);
        few[0] = self->parts[ACTOR];
        for (Py_ssize_t i = 0; i < count; i++)
            few[i + 1] = PyList_GET_ITEM(args, i);
        return PyObject_Vectorcall(function, few, (size_t)count + 1, NULL); /* a coroutine keeps its arguments */
    }
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

static int leave(CellObject *self)
{
    if (is_set(self->parts[TIMER]))
        return call_quietly(NAME(self->state, _leave), (PyObject *)self, NULL, NULL);
    cell_close(self);
    return 0;
}

/* asyncio's _enter_task(loop, task) or _leave_task, which is imported when it is first needed. */
static int change_task(PyObject *loop, PyObject *task, PyObject **function, const char *name)
{
    if (!*function) {
        PyObject *asyncio = PyImport_ImportModule("asyncio");
        *function = asyncio ? PyObject_GetAttrString(asyncio, name) : NULL;
        Py_XDECREF(asyncio);
        if (!*function)
            return -1;
    }
    PyObject *args[] = {loop, task};
    PyObject *result = PyObject_Vectorcall(*function, args, 2, NULL);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* Run the handler in the task's context as far as it goes without waiting, and tell the caller what came of it.
 * `failure` becomes the handler's exception, if it raised one. -1 with an exception: it could not begin, or not even
 * its failure could be told. */
static int run_in_context(CellObject *self, PyObject *given, PyObject *handler, PyObject **failure)
{
    actors_state *state = self->state;
    IncomingObject *incoming = (IncomingObject *)given;
    PyObject *context = Py_NewRef(self->parts[TASK_CONTEXT]), *running = NULL, *value = NULL;
    PySendResult sent = PYGEN_ERROR;
    int told = -1;
    if (PyContext_Enter(context) < 0) {
        Py_DECREF(context);
        return -1;
    }
    if (cell_begin(self, given) == 0) {
        running = call_handler(self, incoming, PyTuple_GET_ITEM(handler, HANDLER_FUNCTION));
        if (running)
            sent = PyIter_Send(running, Py_None, &value);
        if (sent == PYGEN_ERROR) {
            *failure = take_exception();
            told = call_handling(*failure, NAME(state, _ended_by), (PyObject *)self, given, *failure, NULL);
        }
    }
    if (PyContext_Exit(context) < 0)
        told = -1;
    else if (sent == PYGEN_RETURN)
        told = cell_succeeded(self, incoming, value);
    else if (sent == PYGEN_NEXT) {
        PyObject *args[] = {(PyObject *)self, given, running, value};
        told = call_with(NAME(state, _waits), args, 4);
    }
    Py_XDECREF(value);
    Py_XDECREF(running);
    Py_DECREF(context);
    return told;
}

/* An exception that is no handler's ends the task that waits for `arrived`, as if the task had run the handler. What
 * ends programs, such as KeyboardInterrupt, stays set: -1. */
static int end_task(actors_state *state, PyObject *arrived)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *error = take_exception();
    int ended = ask_truth(NAME(state, done), arrived, NULL, NULL);
    if (ended == 0)
        ended = call_quietly(NAME(state, set_exception), arrived, error, NULL);
    Py_DECREF(error);
    return ended < 0 ? -1 : 0;
}

/* After a handler that did not wait: whether the task needs no turn for it; -1 with an exception. */
static int settle(CellObject *self, PyObject *arrived, PyObject *failure)
{
    actors_state *state = self->state;
    int is_done = ask_truth(NAME(state, done), arrived, NULL, NULL);
    int was_cancelled = is_done > 0 ? ask_truth(NAME(state, cancelled), arrived, NULL, NULL) : 0;
    PyObject *error = failure ? failure : Py_None;
    if (is_done < 0 || was_cancelled < 0 ||
        (was_cancelled && call_quietly(NAME(state, _was_cancelled), (PyObject *)self, error, NULL) < 0))
        return -1;
    int queued = cell_has_queue(self);
    if (queued < 0 || (!queued && cell_show_idle(self) < 0))
        return -1;
    return !is_done;
}

/* Run the handler of a message as far as it goes: whether it is over; -1 with an exception. `arrived` is what the task
 * that serves the mailbox waits for. */
static int run_at_once(CellObject *self, PyObject *given, PyObject *handler, PyObject *arrived)
{
    actors_state *state = self->state;
    PyObject *task = Py_NewRef(self->parts[TASK]), *failure = NULL, *error = NULL;
    PyObject *loop = PyObject_CallMethodNoArgs(arrived, NAME(state, get_loop));
    int is_over = -1;
    if (loop && cell_advance(self, PyTuple_GET_ITEM(handler, NUMBER)) == 0 &&
        change_task(loop, task, &state->enter_task, "_enter_task") == 0) { /* the loop runs no task: it calls back */
        if (run_in_context(self, given, handler, &failure) < 0 && end_task(state, arrived) < 0)
            error = take_exception();
        is_over = change_task(loop, task, &state->leave_task, "_leave_task");
        bool waits = is_set(self->parts[BEGUN]);
        if (is_over == 0 && !waits)
            is_over = leave(self);
        if (is_over == 0 && !waits && !error)
            is_over = settle(self, arrived, failure);
    }
    if (error) {
        if (is_over < 0)
            PyErr_Clear(); /* what ends the program goes before */
        set_exception(error);
        is_over = -1;
    }
    Py_XDECREF(loop);
    Py_XDECREF(failure);
    Py_DECREF(task);
    return is_over;
}

/* Whether it has to go through the mailbox: its handler is no coroutine of the task's own, or the actor is not idle; -1
 * with an exception. */
static int goes_through_mailbox(CellObject *self, IncomingObject *incoming)
{
    PyObject *handler = handler_of(self, incoming);
    if (!handler)
        return PyErr_Occurred() ? -1 : 1;
    if (!handler_is(handler, BEGINS_AT_ONCE) || incoming->is_stream)
        return 1;
    if (!is_set(self->parts[ARRIVED]) || !is_set(self->parts[TASK]) || !is_set(self->parts[TASK_CONTEXT]))
        return 1;
    int queued = cell_has_queue(self);
    return queued ? queued : ask_truth(NAME(self->state, done), self->parts[ARRIVED], NULL, NULL);
}

PyObject *cell_put_and_run(CellObject *self, PyObject *given)
{
    IncomingObject *incoming = message_of(self, given);
    int is_over = -1, through = incoming ? goes_through_mailbox(self, incoming) : -1;
    if (through > 0) {
        is_over = call_quietly(NAME(self->state, put), (PyObject *)self, given, NULL);
    } else if (through == 0) {
        PyObject *arrived = Py_NewRef(self->parts[ARRIVED]);
        PyObject *handler = cell_admit_at_once(self, given);
        is_over = !handler ? -1 : handler == Py_None ? 1 : run_at_once(self, given, handler, arrived);
        Py_XDECREF(handler);
        Py_DECREF(arrived);
    }
    return is_over < 0 ? NULL : PyBool_FromLong(is_over);
}
