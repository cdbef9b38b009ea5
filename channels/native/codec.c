/* Python type CodecCore: what ringcast.channels.Codec is made of. Its halves are codec_pack.c and codec_unpack.c. */
#include "codec.h"

/* ---- errors ---- */

void codec_raise_from(PyObject *error, PyObject *text, PyObject *cause)
{
    PyObject *made = text ? PyObject_CallOneArg(error, text) : NULL;
    Py_XDECREF(text);
    if (!made)
        return;
    PyException_SetCause(made, Py_NewRef(cause));
    PyErr_SetObject(error, made);
    Py_DECREF(made);
}

PyObject *codec_name(PyObject *cls)
{
    PyObject *name = PyObject_GetAttrString(cls, "__qualname__");
    PyObject *module = name ? PyObject_GetAttrString(cls, "__module__") : NULL;
    if (module && !(PyUnicode_Check(module) && PyUnicode_CompareWithASCIIString(module, "builtins") == 0)) {
        PyObject *whole = PyUnicode_FromFormat("%S.%S", module, name);
        Py_SETREF(name, whole);
    }
    if (!module)
        Py_CLEAR(name);
    Py_XDECREF(module);
    return name;
}

PyObject *codec_told(PyObject *exception)
{
    const char *kind = Py_TYPE(exception)->tp_name;
    PyObject *text = PyObject_Str(exception);
    if (text && PyUnicode_GET_LENGTH(text) > 0) {
        PyObject *whole = PyUnicode_FromFormat("%s: %U", kind, text);
        Py_SETREF(text, whole);
    } else if (text) {
        Py_SETREF(text, PyUnicode_FromString(kind));
    }
    return text;
}

/* ---- the type ---- */

static PyObject *codec_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *types, *classes;
    if (!PyArg_ParseTuple(args, "O!O!:CodecCore", &PyDict_Type, &types, &PyDict_Type, &classes))
        return NULL;
    CodecObject *self = (CodecObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->state = native_state_of(type);
    self->types = Py_NewRef(types);
    self->classes = Py_NewRef(classes);
    return (PyObject *)self;
}

static void codec_dealloc(CodecObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(self->types);
    Py_CLEAR(self->classes);
    Py_CLEAR(self->named);
    PyMem_Free(self->spare);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *get_attached(CodecObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->attached ? self->attached : Py_None);
}

static PyMethodDef methods[] = {
    METHOD("encode", (PyCFunction)codec_encode, METH_O,
           "encode(value) -> bytes\n\nOne message; EncodeError names what cannot travel."),
    METHOD("decode", codec_decode, METH_FASTCALL | METH_KEYWORDS,
           "decode(data, copy=True) -> object\n\nThe value of a message, from encode or encode_parts; DecodeError on "
           "anything else. With copy=False, arrays\nand buffers that lie behind the message are read-only views of data "
           "and keep it alive; what was inside it is\ncopied in any case."),
    METHOD("encode_out", (PyCFunction)codec_encode_out, METH_O,
           "encode_out(value) -> bytes | LargeMessage\n\nOne message for an outbox: bytes, or, if it is larger than "
           "large_bytes, one whose large buffers are not copied yet."),
    METHOD("_encode_head", (PyCFunction)codec_encode_head, METH_O, "(the message, buffers to go behind it)"),
    METHOD("_decode_head", codec_decode_head, METH_FASTCALL, "The value of a message whose buffers are given."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"_named", T_OBJECT, offsetof(CodecObject, named), 0,
     PyDoc_STR("Classes that the message which is encoded or decoded has named so far; None at its start.")},
    {"_inside_bytes", T_PYSSIZET, offsetof(CodecObject, inside), READONLY,
     PyDoc_STR("In encode_parts: larger buffers go behind the message.")},
    {"_copies", T_BOOL, offsetof(CodecObject, copies), READONLY, PyDoc_STR("In decode: what is attached is copied.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"_attached", (getter)get_attached, NULL,
     PyDoc_STR("In encode_parts the list of buffers that go behind the message, in decode those that came; or None."),
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, PyDoc_STR("CodecCore(types, classes)\n\nThe native part of ringcast.channels.Codec.")},
    {Py_tp_new, codec_new},
    {Py_tp_dealloc, codec_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec codec_spec = {"ringcast.channels._native.CodecCore", sizeof(CodecObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, type_slots};
