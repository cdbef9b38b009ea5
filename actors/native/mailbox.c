/* What every message in a mailbox needs: the message itself, and the mailbox's figures. In C, because a message needs
 * three of these steps, and each takes a third of a microsecond in Python. It reads no clock: times are the caller's,
 * which may be virtual. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>

/* ---- Incoming ---- */

enum { CALL_ID, METHOD, ARGS, KWARGS, ORIGIN, CONTEXT, NUM_OBJECTS };

typedef struct {
    PyObject_HEAD
    PyObject *objects[NUM_OBJECTS];
    Py_ssize_t size_bytes;
    double arrived_at, began_at;
    char is_stream, quiet;
} IncomingObject;

static PyObject *incoming_make(PyTypeObject *type, PyObject *const *given, Py_ssize_t count)
{
    if (count < 7 || count > 9) {
        PyErr_Format(PyExc_TypeError, "Incoming takes 7 to 9 arguments, all by position, not %zd", count);
        return NULL;
    }
    Py_ssize_t size_bytes = PyLong_AsSsize_t(given[5]);
    if (size_bytes == -1 && PyErr_Occurred())
        return NULL;
    int is_stream = count > 7 ? PyObject_IsTrue(given[7]) : 0;
    int quiet = is_stream >= 0 && count > 8 ? PyObject_IsTrue(given[8]) : 0;
    if (is_stream < 0 || quiet < 0)
        return NULL;
    IncomingObject *self = (IncomingObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    for (int i = CALL_ID; i <= ORIGIN; i++)
        self->objects[i] = Py_NewRef(given[i]);
    self->objects[CONTEXT] = Py_NewRef(given[6]);
    self->size_bytes = size_bytes;
    self->is_stream = (char)is_stream;
    self->quiet = (char)quiet;
    return (PyObject *)self;
}

static PyObject *incoming_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (keywords && PyDict_GET_SIZE(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Incoming takes its arguments by position");
        return NULL;
    }
    return incoming_make(type, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args));
}

static PyObject *incoming_call(PyObject *type, PyObject *const *args, size_t flags, PyObject *names)
{
    if (names && PyTuple_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "Incoming takes its arguments by position");
        return NULL;
    }
    return incoming_make((PyTypeObject *)type, args, PyVectorcall_NARGS(flags));
}

static int incoming_traverse(IncomingObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < NUM_OBJECTS; i++)
        Py_VISIT(self->objects[i]);
    return 0;
}

static int incoming_clear(IncomingObject *self)
{
    for (int i = 0; i < NUM_OBJECTS; i++)
        Py_CLEAR(self->objects[i]);
    return 0;
}

static void incoming_dealloc(IncomingObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    incoming_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

#define OBJECT(name, index, flags) {name, T_OBJECT_EX, offsetof(IncomingObject, objects[index]), flags, NULL}

static PyMemberDef incoming_members[] = {
    OBJECT("call_id", CALL_ID, READONLY),
    OBJECT("method", METHOD, READONLY),
    OBJECT("args", ARGS, READONLY),
    OBJECT("kwargs", KWARGS, READONLY),
    OBJECT("origin", ORIGIN, 0),
    OBJECT("context", CONTEXT, READONLY),
    {"size_bytes", T_PYSSIZET, offsetof(IncomingObject, size_bytes), READONLY, NULL},
    {"is_stream", T_BOOL, offsetof(IncomingObject, is_stream), READONLY, NULL},
    {"quiet", T_BOOL, offsetof(IncomingObject, quiet), READONLY, NULL},
    {"arrived_at", T_DOUBLE, offsetof(IncomingObject, arrived_at), 0, NULL},
    {"began_at", T_DOUBLE, offsetof(IncomingObject, began_at), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot incoming_slots[] = {
    {Py_tp_doc, PyDoc_STR("Incoming(call_id, method, args, kwargs, origin, size_bytes, context, is_stream=False, "
                          "quiet=False, /)\n\nA message in a mailbox.")},
    {Py_tp_new, incoming_new},
    {Py_tp_traverse, incoming_traverse},
    {Py_tp_clear, incoming_clear},
    {Py_tp_dealloc, incoming_dealloc},
    {Py_tp_members, incoming_members},
    {0, NULL},
};

static PyType_Spec incoming_spec = {"ringcast.actors._native.Incoming", sizeof(IncomingObject), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, incoming_slots};

/* ---- MeterCore ---- */

enum { BUCKETS = 48 }; /* bucket b counts times below 2**b microseconds, and at or above half of that */

typedef struct {
    PyObject_HEAD
    Py_ssize_t peak_depth;
    unsigned long long handled, failed, expired;
    double taken_at, queue_time_s, handling_time_s;
    uint64_t queue_histogram[BUCKETS], handling_histogram[BUCKETS];
} MeterObject;

static int bucket_of(double seconds)
{
    if (!(seconds >= 1e-6))
        return 0;
    uint64_t microseconds = seconds < 1e12 ? (uint64_t)(seconds * 1e6) : UINT64_MAX;
    int bits = 64 - __builtin_clzll(microseconds);
    return bits < BUCKETS ? bits : BUCKETS - 1;
}

/* (now, then): how long it was, or -1 with an exception. A clock's rounding never makes it negative. */
static double seconds_since(PyObject *const *args, Py_ssize_t count, const char *name, double *now)
{
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "%s takes 2 arguments, not %zd", name, count);
        return -1;
    }
    *now = PyFloat_AsDouble(args[0]);
    if (*now == -1 && PyErr_Occurred())
        return -1;
    double then = PyFloat_AsDouble(args[1]);
    if (then == -1 && PyErr_Occurred())
        return -1;
    return *now > then ? *now - then : 0;
}

static PyObject *meter_took(MeterObject *self, PyObject *const *args, Py_ssize_t count)
{
    double now, waited_s = seconds_since(args, count, "took", &now);
    if (waited_s < 0)
        return NULL;
    self->taken_at = now;
    self->queue_time_s += waited_s;
    self->queue_histogram[bucket_of(waited_s)]++;
    Py_RETURN_NONE;
}

static PyObject *meter_handled_since(MeterObject *self, PyObject *const *args, Py_ssize_t count)
{
    double now, spent_s = seconds_since(args, count, "handled_since", &now);
    if (spent_s < 0)
        return NULL;
    self->handled++;
    self->handling_time_s += spent_s;
    self->handling_histogram[bucket_of(spent_s)]++;
    Py_RETURN_NONE;
}

static PyObject *histogram(const uint64_t *counts)
{
    PyObject *list = PyList_New(BUCKETS);
    for (int i = 0; list && i < BUCKETS; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(counts[i]);
        if (!count)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, count);
    }
    return list;
}

static PyObject *meter_queue_histogram(MeterObject *self, void *Py_UNUSED(closure))
{
    return histogram(self->queue_histogram);
}

static PyObject *meter_handling_histogram(MeterObject *self, void *Py_UNUSED(closure))
{
    return histogram(self->handling_histogram);
}

static void meter_dealloc(MeterObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef meter_methods[] = {
    {"took", (PyCFunction)(void (*)(void))meter_took, METH_FASTCALL,
     PyDoc_STR("took(now, arrived_at)\n\nA message left the mailbox.")},
    {"handled_since", (PyCFunction)(void (*)(void))meter_handled_since, METH_FASTCALL,
     PyDoc_STR("handled_since(now, began_at)\n\nA handler ended.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef meter_members[] = {
    {"peak_depth", T_PYSSIZET, offsetof(MeterObject, peak_depth), 0, NULL},
    {"handled", T_ULONGLONG, offsetof(MeterObject, handled), READONLY, NULL},
    {"failed", T_ULONGLONG, offsetof(MeterObject, failed), 0, NULL},
    {"expired", T_ULONGLONG, offsetof(MeterObject, expired), 0, NULL},
    {"taken_at", T_DOUBLE, offsetof(MeterObject, taken_at), READONLY, PyDoc_STR("When a message left it last.")},
    {"queue_time_s", T_DOUBLE, offsetof(MeterObject, queue_time_s), READONLY, NULL},
    {"handling_time_s", T_DOUBLE, offsetof(MeterObject, handling_time_s), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef meter_properties[] = {
    {"queue_histogram", (getter)meter_queue_histogram, NULL, PyDoc_STR("Of how long messages waited."), NULL},
    {"handling_histogram", (getter)meter_handling_histogram, NULL, PyDoc_STR("Of how long handlers ran."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot meter_slots[] = {
    {Py_tp_doc, PyDoc_STR("MeterCore()\n\nWhat one mailbox counts. Times are monotonic seconds; bucket b of a histogram "
                          "counts those below 2**b µs,\nand at or above half of that.")},
    {Py_tp_dealloc, meter_dealloc},
    {Py_tp_methods, meter_methods},
    {Py_tp_members, meter_members},
    {Py_tp_getset, meter_properties},
    {0, NULL},
};

static PyType_Spec meter_spec = {"ringcast.actors._native.MeterCore", sizeof(MeterObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, meter_slots};

/* ---- the module ---- */

static int execute(PyObject *module)
{
    PyObject *incoming = PyType_FromModuleAndSpec(module, &incoming_spec, NULL);
    PyObject *meter = PyType_FromModuleAndSpec(module, &meter_spec, NULL);
    int failed = !incoming || !meter || PyModule_AddType(module, (PyTypeObject *)incoming) < 0 ||
                 PyModule_AddType(module, (PyTypeObject *)meter) < 0 ||
                 PyModule_AddIntConstant(module, "BUCKETS", BUCKETS) < 0;
    if (incoming)
        ((PyTypeObject *)incoming)->tp_vectorcall = incoming_call;
    Py_XDECREF(incoming);
    Py_XDECREF(meter);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ringcast.actors._native",
    .m_doc = "The message in a mailbox, and the mailbox's figures.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
