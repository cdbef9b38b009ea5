/* RemoteOriginCore: the way back to a caller in another process, for mailbox credit and for answers. */
#include "actors.h"

typedef struct {
    PyObject_HEAD
    actors_state *state;
    PyObject *node, *peer, *encode;
    PyObject *taken; /* actor id -> bytes not yet returned as credit */
} OriginObject;

static PyObject *origin_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"node", "peer", "encode", NULL};
    PyObject *node, *peer, *encode;
    actors_state *state = actors_state_of(type);
    if (!state || !PyArg_ParseTupleAndKeywords(args, keywords, "OOO:RemoteOriginCore", names, &node, &peer, &encode))
        return NULL;
    PyObject *taken = PyDict_New();
    OriginObject *self = taken ? (OriginObject *)type->tp_alloc(type, 0) : NULL;
    if (!self) {
        Py_XDECREF(taken);
        return NULL;
    }
    self->state = state;
    self->node = Py_NewRef(node);
    self->peer = Py_NewRef(peer);
    self->encode = Py_NewRef(encode);
    self->taken = taken;
    return (PyObject *)self;
}

static int origin_traverse(OriginObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->node);
    Py_VISIT(self->peer);
    Py_VISIT(self->encode);
    Py_VISIT(self->taken);
    return 0;
}

static int origin_clear(OriginObject *self)
{
    Py_CLEAR(self->node);
    Py_CLEAR(self->peer);
    Py_CLEAR(self->encode);
    Py_CLEAR(self->taken);
    return 0;
}

static void origin_dealloc(OriginObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    origin_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Encode (kind, first, second) and send it: 0, or -1 with an exception. */
static int send(OriginObject *self, enum envelope kind, PyObject *first, PyObject *second)
{
    PyObject *envelope = PyTuple_New(3), *number = PyLong_FromLong(kind), *data = NULL;
    if (envelope && number) {
        PyTuple_SET_ITEM(envelope, 0, Py_NewRef(number));
        PyTuple_SET_ITEM(envelope, 1, Py_NewRef(first));
        PyTuple_SET_ITEM(envelope, 2, Py_NewRef(second));
        data = PyObject_CallOneArg(self->encode, envelope);
    }
    Py_XDECREF(number);
    Py_XDECREF(envelope);
    int sent = data ? call_quietly(NAME(self->state, _send), (PyObject *)self, data, NULL) : -1;
    Py_XDECREF(data);
    return sent;
}

static PyObject *origin_reply(OriginObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "reply takes a name, the number of a call and a value");
    if (send(self, REPLY, args[1], args[2]) == 0)
        Py_RETURN_NONE;
    if (!PyErr_ExceptionMatches(self->state->unencodable))
        return NULL;
    PyObject *error = take_exception();
    int told = call_handling(error, NAME(self->state, _cannot_travel), (PyObject *)self, args[0], args[1], error);
    Py_DECREF(error);
    return told < 0 ? NULL : Py_NewRef(Py_None);
}

static int took(OriginObject *self, PyObject *actor_id, Py_ssize_t size_bytes, Py_ssize_t capacity_bytes)
{
    PyObject *before = PyDict_GetItemWithError(self->taken, actor_id);
    if (!before && PyErr_Occurred())
        return -1;
    Py_ssize_t taken = size_bytes + (before ? PyLong_AsSsize_t(before) : 0);
    PyObject *number = PyErr_Occurred() ? NULL : PyLong_FromSsize_t(taken);
    int ok = number ? 0 : -1;
    if (ok == 0 && taken >= capacity_bytes / 4) {
        ok = send(self, CREDIT, actor_id, number);
        Py_SETREF(number, PyLong_FromLong(0));
    }
    if (ok == 0)
        ok = number ? PyDict_SetItem(self->taken, actor_id, number) : -1;
    Py_XDECREF(number);
    return ok;
}

int origin_took(actors_state *state, PyObject *origin, PyObject *actor_id, Py_ssize_t size_bytes, PyObject *capacity)
{
    if (PyObject_TypeCheck(origin, state->origin)) {
        Py_ssize_t capacity_bytes = PyLong_AsSsize_t(capacity);
        if (capacity_bytes == -1 && PyErr_Occurred())
            return -1;
        return took((OriginObject *)origin, actor_id, size_bytes, capacity_bytes);
    }
    PyObject *size = PyLong_FromSsize_t(size_bytes);
    PyObject *args[] = {origin, actor_id, size, capacity};
    int told = size ? call_with(NAME(state, took), args, 4) : -1;
    Py_XDECREF(size);
    return told;
}

static PyObject *origin_took_method(OriginObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "took takes an actor's number, the message's size and the mailbox's");
    Py_ssize_t size_bytes = PyLong_AsSsize_t(args[1]), capacity_bytes = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred() || took(self, args[0], size_bytes, capacity_bytes) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *origin_forget_actor(OriginObject *self, PyObject *actor_id)
{
    int known = PyDict_Contains(self->taken, actor_id);
    if (known < 0 || (known && PyDict_DelItem(self->taken, actor_id) < 0))
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    FUNCTION("reply", origin_reply, METH_FASTCALL,
             "reply(name, call_id, value)\n\nEnd the call, or the stream, with a value."),
    FUNCTION("took", origin_took_method, METH_FASTCALL,
             "took(actor_id, size_bytes, capacity_bytes)\n\nA message of that size left the mailbox: credit is returned "
             "in quarters of its capacity."),
    FUNCTION("forget_actor", origin_forget_actor, METH_O,
             "forget_actor(actor_id)\n\nThe actor is gone: what its mailbox has not returned as credit is void."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"_node", T_OBJECT, offsetof(OriginObject, node), READONLY, NULL},
    {"_peer", T_OBJECT, offsetof(OriginObject, peer), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, PyDoc_STR("RemoteOriginCore(node, peer, encode)\n\nThe native part of "
                          "ringcast.actors.origin.RemoteOrigin.")},
    {Py_tp_new, origin_new},
    {Py_tp_traverse, origin_traverse},
    {Py_tp_clear, origin_clear},
    {Py_tp_dealloc, origin_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec origin_spec = {"ringcast.actors._native.RemoteOriginCore", sizeof(OriginObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                           slots};
