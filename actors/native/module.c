/* The module ringcast.actors._native: what its types share, and help for calls between C and Python. */
#include "actors.h"

extern struct PyModuleDef actors_module;

actors_state *actors_state_of(PyTypeObject *type)
{
    PyObject *module = PyType_GetModuleByDef(type, &actors_module);
    return module ? PyModule_GetState(module) : NULL;
}

PyObject *allocate(PyTypeObject *type)
{
    PyObject *nothing = PyTuple_New(0);
    PyObject *made = nothing ? PyBaseObject_Type.tp_new(type, nothing, NULL) : NULL; /* it refuses abstract classes */
    Py_XDECREF(nothing);
    return made;
}

double clock_now(actors_state *state)
{
    PyObject *clock = PyDict_GetItemWithError(state->clock_module, NAME(state, monotonic));
    PyObject *now = clock ? PyObject_CallNoArgs(clock) : NULL;
    double seconds = now ? PyFloat_AsDouble(now) : -1;
    Py_XDECREF(now);
    if (!clock && !PyErr_Occurred())
        PyErr_SetString(PyExc_AttributeError, "time.monotonic is gone");
    return seconds;
}

PyObject *take_exception(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

void set_exception(PyObject *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
}

int call_with(PyObject *name, PyObject *const *args, size_t count)
{
    PyObject *result = PyObject_VectorcallMethod(name, args, count, NULL);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

int call_quietly(PyObject *name, PyObject *object, PyObject *first, PyObject *second)
{
    PyObject *args[] = {object, first, second};
    return call_with(name, args, 1 + (first != NULL) + (second != NULL));
}

int ask_truth(PyObject *name, PyObject *object, PyObject *first, PyObject *second)
{
    PyObject *args[] = {object, first, second};
    size_t count = 1 + (first != NULL) + (second != NULL);
    PyObject *result = PyObject_VectorcallMethod(name, args, count, NULL);
    int truth = result ? PyObject_IsTrue(result) : -1;
    Py_XDECREF(result);
    return truth;
}

int call_handling(PyObject *error, PyObject *name, PyObject *object, PyObject *first, PyObject *second,
                  PyObject *third)
{
    PyObject *args[] = {object, first, second, third};
    PyObject *outer = PyErr_GetHandledException();
    PyErr_SetHandledException(error);
    int called = call_with(name, args, 1 + (first != NULL) + (second != NULL) + (third != NULL));
    PyErr_SetHandledException(outer);
    Py_XDECREF(outer);
    return called;
}

static PyObject *attribute_of(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *found = imported ? PyObject_GetAttrString(imported, name) : NULL;
    Py_XDECREF(imported);
    return found;
}

static int take_names(actors_state *state)
{
#define NAME_AS_TEXT(name) #name,
    static const char *const texts[] = {FOR_EACH_NAME(NAME_AS_TEXT)};
    for (int i = 0; i < NUM_NAMES; i++)
        if (!(state->names[i] = PyUnicode_InternFromString(texts[i])))
            return -1;
    return 0;
}

static int take_errors(actors_state *state)
{
    static const char *const errors = "ringcast.channels.errors";
    PyObject *encode = attribute_of(errors, "EncodeError"), *segment = attribute_of(errors, "SegmentError");
    PyObject *channel = attribute_of(errors, "ChannelError");
    state->decode_error = attribute_of(errors, "DecodeError");
    if (encode && segment && channel && state->decode_error) {
        state->unencodable = PyTuple_Pack(2, encode, segment);
        state->undecodable = PyTuple_Pack(5, channel, PyExc_ValueError, PyExc_TypeError, PyExc_IndexError,
                                          PyExc_KeyError);
    }
    Py_XDECREF(encode);
    Py_XDECREF(segment);
    Py_XDECREF(channel);
    return state->unencodable && state->undecodable ? 0 : -1;
}

static int take_others(actors_state *state)
{
    static const char *const contexts = "ringcast.actors.call_context";
    state->empty_context = attribute_of(contexts, "EMPTY");
    state->unpack_context = attribute_of(contexts, "unpack");
    state->scope_variable = PyContextVar_New("ringcast_call_scope", NULL);
    state->context_keyword = Py_BuildValue("(s)", "context");
    PyObject *time = PyImport_ImportModule("time");
    state->clock_module = time ? Py_NewRef(PyModule_GetDict(time)) : NULL;
    Py_XDECREF(time);
    if (!state->empty_context || !state->unpack_context || !state->scope_variable || !state->context_keyword)
        return -1;
    return state->clock_module ? 0 : -1;
}

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    if (type && PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

static int add_constants(PyObject *module, actors_state *state)
{
    PyObject *spin_s = PyFloat_FromDouble(SPIN_S);
    int added = spin_s ? PyModule_AddObjectRef(module, "SPIN_S", spin_s) : -1;
    Py_XDECREF(spin_s);
    if (added == 0)
        added = PyModule_AddObjectRef(module, "SCOPE", state->scope_variable);
    if (added < 0 || PyModule_AddIntConstant(module, "POLL_BATCH", POLL_BATCH) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "BUCKETS", BUCKETS);
}

static int add_types(PyObject *module, actors_state *state)
{
    struct {
        PyTypeObject **place;
        PyType_Spec *spec;
        PyTypeObject **base;
    } types[] = {
        {&state->incoming, &incoming_spec, NULL}, {&state->meter, &meter_spec, NULL},
        {&state->scope, &scope_spec, NULL},
        {&state->cell, &cell_spec, NULL},         {&state->delivery, &delivery_spec, NULL},
        {&state->origin, &origin_spec, NULL},     {&state->node, &node_spec, NULL},
        {&state->async_node, &async_node_spec, &state->node},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!(*types[i].place = add_type(module, types[i].spec, types[i].base ? *types[i].base : NULL)))
            return -1;
    state->incoming->tp_vectorcall = incoming_call;
    return 0;
}

static int execute(PyObject *module)
{
    actors_state *state = PyModule_GetState(module);
    if (take_names(state) < 0 || take_errors(state) < 0 || take_others(state) < 0)
        return -1;
    return add_types(module, state) < 0 ? -1 : add_constants(module, state);
}

/* The state's references, one after another; NULL when there are no more. */
static PyObject **reference_of(actors_state *state, int number)
{
    PyObject **references[] = {
        (PyObject **)&state->incoming, (PyObject **)&state->meter, (PyObject **)&state->scope, (PyObject **)&state->cell,
        (PyObject **)&state->delivery, (PyObject **)&state->origin, (PyObject **)&state->node,
        (PyObject **)&state->async_node, &state->empty_context, &state->unpack_context, &state->scope_variable,
        &state->context_keyword, &state->clock_module, &state->decode_error, &state->unencodable,
        &state->undecodable, &state->enter_task, &state->leave_task,
    };
    enum { COUNT = sizeof references / sizeof *references };
    if (number < COUNT)
        return references[number];
    return number < COUNT + NUM_NAMES ? &state->names[number - COUNT] : NULL;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    PyObject **reference;
    for (int i = 0; (reference = reference_of(PyModule_GetState(module), i)); i++)
        Py_VISIT(*reference);
    return 0;
}

static int clear(PyObject *module)
{
    PyObject **reference;
    for (int i = 0; (reference = reference_of(PyModule_GetState(module), i)); i++)
        Py_CLEAR(*reference);
    return 0;
}

static void release(void *module)
{
    clear(module);
}

static PyObject *current_context(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    return context_now(PyModule_GetState(module));
}

static PyMethodDef functions[] = {
    FUNCTION("current_context", current_context, METH_NOARGS,
             "current_context() -> CallContext\n\nThe context of the code that runs."),
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

struct PyModuleDef actors_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ringcast.actors._native",
    .m_doc = "The way of a message through a node and a mailbox, as far as every message takes it.",
    .m_size = sizeof(actors_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&actors_module);
}
