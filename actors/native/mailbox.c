/* What every message in a mailbox needs: the message itself, and the mailbox's figures. Times are the caller's. */
#include "actors.h"

/* ---- Incoming ---- */

PyObject *incoming_make(PyTypeObject *type, PyObject *const *objects, Py_ssize_t size_bytes, bool is_stream, bool quiet)
{
    IncomingObject *self = (IncomingObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    for (int i = 0; i < NUM_OBJECTS; i++)
        self->objects[i] = Py_NewRef(objects[i]);
    self->size_bytes = size_bytes;
    self->is_stream = is_stream;
    self->quiet = quiet;
    return (PyObject *)self;
}

static PyObject *make_from_arguments(PyTypeObject *type, PyObject *const *given, Py_ssize_t count)
{
    if (count < 7 || count > 9)
        return PyErr_Format(PyExc_TypeError, "Incoming takes 7 to 9 arguments, all by position, not %zd", count);
    PyObject *objects[NUM_OBJECTS] = {given[0], given[1], given[2], given[3], given[4], given[6]};
    Py_ssize_t size_bytes = PyLong_AsSsize_t(given[5]);
    if (size_bytes == -1 && PyErr_Occurred())
        return NULL;
    int is_stream = count > 7 ? PyObject_IsTrue(given[7]) : 0;
    int quiet = is_stream >= 0 && count > 8 ? PyObject_IsTrue(given[8]) : 0;
    return is_stream < 0 || quiet < 0 ? NULL : incoming_make(type, objects, size_bytes, is_stream, quiet);
}

static PyObject *incoming_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (keywords && PyDict_GET_SIZE(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Incoming takes its arguments by position");
        return NULL;
    }
    return make_from_arguments(type, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args));
}

PyObject *incoming_call(PyObject *type, PyObject *const *args, size_t flags, PyObject *names)
{
    if (names && PyTuple_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "Incoming takes its arguments by position");
        return NULL;
    }
    return make_from_arguments((PyTypeObject *)type, args, PyVectorcall_NARGS(flags));
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

#define OBJECT(name, index) {name, T_OBJECT_EX, offsetof(IncomingObject, objects[index]), READONLY, NULL}

static PyMemberDef incoming_members[] = {
    OBJECT("call_id", CALL_ID),
    OBJECT("method", METHOD),
    OBJECT("args", ARGS),
    OBJECT("kwargs", KWARGS),
    OBJECT("context", CONTEXT),
    {"size_bytes", T_PYSSIZET, offsetof(IncomingObject, size_bytes), READONLY, NULL},
    {"is_stream", T_BOOL, offsetof(IncomingObject, is_stream), READONLY, NULL},
    {"quiet", T_BOOL, offsetof(IncomingObject, quiet), READONLY, NULL},
    {"arrived_at", T_DOUBLE, offsetof(IncomingObject, arrived_at), 0, NULL},
    {"began_at", T_DOUBLE, offsetof(IncomingObject, began_at), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *get_origin(IncomingObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->objects[ORIGIN]);
}

static int set_origin(IncomingObject *self, PyObject *origin, void *Py_UNUSED(closure))
{
    if (!origin) {
        PyErr_SetString(PyExc_AttributeError, "a message has an origin");
        return -1;
    }
    Py_SETREF(self->objects[ORIGIN], Py_NewRef(origin));
    return 0;
}

static PyGetSetDef incoming_properties[] = {
    {"origin", (getter)get_origin, (setter)set_origin, PyDoc_STR("The way back to who sent it."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot incoming_slots[] = {
    {Py_tp_doc, PyDoc_STR("Incoming(call_id, method, args, kwargs, origin, size_bytes, context, is_stream=False, "
                          "quiet=False, /)\n\nA message in a mailbox.")},
    {Py_tp_new, incoming_new},
    {Py_tp_traverse, incoming_traverse},
    {Py_tp_clear, incoming_clear},
    {Py_tp_dealloc, incoming_dealloc},
    {Py_tp_members, incoming_members},
    {Py_tp_getset, incoming_properties},
    {0, NULL},
};

PyType_Spec incoming_spec = {"ringcast.actors._native.Incoming", sizeof(IncomingObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, incoming_slots};

/* ---- MeterCore ---- */

static int bucket_of(double seconds)
{
    if (!(seconds >= 1e-6))
        return 0;
    uint64_t microseconds = seconds < 1e12 ? (uint64_t)(seconds * 1e6) : UINT64_MAX;
    int bits = 64 - __builtin_clzll(microseconds);
    return bits < BUCKETS ? bits : BUCKETS - 1;
}

/* A clock's rounding never makes a time negative. */
void meter_took(MeterObject *self, double now, double then)
{
    double waited_s = now > then ? now - then : 0;
    self->taken_at = now;
    self->queue_time_s += waited_s;
    self->queue_histogram[bucket_of(waited_s)]++;
}

void meter_handled(MeterObject *self, double now, double then)
{
    double spent_s = now > then ? now - then : 0;
    self->handled++;
    self->handling_time_s += spent_s;
    self->handling_histogram[bucket_of(spent_s)]++;
}

static PyObject *count_time(MeterObject *self, PyObject *const *args, Py_ssize_t count, const char *name,
                            void (*note)(MeterObject *, double, double))
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "%s takes 2 arguments, not %zd", name, count);
    double now = PyFloat_AsDouble(args[0]);
    if (now == -1 && PyErr_Occurred())
        return NULL;
    double then = PyFloat_AsDouble(args[1]);
    if (then == -1 && PyErr_Occurred())
        return NULL;
    note(self, now, then);
    Py_RETURN_NONE;
}

static PyObject *took(MeterObject *self, PyObject *const *args, Py_ssize_t count)
{
    return count_time(self, args, count, "took", meter_took);
}

static PyObject *handled_since(MeterObject *self, PyObject *const *args, Py_ssize_t count)
{
    return count_time(self, args, count, "handled_since", meter_handled);
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
    FUNCTION("took", took, METH_FASTCALL, "took(now, arrived_at)\n\nA message left the mailbox."),
    FUNCTION("handled_since", handled_since, METH_FASTCALL, "handled_since(now, began_at)\n\nA handler ended."),
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
    {Py_tp_doc, PyDoc_STR("MeterCore()\n\nWhat one mailbox counts. Times are monotonic seconds; bucket b of a "
                          "histogram counts those below 2**b µs,\nand at or above half of that.")},
    {Py_tp_dealloc, meter_dealloc},
    {Py_tp_methods, meter_methods},
    {Py_tp_members, meter_members},
    {Py_tp_getset, meter_properties},
    {0, NULL},
};

PyType_Spec meter_spec = {"ringcast.actors._native.MeterCore", sizeof(MeterObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, meter_slots};
