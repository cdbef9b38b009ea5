/* Scope: the context of a call, for as long as the call is open. The variable that holds it is inherited by tasks, which
 * may outlive the call: they find the scope closed, and with that the empty context. */
#include "actors.h"

PyObject *scope_make(actors_state *state, PyObject *context)
{
    ScopeObject *self = PyObject_New(ScopeObject, state->scope);
    if (self)
        self->context = Py_NewRef(context);
    return (PyObject *)self;
}

void scope_close(PyObject *scope)
{
    Py_CLEAR(((ScopeObject *)scope)->context);
}

PyObject *context_now(actors_state *state)
{
    PyObject *scope, *context;
    if (PyContextVar_Get(state->scope_variable, NULL, &scope) < 0)
        return NULL;
    if (!scope)
        return Py_NewRef(state->empty_context);
    if (Py_IS_TYPE(scope, state->scope)) {
        PyObject *open = ((ScopeObject *)scope)->context;
        context = Py_NewRef(open ? open : state->empty_context);
    } else {
        context = PyObject_GetAttr(scope, NAME(state, context));
    }
    Py_DECREF(scope);
    return context;
}

static PyObject *scope_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"context", NULL};
    PyObject *context;
    actors_state *state = actors_state_of(type);
    if (!state || !PyArg_ParseTupleAndKeywords(args, keywords, "O:Scope", names, &context))
        return NULL;
    return scope_make(state, context);
}

static void scope_dealloc(ScopeObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->context);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *get_context(ScopeObject *self, void *Py_UNUSED(closure))
{
    if (self->context)
        return Py_NewRef(self->context);
    actors_state *state = actors_state_of(Py_TYPE(self));
    return state ? Py_NewRef(state->empty_context) : NULL;
}

static PyObject *get_is_open(ScopeObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->context != NULL);
}

static PyObject *close_scope(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    scope_close(self);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    FUNCTION("close", close_scope, METH_NOARGS, "close()\n\nThe call has ended."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"context", (getter)get_context, NULL, PyDoc_STR("The call's context; the empty one once it has ended."), NULL},
    {"is_open", (getter)get_is_open, NULL, PyDoc_STR("Whether the call has not ended."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, PyDoc_STR("Scope(context)\n\nThe context of a call, for as long as the call is open.")},
    {Py_tp_new, scope_new},
    {Py_tp_dealloc, scope_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec scope_spec = {"ringcast.actors._native.Scope", sizeof(ScopeObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
