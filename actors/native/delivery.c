/* DeliveryCore: an envelope from a ring to the mailbox or to the call that it is meant for. */
#include "actors.h"

typedef struct {
    PyObject_HEAD
    actors_state *state;
    PyObject *node, *decode;
    bool is_alone;    /* the message that is handled came alone: there is none behind it that might cancel it */
    bool has_settled; /* the message that was handled is over, and the loop needs no turn for it */
} DeliveryObject;

static PyObject *delivery_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"node", "decode", NULL};
    PyObject *node, *decode;
    actors_state *state = actors_state_of(type);
    if (!state || !PyArg_ParseTupleAndKeywords(args, keywords, "OO:DeliveryCore", names, &node, &decode))
        return NULL;
    DeliveryObject *self = (DeliveryObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->state = state;
    self->node = Py_NewRef(node);
    self->decode = Py_NewRef(decode);
    return (PyObject *)self;
}

static int delivery_traverse(DeliveryObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->node);
    Py_VISIT(self->decode);
    return 0;
}

static int delivery_clear(DeliveryObject *self)
{
    Py_CLEAR(self->node);
    Py_CLEAR(self->decode);
    return 0;
}

static void delivery_dealloc(DeliveryObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    delivery_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Check the type of a part: what has got into a mailbox must not fail there. */
static int is_a(PyObject *part, PyTypeObject *type, const char *what)
{
    if (PyObject_TypeCheck(part, type))
        return 0;
    PyErr_Format(PyExc_TypeError, "an envelope whose %s is a %s, not a %s", what, Py_TYPE(part)->tp_name,
                 type->tp_name);
    return -1;
}

/* The cell of an actor that lives here; NULL if there is none, with an exception if that cannot be looked up. */
static PyObject *cell_of(DeliveryObject *self, PyObject *actor_id)
{
    if (is_a(actor_id, &PyLong_Type, "actor") < 0)
        return NULL;
    PyObject *cells = PyObject_GetAttr(self->node, NAME(self->state, cells));
    PyObject *cell = NULL;
    if (cells && PyDict_Check(cells))
        cell = Py_XNewRef(PyDict_GetItemWithError(cells, actor_id));
    else if (cells)
        PyErr_SetString(PyExc_RuntimeError, "the node's cells are no dict");
    Py_XDECREF(cells);
    return cell;
}

/* A message into the mailbox of a cell: 0, or -1 with an exception. */
static int deliver(DeliveryObject *self, PyObject *cell, PyObject *const *objects, Py_ssize_t size_bytes,
                   bool is_stream, bool quiet)
{
    actors_state *state = self->state;
    PyObject *incoming = incoming_make(state->incoming, objects, size_bytes, is_stream, quiet);
    int done = -1;
    if (incoming && self->is_alone) {
        done = ask_truth(NAME(state, put_and_run), cell, incoming, NULL);
        self->has_settled = done > 0;
    } else if (incoming) {
        done = call_quietly(NAME(state, put), cell, incoming, NULL);
    }
    Py_XDECREF(incoming);
    return done < 0 ? -1 : 0;
}

/* Check that an envelope has so many parts. */
static int has_parts(PyObject *message, Py_ssize_t count)
{
    if (PyList_GET_SIZE(message) == count)
        return 0;
    PyErr_Format(PyExc_ValueError, "an envelope of %zd parts, not %zd", PyList_GET_SIZE(message), count);
    return -1;
}

/* What all messages to a mailbox have: objects[METHOD] to objects[CONTEXT], from `part` on; -1 with an exception. The
 * origin and the context are new references, released by drop_common. */
static int take_common(DeliveryObject *self, PyObject *peer, PyObject *const *part, PyObject *packed,
                       PyObject **objects)
{
    actors_state *state = self->state;
    objects[METHOD] = part[0];
    objects[ARGS] = part[1];
    objects[KWARGS] = part[2];
    objects[ORIGIN] = objects[CONTEXT] = NULL;
    if (is_a(part[0], &PyUnicode_Type, "method") < 0 || is_a(part[1], &PyList_Type, "arguments") < 0 ||
        is_a(part[2], &PyDict_Type, "arguments by name") < 0)
        return -1;
    objects[ORIGIN] = PyObject_GetAttr(peer, NAME(state, origin));
    if (objects[ORIGIN])
        objects[CONTEXT] = packed == Py_None ? Py_NewRef(state->empty_context)
                                             : PyObject_CallOneArg(state->unpack_context, packed);
    return objects[CONTEXT] ? 0 : -1;
}

static void drop_common(PyObject **objects)
{
    Py_XDECREF(objects[ORIGIN]);
    Py_XDECREF(objects[CONTEXT]);
}

/* [kind, actor_id, call_id, method, args, kwargs, context]: who asks an actor that is gone is told. */
static int take_call(DeliveryObject *self, PyObject *peer, PyObject *message, Py_ssize_t size_bytes, bool is_stream)
{
    PyObject *objects[NUM_OBJECTS], **parts = ((PyListObject *)message)->ob_item;
    if (has_parts(message, 7) < 0 || is_a(parts[2], &PyLong_Type, "call") < 0)
        return -1;
    objects[CALL_ID] = parts[2];
    int done = take_common(self, peer, parts + 3, parts[6], objects);
    PyObject *cell = done == 0 ? cell_of(self, parts[1]) : NULL;
    if (cell)
        done = deliver(self, cell, objects, size_bytes, is_stream, false);
    else if (PyErr_Occurred())
        done = -1;
    else {
        PyObject *args[] = {(PyObject *)self, parts[1], objects[CALL_ID], objects[ORIGIN]};
        done = call_with(NAME(self->state, _gone), args, 4);
    }
    Py_XDECREF(cell);
    drop_common(objects);
    return done;
}

/* [kind, actor_id, method, args, kwargs] */
static int take_cast(DeliveryObject *self, PyObject *peer, PyObject *message, Py_ssize_t size_bytes)
{
    PyObject *objects[NUM_OBJECTS], **parts = ((PyListObject *)message)->ob_item;
    if (has_parts(message, 5) < 0)
        return -1;
    objects[CALL_ID] = Py_None;
    int done = take_common(self, peer, parts + 2, Py_None, objects);
    PyObject *cell = done == 0 ? cell_of(self, parts[1]) : NULL;
    if (cell)
        done = deliver(self, cell, objects, size_bytes, false, false);
    else if (PyErr_Occurred())
        done = -1;
    Py_XDECREF(cell);
    drop_common(objects);
    return done;
}

/* Number `rank` of a group message, if it lives here. */
static int take_member(DeliveryObject *self, PyObject *actor_id, Py_ssize_t rank, PyObject *first_call_id,
                       PyObject *reply_from, PyObject **objects, Py_ssize_t size_bytes)
{
    PyObject *cell = cell_of(self, actor_id);
    if (!cell)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *number = PyLong_FromSsize_t(rank);
    objects[CALL_ID] = NULL;
    if (number)
        objects[CALL_ID] = first_call_id == Py_None ? Py_NewRef(Py_None) : PyNumber_Add(first_call_id, number);
    int quiet = objects[CALL_ID] ? 0 : -1;
    if (quiet == 0 && reply_from != Py_None)
        quiet = PyObject_RichCompareBool(reply_from, number, Py_NE);
    int done = quiet < 0 ? -1 : deliver(self, cell, objects, size_bytes, false, quiet);
    Py_XDECREF(objects[CALL_ID]);
    Py_XDECREF(number);
    Py_DECREF(cell);
    return done;
}

/* [kind, actor_ids, first_call_id, reply_from, method, args, kwargs, context]: give it to those that live here. */
static int take_group(DeliveryObject *self, PyObject *peer, PyObject *message, Py_ssize_t size_bytes)
{
    PyObject *objects[NUM_OBJECTS], **parts = ((PyListObject *)message)->ob_item;
    if (has_parts(message, 8) < 0 || is_a(parts[1], &PyList_Type, "actors") < 0 ||
        (parts[2] != Py_None && is_a(parts[2], &PyLong_Type, "first call") < 0) ||
        (parts[3] != Py_None && is_a(parts[3], &PyLong_Type, "answering rank") < 0))
        return -1;
    for (Py_ssize_t rank = 0; rank < PyList_GET_SIZE(parts[1]); rank++)
        if (is_a(PyList_GET_ITEM(parts[1], rank), &PyLong_Type, "actor") < 0)
            return -1; /* before any of them has got it */
    int done = take_common(self, peer, parts + 4, parts[7], objects);
    for (Py_ssize_t rank = 0; done == 0 && rank < PyList_GET_SIZE(parts[1]); rank++)
        done = take_member(self, PyList_GET_ITEM(parts[1], rank), rank, parts[2], parts[3], objects, size_bytes);
    drop_common(objects);
    return done;
}

/* [kind, call_id, value] */
static int take_reply(DeliveryObject *self, PyObject *message)
{
    if (has_parts(message, 3) < 0 || is_a(PyList_GET_ITEM(message, 1), &PyLong_Type, "call") < 0)
        return -1;
    PyObject *calls = PyObject_GetAttr(self->node, NAME(self->state, calls));
    PyObject *args[] = {calls, PyList_GET_ITEM(message, 1), PyList_GET_ITEM(message, 2), Py_None};
    int done = calls ? call_with(NAME(self->state, finish), args, 4) : -1;
    Py_XDECREF(calls);
    return done;
}

static int take(DeliveryObject *self, PyObject *peer, PyObject *message, Py_ssize_t size_bytes)
{
    if (!PyList_CheckExact(message) || PyList_GET_SIZE(message) == 0) {
        PyErr_SetString(self->state->decode_error, "no envelope");
        return -1;
    }
    int overflow = 0; /* then the kind is -1, which is none */
    long kind = PyLong_AsLongAndOverflow(PyList_GET_ITEM(message, 0), &overflow);
    if (kind == -1 && PyErr_Occurred())
        return -1;
    switch (kind) {
    case CALL:
        return take_call(self, peer, message, size_bytes, false);
    case OPEN:
        return take_call(self, peer, message, size_bytes, true);
    case CAST:
        return take_cast(self, peer, message, size_bytes);
    case GROUP:
        return take_group(self, peer, message, size_bytes);
    case REPLY:
        return take_reply(self, message);
    default:
        return call_quietly(NAME(self->state, _take_other), (PyObject *)self, peer, message);
    }
}

static int handle(DeliveryObject *self, PyObject *peer, PyObject *data)
{
    Py_ssize_t size_bytes = PyObject_Size(data);
    PyObject *message = size_bytes < 0 ? NULL : PyObject_CallOneArg(self->decode, data);
    int done = message ? take(self, peer, message, size_bytes) : -1;
    Py_XDECREF(message);
    if (done == 0 || !PyErr_ExceptionMatches(self->state->undecodable))
        return done;
    PyObject *error = take_exception();
    int told = call_handling(error, NAME(self->state, _undecodable), (PyObject *)self, peer, data, error);
    Py_DECREF(error);
    return told;
}

static PyObject *delivery_handle(DeliveryObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "handle takes a peer and the bytes of a message");
    return handle(self, args[0], args[1]) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *delivery_handle_all(DeliveryObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "handle_all takes a peer, a list of messages and a bool");
    int is_alone = PyObject_IsTrue(args[2]);
    if (is_alone < 0)
        return NULL;
    self->is_alone = is_alone;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]); i++) {
        PyObject *message = PyList_GET_ITEM(args[1], i);
        if (!PyTuple_Check(message) || PyTuple_GET_SIZE(message) != 2)
            return PyErr_Format(PyExc_TypeError, "a message is (type, payload)");
        PyObject *data = Py_NewRef(PyTuple_GET_ITEM(message, 1)); /* the list may be changed meanwhile */
        int handled = call_quietly(NAME(self->state, handle), (PyObject *)self, args[0], data);
        Py_DECREF(data);
        if (handled < 0)
            return NULL;
    }
    return PyLong_FromSsize_t(PyList_GET_SIZE(args[1]));
}

bool delivery_has_settled(actors_state *state, PyObject *delivery)
{
    return PyObject_TypeCheck(delivery, state->delivery) && ((DeliveryObject *)delivery)->has_settled;
}

void delivery_unsettle(actors_state *state, PyObject *delivery)
{
    if (PyObject_TypeCheck(delivery, state->delivery))
        ((DeliveryObject *)delivery)->has_settled = 0;
}

static PyMethodDef methods[] = {
    FUNCTION("handle", delivery_handle, METH_FASTCALL,
             "handle(peer, data)\n\nAct on one message that came from the peer."),
    FUNCTION("handle_all", delivery_handle_all, METH_FASTCALL,
             "handle_all(peer, messages, is_alone) -> int\n\nThe same for what a ring's reader returned; how many that "
             "were. is_alone: there is none\nbehind it that might cancel it."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"_node", T_OBJECT, offsetof(DeliveryObject, node), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, PyDoc_STR("DeliveryCore(node, decode)\n\nThe native part of ringcast.actors.delivery.Delivery.")},
    {Py_tp_new, delivery_new},
    {Py_tp_traverse, delivery_traverse},
    {Py_tp_clear, delivery_clear},
    {Py_tp_dealloc, delivery_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec delivery_spec = {"ringcast.actors._native.DeliveryCore", sizeof(DeliveryObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                             slots};
