/* The encoding half of CodecCore: values to msgpack. */
#include "codec.h"

#define SPARE_MOST (1 << 20) /* a larger buffer is not kept for the next message */

struct out {
    CodecObject *codec;
    unsigned char *bytes;
    size_t size, room;
    int nested, messages;
    PyObject *path; /* after a failure: a list of the steps from the value that failed to the whole one, or NULL */
};

static int encode_value(struct out *out, PyObject *value);
static int encode_other(struct out *out, PyObject *value);

/* ---- where it failed ---- */

/* Note a step of the way to what has failed; the exception is kept, and not what may go wrong here. Returns -1. */
static int note(struct out *out, const char *format, ...)
{
    PyObject *type, *value, *traceback;
    va_list parts;
    PyErr_Fetch(&type, &value, &traceback);
    va_start(parts, format);
    PyObject *step = PyUnicode_FromFormatV(format, parts);
    va_end(parts);
    if (step && (out->path || (out->path = PyList_New(0))))
        PyList_Append(out->path, step);
    Py_XDECREF(step);
    PyErr_Restore(type, value, traceback);
    return -1;
}

static int at_key(struct out *out, PyObject *key)
{
    if (PyUnicode_CheckExact(key) || PyLong_CheckExact(key))
        return note(out, "[%.80R]", key);
    return note(out, "[a %s]", Py_TYPE(key)->tp_name);
}

/* ---- bytes ---- */

static int grow(struct out *out, size_t more)
{
    size_t room = out->room ? out->room : 512;
    while (room - out->size < more)
        room *= 2;
    unsigned char *bytes = PyMem_Realloc(out->bytes, room);
    if (!bytes) {
        PyErr_NoMemory();
        return -1;
    }
    out->bytes = bytes;
    out->room = room;
    return 0;
}

/* Where to put so many bytes; NULL with MemoryError set. */
static inline unsigned char *put(struct out *out, size_t size)
{
    if (out->room - out->size < size && grow(out, size) < 0)
        return NULL;
    unsigned char *place = out->bytes + out->size;
    out->size += size;
    return place;
}

static inline void store_big(unsigned char *place, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        place[i] = (unsigned char)(value >> 8 * (bytes - 1 - i));
}

/* A byte and a number of that many bytes. */
static inline int put_number(struct out *out, unsigned char code, uint64_t value, int bytes)
{
    unsigned char *place = put(out, 1 + (size_t)bytes);
    if (!place)
        return -1;
    place[0] = code;
    store_big(place + 1, value, bytes);
    return 0;
}

/* The header of something with a length: short form (below `few`), then codes for 1, 2 and 4 bytes; code8 0: none. */
static int put_length(struct out *out, uint64_t length, unsigned char short_code, uint64_t few, unsigned char code8,
                      unsigned char code16, unsigned char code32)
{
    if (length < few)
        return put_number(out, (unsigned char)(short_code | length), 0, 0);
    if (length <= UINT8_MAX && code8)
        return put_number(out, code8, length, 1);
    if (length <= UINT16_MAX)
        return put_number(out, code16, length, 2);
    if (length <= UINT32_MAX)
        return put_number(out, code32, length, 4);
    PyErr_Format(PyExc_ValueError, "%llu elements or bytes: msgpack counts to 4294967295", (unsigned long long)length);
    return -1;
}

static int put_bytes(struct out *out, const void *bytes, size_t size)
{
    unsigned char *place = put(out, size);
    if (!place)
        return -1;
    memcpy(place, bytes, size);
    return 0;
}

/* ---- scalars ---- */

static int encode_unsigned(struct out *out, uint64_t value)
{
    if (value < 0x80)
        return put_number(out, (unsigned char)value, 0, 0);
    if (value <= UINT8_MAX)
        return put_number(out, 0xCC, value, 1);
    if (value <= UINT16_MAX)
        return put_number(out, 0xCD, value, 2);
    if (value <= UINT32_MAX)
        return put_number(out, 0xCE, value, 4);
    return put_number(out, 0xCF, value, 8);
}

static int encode_int(struct out *out, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (overflow == 0 && number >= 0)
        return encode_unsigned(out, (uint64_t)number);
    if (overflow == 0) {
        if (number >= -32)
            return put_number(out, (unsigned char)number, 0, 0);
        if (number >= INT8_MIN)
            return put_number(out, 0xD0, (uint64_t)number, 1);
        if (number >= INT16_MIN)
            return put_number(out, 0xD1, (uint64_t)number, 2);
        if (number >= INT32_MIN)
            return put_number(out, 0xD2, (uint64_t)number, 4);
        return put_number(out, 0xD3, (uint64_t)number, 8);
    }
    unsigned long long large = overflow > 0 ? PyLong_AsUnsignedLongLong(value) : 0;
    if (overflow > 0 && !(large == (unsigned long long)-1 && PyErr_Occurred()))
        return encode_unsigned(out, large);
    PyErr_Clear();
    return encode_other(out, value);
}

static int encode_float(struct out *out, PyObject *value)
{
    double number = PyFloat_AsDouble(value);
    uint64_t bits;
    if (number == -1.0 && PyErr_Occurred())
        return -1;
    memcpy(&bits, &number, sizeof bits);
    return put_number(out, 0xCB, bits, 8);
}

static int encode_str(struct out *out, PyObject *value)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    if (!text || put_length(out, (uint64_t)size, 0xA0, 32, 0xD9, 0xDA, 0xDB) < 0)
        return -1;
    return put_bytes(out, text, (size_t)size);
}

/* Bytes that are large enough go behind the message, where the caller can take them there; else they are in it. */
static int encode_buffer(struct out *out, PyObject *value)
{
    PyObject *attached = out->codec->attached;
    Py_buffer view;
    int done = -1;
    if (PyObject_GetBuffer(value, &view, PyBUF_CONTIG_RO) < 0)
        return -1;
    if (attached && view.len > out->codec->inside) {
        unsigned char *place = put(out, 10); /* extension of 7 bytes: [0, number of the buffer] */
        if (place) {
            memcpy(place, (unsigned char[]){0xC7, 7, CODEC_ATTACHED, 0x92, 0x00, 0xCE}, 6);
            store_big(place + 6, (uint64_t)PyList_GET_SIZE(attached), 4);
            done = PyList_Append(attached, value);
        }
    } else if (put_length(out, (uint64_t)view.len, 0, 0, 0xC4, 0xC5, 0xC6) == 0) {
        done = put_bytes(out, view.buf, (size_t)view.len);
    }
    PyBuffer_Release(&view);
    return done;
}

/* ---- containers ---- */

static int encode_list(struct out *out, PyObject *list)
{
    Py_ssize_t size = PyList_GET_SIZE(list);
    if (put_length(out, (uint64_t)size, 0x90, 16, 0, 0xDC, 0xDD) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (PyList_GET_SIZE(list) != size) {
            PyErr_SetString(PyExc_ValueError, "a list changed its size while it was encoded");
            return -1;
        }
        PyObject *item = Py_NewRef(PyList_GET_ITEM(list, i)); /* what it calls may drop it from the list */
        int done = encode_value(out, item);
        Py_DECREF(item);
        if (done < 0)
            return note(out, "[%zd]", i);
    }
    return 0;
}

static int encode_tuple(struct out *out, PyObject *tuple)
{
    Py_ssize_t size = PyTuple_GET_SIZE(tuple);
    if (put_length(out, (uint64_t)size, 0x90, 16, 0, 0xDC, 0xDD) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < size; i++)
        if (encode_value(out, PyTuple_GET_ITEM(tuple, i)) < 0)
            return note(out, "[%zd]", i);
    return 0;
}

static int encode_dict(struct out *out, PyObject *dict)
{
    Py_ssize_t size = PyDict_GET_SIZE(dict), at = 0;
    PyObject *key, *value;
    if (put_length(out, (uint64_t)size, 0x80, 16, 0, 0xDE, 0xDF) < 0)
        return -1;
    while (PyDict_Next(dict, &at, &key, &value)) {
        Py_INCREF(key);
        Py_INCREF(value);
        /* A tuple would arrive as a list, which no dict takes as a key. */
        int done = PyTuple_CheckExact(key) ? encode_other(out, key) : encode_value(out, key);
        if (done < 0)
            note(out, ".keys()");
        else if ((done = encode_value(out, value)) < 0)
            at_key(out, key);
        Py_DECREF(key);
        Py_DECREF(value);
        if (done == 0 && PyDict_GET_SIZE(dict) != size) {
            PyErr_SetString(PyExc_ValueError, "a dict changed its size while it was encoded");
            done = -1;
        }
        if (done < 0)
            return -1;
    }
    return 0;
}

/* ---- extensions ---- */

/* Put the header in front of the `size` last bytes; the room for one of 3 bytes was left before them. */
static int close_extension(struct out *out, size_t start, unsigned char tag)
{
    size_t size = out->size - start - 3;
    bool fixed = size == 1 || size == 2 || size == 4 || size == 8 || size == 16;
    size_t header = fixed ? 2 : size <= UINT8_MAX ? 3 : size <= UINT16_MAX ? 4 : 6;
    if (size > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a message of more than 4 GiB");
        return -1;
    }
    if (header > 3 && !put(out, header - 3))
        return -1;
    unsigned char *place = out->bytes + start;
    if (header != 3)
        memmove(place + header, place + 3, size);
    out->size = start + header + size;
    if (fixed) {
        place[0] = (unsigned char)(0xD4 + (size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : size == 8 ? 3 : 4));
    } else {
        place[0] = header == 3 ? 0xC7 : header == 4 ? 0xC8 : 0xC9;
        store_big(place + 1, size, (int)header - 2);
    }
    place[header - 1] = tag;
    return 0;
}

static int encode_fields(struct out *out, PyObject *message, PyObject *names)
{
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    if (put_length(out, (uint64_t)count, 0x90, 16, 0, 0xDC, 0xDD) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *field = PyObject_GetAttr(message, PyTuple_GET_ITEM(names, i));
        int done = field ? encode_value(out, field) : -1;
        Py_XDECREF(field);
        if (done < 0)
            return note(out, ".%U", PyTuple_GET_ITEM(names, i));
    }
    return 0;
}

/* An exception that is no EncodeError yet becomes one that names the message. */
static void blame(CodecObject *codec, const char *what, PyObject *cls)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(codec->state->encode_error))
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *name = codec_name(cls), *told = name ? codec_told(value) : NULL;
    PyObject *text = told ? PyUnicode_FromFormat("cannot encode %s %U: %U", what, name, told) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(told);
    codec_raise_from(codec->state->encode_error, text, value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

static int encode_message(struct out *out, PyObject *message, PyObject *entry)
{
    size_t start = out->size;
    if (out->messages == CODEC_MAX_MESSAGES) {
        PyErr_Format(out->codec->state->encode_error, "messages are nested deeper than %d", CODEC_MAX_MESSAGES);
        return -1;
    }
    if (!put(out, 3))
        return -1;
    out->messages++;
    int done = encode_fields(out, message, PyTuple_GET_ITEM(entry, 1));
    out->messages--;
    if (done < 0) {
        blame(out->codec, "the fields of a", (PyObject *)Py_TYPE(message));
        return -1;
    }
    return close_extension(out, start, (unsigned char)PyLong_AsLong(PyTuple_GET_ITEM(entry, 0)));
}

/* What a packed value failed at: Python code knows what the steps within it stand for. */
static int at_packed(struct out *out, PyObject *value)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = out->path ? PyObject_CallMethod((PyObject *)out->codec, "_name_step", "OO", value, out->path)
                               : Py_NewRef(Py_None);
    Py_XDECREF(done);
    PyErr_Restore(type, error, traceback);
    return -1;
}

static int encode_packed(struct out *out, PyObject *value, PyObject *packed)
{
    if (out->messages == CODEC_MAX_MESSAGES) {
        PyErr_Format(out->codec->state->encode_error, "messages are nested deeper than %d", CODEC_MAX_MESSAGES);
        return -1;
    }
    out->messages++;
    int done = encode_value(out, packed);
    out->messages--;
    return done < 0 ? at_packed(out, value) : 0;
}

static int put_buffer(struct out *out, PyObject *data)
{
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return -1;
    int done = put_bytes(out, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return done;
}

/* Whatever else: Python's to decide. */
static int encode_other(struct out *out, PyObject *value)
{
    size_t start = out->size;
    PyObject *pair = PyObject_CallMethod((PyObject *)out->codec, "_pack_other", "(O)", value), *packed;
    long tag;
    int done = -1;
    if (pair && PyArg_ParseTuple(pair, "lO;_pack_other returns (tag, what it packed)", &tag, &packed) && put(out, 3))
        done = codec_is_packed(tag) ? encode_packed(out, value, packed) : put_buffer(out, packed);
    Py_XDECREF(pair);
    return done < 0 ? -1 : close_extension(out, start, (unsigned char)tag);
}

static int encode_nested(struct out *out, PyObject *value)
{
    if (PyList_CheckExact(value))
        return encode_list(out, value);
    if (PyTuple_CheckExact(value))
        return encode_tuple(out, value);
    if (PyDict_CheckExact(value))
        return encode_dict(out, value);
    PyObject *entry = PyDict_GetItemWithError(out->codec->types, (PyObject *)Py_TYPE(value));
    if (entry)
        return encode_message(out, value, entry);
    return PyErr_Occurred() ? -1 : encode_other(out, value);
}

static int encode_value(struct out *out, PyObject *value)
{
    if (PyUnicode_CheckExact(value))
        return encode_str(out, value);
    if (value == Py_None)
        return put_number(out, 0xC0, 0, 0);
    if (value == Py_True || value == Py_False)
        return put_number(out, value == Py_True ? 0xC3 : 0xC2, 0, 0);
    if (PyLong_CheckExact(value))
        return encode_int(out, value);
    if (PyFloat_CheckExact(value))
        return encode_float(out, value);
    if (PyBytes_CheckExact(value) || PyByteArray_CheckExact(value) || PyMemoryView_Check(value))
        return encode_buffer(out, value);
    if (out->nested == CODEC_MAX_NESTED) {
        PyErr_Format(PyExc_ValueError, "containers are nested deeper than %d", CODEC_MAX_NESTED);
        return -1;
    }
    out->nested++;
    int done = encode_nested(out, value);
    out->nested--;
    return done;
}

/* ---- the calls ---- */

/* Give the EncodeError that is raised the path to what could not travel; the path is taken over. */
static void locate(CodecObject *codec, PyObject *steps)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *path = NULL;
    if (error && PyObject_TypeCheck(error, (PyTypeObject *)codec->state->encode_error) && PyList_Reverse(steps) == 0)
        path = PyList_AsTuple(steps);
    if (path)
        PyObject_SetAttrString(error, "path", path);
    Py_XDECREF(path);
    Py_DECREF(steps);
    PyErr_Restore(type, error, traceback);
}

static PyObject *encode(CodecObject *self, PyObject *value)
{
    struct out out = {.codec = self, .bytes = self->spare, .room = self->spare_room};
    self->spare = NULL; /* ours: what we call may encode something else meanwhile */
    self->spare_room = 0;
    PyObject *result = NULL, *named = self->named;
    self->named = NULL;
    if (encode_value(&out, value) == 0)
        result = PyBytes_FromStringAndSize((const char *)out.bytes, (Py_ssize_t)out.size);
    else
        blame(self, "a", (PyObject *)Py_TYPE(value));
    Py_XSETREF(self->named, named);
    if (out.path)
        locate(self, out.path);
    if (!self->spare && out.room <= SPARE_MOST) {
        self->spare = out.bytes;
        self->spare_room = out.room;
    } else {
        PyMem_Free(out.bytes);
    }
    return result;
}

PyObject *codec_encode(CodecObject *self, PyObject *value)
{
    PyObject *before = self->attached;
    self->attached = NULL; /* a call from within encode_parts stands for itself */
    PyObject *result = encode(self, value);
    self->attached = before;
    return result;
}

/* The message; the buffers of more than `inside` bytes that must go behind it are put into the list. */
static PyObject *encode_aside(CodecObject *self, PyObject *value, PyObject *attached, Py_ssize_t inside)
{
    PyObject *before = self->attached;
    Py_ssize_t inside_before = self->inside;
    self->attached = attached;
    self->inside = inside;
    PyObject *head = encode(self, value);
    self->attached = before;
    self->inside = inside_before;
    return head;
}

/* (the message, list of the buffers that must go behind it) */
PyObject *codec_encode_head(CodecObject *self, PyObject *value)
{
    PyObject *attached = PyList_New(0);
    PyObject *head = attached ? encode_aside(self, value, attached, CODEC_MAX_INSIDE) : NULL;
    PyObject *result = head ? PyTuple_Pack(2, head, attached) : NULL;
    Py_XDECREF(head);
    Py_XDECREF(attached);
    return result;
}

PyObject *codec_encode_out(CodecObject *self, PyObject *value)
{
    PyObject *attached = PyList_New(0);
    PyObject *head = attached ? encode_aside(self, value, attached, CODEC_MAX_INSIDE_OUT) : NULL;
    if (head && PyList_GET_SIZE(attached) > 0)
        Py_SETREF(head, PyObject_CallMethod((PyObject *)self, "_enclose", "OO", head, attached));
    Py_XDECREF(attached);
    return head;
}
