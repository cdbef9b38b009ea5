/* The decoding half of CodecCore: msgpack to values. Every byte is taken for hostile. */
#include "codec.h"

struct in {
    CodecObject *codec;
    const unsigned char *at, *end;
    size_t total; /* bytes of the whole message, for errors */
    int nested, messages;
};

static PyObject *decode_value(struct in *in);

static PyObject *fail(struct in *in, const char *text)
{
    return PyErr_Format(in->codec->state->decode_error, "cannot decode a message of %zu bytes: %s", in->total, text);
}

static inline size_t left(const struct in *in)
{
    return (size_t)(in->end - in->at);
}

/* A big-endian number; false with DecodeError set if the bytes end before. */
static inline bool take_number(struct in *in, int bytes, uint64_t *value)
{
    if (left(in) < (size_t)bytes) {
        fail(in, "the bytes end within a value");
        return false;
    }
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | in->at[i];
    in->at += bytes;
    *value = number;
    return true;
}

/* So many bytes; NULL with DecodeError set if there are fewer. */
static inline const unsigned char *take_bytes(struct in *in, uint64_t size)
{
    if (size > left(in)) {
        fail(in, "the bytes end within a value");
        return NULL;
    }
    const unsigned char *bytes = in->at;
    in->at += size;
    return bytes;
}

static PyObject *decode_str(struct in *in, uint64_t size)
{
    const unsigned char *bytes = take_bytes(in, size);
    return bytes ? PyUnicode_DecodeUTF8((const char *)bytes, (Py_ssize_t)size, NULL) : NULL;
}

static PyObject *decode_bin(struct in *in, uint64_t size)
{
    const unsigned char *bytes = take_bytes(in, size);
    return bytes ? PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)size) : NULL;
}

static PyObject *decode_float(struct in *in, int bytes)
{
    uint64_t bits;
    if (!take_number(in, bytes, &bits))
        return NULL;
    if (bytes == 8) {
        double number;
        memcpy(&number, &bits, sizeof number);
        return PyFloat_FromDouble(number);
    }
    uint32_t half = (uint32_t)bits;
    float number;
    memcpy(&number, &half, sizeof number);
    return PyFloat_FromDouble(number);
}

static PyObject *decode_signed(struct in *in, int bytes)
{
    uint64_t bits;
    if (!take_number(in, bytes, &bits))
        return NULL;
    int shift = 64 - 8 * bytes;
    return PyLong_FromLongLong((long long)(bits << shift) >> shift);
}

/* ---- containers ---- */

static PyObject *decode_list(struct in *in, uint64_t count)
{
    if (count > left(in)) /* an element takes a byte at least: no room is made for more */
        return fail(in, "an array claims more elements than there are bytes");
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (Py_ssize_t i = 0; list && i < (Py_ssize_t)count; i++) {
        PyObject *item = decode_value(in);
        if (item)
            PyList_SET_ITEM(list, i, item);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *decode_dict(struct in *in, uint64_t count)
{
    if (count > left(in) / 2)
        return fail(in, "a map claims more elements than there are bytes");
    PyObject *dict = PyDict_New();
    for (uint64_t i = 0; dict && i < count; i++) {
        PyObject *key = decode_value(in);
        PyObject *value = key ? decode_value(in) : NULL;
        if (!value || PyDict_SetItem(dict, key, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

/* ---- messages ---- */

/* An exception that is no DecodeError yet becomes one with this text before it; the text is taken over. */
static PyObject *blame(CodecObject *codec, PyObject *text)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (text && PyErr_GivenExceptionMatches(type, PyExc_Exception) &&
        !PyErr_GivenExceptionMatches(type, codec->state->decode_error)) {
        PyErr_NormalizeException(&type, &value, &traceback);
        PyObject *told = codec_told(value);
        codec_raise_from(codec->state->decode_error, told ? PyUnicode_FromFormat("%U: %U", text, told) : NULL, value);
        Py_XDECREF(told);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    } else {
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(text);
    return NULL;
}

/* The text for an exception that the constructor of a message raised; the exception is kept. */
static PyObject *misfit(PyObject *cls)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *name = codec_name(cls);
    PyObject *text = name ? PyUnicode_FromFormat("the fields of a %U do not fit", name) : NULL;
    Py_XDECREF(name);
    PyErr_Restore(type, value, traceback);
    return text;
}

/* The array header of a message's fields; false with DecodeError set. */
static bool take_field_count(struct in *in, PyObject *cls, uint64_t *count)
{
    const unsigned char *start = in->at;
    uint64_t code;
    if (!take_number(in, 1, &code))
        return false;
    if (code >= 0x90 && code <= 0x9F)
        *count = code & 0x0F;
    else if (code == 0xDC || code == 0xDD) {
        if (!take_number(in, code == 0xDC ? 2 : 4, count))
            return false;
    } else {
        in->at = start;
        PyObject *value = decode_value(in), *name = value ? codec_name(cls) : NULL;
        if (name)
            PyErr_Format(in->codec->state->decode_error, "the fields of a %U came as a %s, not as a list", name,
                         Py_TYPE(value)->tp_name);
        Py_XDECREF(value);
        Py_XDECREF(name);
        return false;
    }
    if (*count > left(in)) {
        fail(in, "an array claims more elements than there are bytes");
        return false;
    }
    return true;
}

/* A class without code of its own between its fields and its instance: allocate, and set each. */
static PyObject *build_directly(struct in *in, PyTypeObject *cls, PyObject *names)
{
    PyObject *made = cls->tp_alloc(cls, 0);
    for (Py_ssize_t i = 0; made && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *value = decode_value(in);
        if (!value || PyObject_GenericSetAttr(made, PyTuple_GET_ITEM(names, i), value) < 0)
            Py_CLEAR(made);
        Py_XDECREF(value);
    }
    return made;
}

static PyObject *build_by_call(struct in *in, PyObject *cls, uint64_t count)
{
    PyObject *fields = decode_list(in, count);
    PyObject *arguments = fields ? PyList_AsTuple(fields) : NULL;
    PyObject *made = arguments ? PyObject_CallObject(cls, arguments) : NULL;
    if (arguments && !made)
        blame(in->codec, misfit(cls));
    Py_XDECREF(fields);
    Py_XDECREF(arguments);
    return made;
}

static PyObject *decode_message(struct in *in, PyObject *entry)
{
    PyObject *cls = PyTuple_GET_ITEM(entry, 0), *names = PyTuple_GET_ITEM(entry, 1);
    bool direct = PyTuple_GET_ITEM(entry, 2) == Py_True;
    uint64_t count;
    if (in->messages == CODEC_MAX_MESSAGES)
        return PyErr_Format(in->codec->state->decode_error, "messages are nested deeper than %d", CODEC_MAX_MESSAGES);
    if (!take_field_count(in, cls, &count))
        return NULL;
    in->messages++;
    PyObject *made = direct && count == (uint64_t)PyTuple_GET_SIZE(names)
                         ? build_directly(in, (PyTypeObject *)cls, names)
                         : build_by_call(in, cls, count);
    in->messages--;
    if (made && in->at != in->end) {
        Py_CLEAR(made);
        fail(in, "bytes follow the fields of a message");
    }
    return made;
}

/* The value in an extension, which Python code makes something of. */
static PyObject *decode_packed(struct in *in, PyObject *tag)
{
    if (in->messages == CODEC_MAX_MESSAGES)
        return PyErr_Format(in->codec->state->decode_error, "messages are nested deeper than %d", CODEC_MAX_MESSAGES);
    in->messages++;
    PyObject *packed = decode_value(in), *made = NULL;
    if (packed && in->at != in->end)
        fail(in, "bytes follow the value of an extension");
    else if (packed)
        made = PyObject_CallMethod((PyObject *)in->codec, "_rebuild", "OO", tag, packed);
    Py_XDECREF(packed);
    return made;
}

static PyObject *decode_extension(struct in *in, uint64_t size)
{
    uint64_t tag;
    if (!take_number(in, 1, &tag))
        return NULL;
    const unsigned char *bytes = take_bytes(in, size);
    if (!bytes)
        return NULL;
    PyObject *number = PyLong_FromLong((signed char)tag);
    PyObject *entry = number ? PyDict_GetItemWithError(in->codec->classes, number) : NULL, *made = NULL;
    struct in inner = *in;
    inner.at = bytes;
    inner.end = bytes + size;
    if (entry) {
        Py_INCREF(entry);
        made = decode_message(&inner, entry);
        Py_DECREF(entry);
    } else if (number && !PyErr_Occurred()) {
        made = codec_is_packed((signed char)tag) ? decode_packed(&inner, number)
                                                 : PyObject_CallMethod((PyObject *)in->codec, "_unpack_other", "Oy#",
                                                                       number, bytes, (Py_ssize_t)size);
    }
    Py_XDECREF(number);
    return made;
}

static PyObject *decode_nested(struct in *in, unsigned char code)
{
    uint64_t size = 0;
    static const struct {
        char bytes; /* of the length */
    } lengths[] = {{1}, {2}, {4}};
    if (code <= 0x8F)
        return decode_dict(in, code & 0x0F);
    if (code <= 0x9F)
        return decode_list(in, code & 0x0F);
    if (code >= 0xD4 && code <= 0xD8)
        return decode_extension(in, 1ull << (code - 0xD4));
    if (code >= 0xC7 && code <= 0xC9)
        return take_number(in, lengths[code - 0xC7].bytes, &size) ? decode_extension(in, size) : NULL;
    if (!take_number(in, code & 1 ? 4 : 2, &size)) /* 0xDC to 0xDF */
        return NULL;
    return code <= 0xDD ? decode_list(in, size) : decode_dict(in, size);
}

static PyObject *decode_value(struct in *in)
{
    uint64_t code, size;
    if (!take_number(in, 1, &code))
        return NULL;
    if (code <= 0x7F)
        return PyLong_FromLong((long)code);
    if (code >= 0xE0)
        return PyLong_FromLong((long)code - 256);
    if (code >= 0xA0 && code <= 0xBF)
        return decode_str(in, code & 0x1F);
    switch (code) {
    case 0xC0:
        Py_RETURN_NONE;
    case 0xC1:
        return fail(in, "a byte 0xc1, which msgpack never uses");
    case 0xC2:
        Py_RETURN_FALSE;
    case 0xC3:
        Py_RETURN_TRUE;
    case 0xC4:
    case 0xC5:
    case 0xC6:
        return take_number(in, 1 << (code - 0xC4), &size) ? decode_bin(in, size) : NULL;
    case 0xCA:
        return decode_float(in, 4);
    case 0xCB:
        return decode_float(in, 8);
    case 0xCC:
    case 0xCD:
    case 0xCE:
    case 0xCF:
        return take_number(in, 1 << (code - 0xCC), &size) ? PyLong_FromUnsignedLongLong(size) : NULL;
    case 0xD0:
    case 0xD1:
    case 0xD2:
    case 0xD3:
        return decode_signed(in, 1 << (code - 0xD0));
    case 0xD9:
    case 0xDA:
    case 0xDB:
        return take_number(in, 1 << (code - 0xD9), &size) ? decode_str(in, size) : NULL;
    default:
        break;
    }
    if (in->nested == CODEC_MAX_NESTED)
        return fail(in, "its containers are nested too deep");
    in->nested++;
    PyObject *made = decode_nested(in, (unsigned char)code);
    in->nested--;
    return made;
}

/* ---- the calls ---- */

static PyObject *decode(CodecObject *self, const void *bytes, size_t size)
{
    struct in in = {.codec = self, .at = bytes, .end = (const unsigned char *)bytes + size, .total = size};
    PyObject *named = self->named;
    self->named = NULL;
    PyObject *value = decode_value(&in);
    Py_XSETREF(self->named, named);
    if (value && in.at == in.end)
        return value;
    if (value) {
        Py_DECREF(value);
        return PyErr_Format(self->state->decode_error, "cannot decode a message of %zu bytes: it ends after %zu", size,
                            size - left(&in));
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *text = PyUnicode_FromFormat("cannot decode a message of %zu bytes", size);
    PyErr_Restore(type, error, traceback);
    return blame(self, text);
}

/* decode_head(data, attached or None, copies): `attached` are the buffers that lie behind the message. */
PyObject *codec_decode_head(CodecObject *self, PyObject *const *args, Py_ssize_t given)
{
    static const char *const names[] = {"data", "attached", "copies", NULL};
    PyObject *out[3];
    Py_buffer view;
    if (take_arguments("_decode_head", names, 3, args, given, NULL, out) < 0 ||
        PyObject_GetBuffer(out[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *attached = self->attached;
    bool copies = self->copies;
    self->attached = out[1] == Py_None ? NULL : out[1];
    self->copies = out[2] == Py_True;
    PyObject *value = decode(self, view.buf, (size_t)view.len);
    self->attached = attached;
    self->copies = copies;
    PyBuffer_Release(&view);
    return value;
}

PyObject *codec_decode(CodecObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"data", "copy", NULL};
    PyObject *out[2], *value;
    Py_buffer view = {.obj = NULL};
    const void *bytes;
    size_t size;
    int copies = 1;
    if (take_arguments("decode", names, 1, args, given, keywords, out) < 0 ||
        (out[1] && (copies = PyObject_IsTrue(out[1])) < 0))
        return NULL;
    if (PyBytes_CheckExact(out[0])) {
        bytes = PyBytes_AS_STRING(out[0]);
        size = (size_t)PyBytes_GET_SIZE(out[0]);
    } else {
        if (PyObject_GetBuffer(out[0], &view, PyBUF_SIMPLE) < 0)
            return NULL;
        bytes = view.buf;
        size = (size_t)view.len;
    }
    if (size > 1 && *(const unsigned char *)bytes == CODEC_PARTS) {
        value = PyObject_CallMethod((PyObject *)self, "_decode_parts", "OO", out[0], copies ? Py_True : Py_False);
    } else {
        PyObject *attached = self->attached;
        self->attached = NULL;
        value = decode(self, bytes, size);
        self->attached = attached;
    }
    PyBuffer_Release(&view);
    return value;
}
