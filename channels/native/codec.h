/* What the two halves of the codec share. It speaks msgpack (github.com/msgpack/msgpack/blob/master/spec.md); a
 * registered message is an extension: its tag around the array of its fields.
 *
 * Bytes from outside are never trusted: every length is checked against what is there before anything is allocated.
 */
#ifndef RINGCAST_CODEC_H
#define RINGCAST_CODEC_H

#include "binding.h"

#define CODEC_MAX_NESTED 512 /* containers within containers */
#define CODEC_MAX_MESSAGES 64 /* messages within messages */
#define CODEC_MAX_INSIDE 4096 /* bytes of a buffer that stays in the message; larger ones may lie behind it */
#define CODEC_MAX_INSIDE_OUT (128 * 1024) /* the same for encode_out: what lies behind costs the receiver a table */
#define CODEC_ATTACHED 0        /* the tag of arrays, and of buffers that lie behind the message */
#define CODEC_FIRST_PACKED 8    /* tags from here to the last one, and that of arrays: what is in the extension is a */
#define CODEC_LAST_PACKED 15    /* value of its own, which Python code packs and rebuilds */
#define CODEC_PARTS 0xC1        /* first byte of a message with buffers behind it; msgpack never uses it */

typedef struct {
    PyObject_HEAD
    native_state *state;
    PyObject *types;   /* dict: class -> (tag, names of its fields) */
    PyObject *classes; /* dict: tag -> (class, names of its fields, may they be set without calling the class) */

    /* Of the call that runs: */
    PyObject *attached; /* encode_parts: list of buffers, in order; decode: list of memoryviews; else NULL */
    Py_ssize_t inside;  /* encode_parts, encode_out: bytes of a buffer that stays in the message */
    bool copies;        /* decode: what is attached is copied */
    PyObject *named;    /* the classes that the message has named so far: Python code's, NULL or None if none */

    /* Of the last encode, for the next one: */
    unsigned char *spare;
    size_t spare_room;
} CodecObject;

static inline bool codec_is_packed(long tag)
{
    return tag == CODEC_ATTACHED || (tag >= CODEC_FIRST_PACKED && tag <= CODEC_LAST_PACKED);
}

PyObject *codec_encode(CodecObject *self, PyObject *value);
PyObject *codec_encode_head(CodecObject *self, PyObject *value);
PyObject *codec_encode_out(CodecObject *self, PyObject *value);
PyObject *codec_decode(CodecObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords);
PyObject *codec_decode_head(CodecObject *self, PyObject *const *args, Py_ssize_t given);

/* Raise `error` with that text, which is taken over (NULL: an exception is set instead), because of `cause`. */
void codec_raise_from(PyObject *error, PyObject *text, PyObject *cause);
/* A class as people write it, and an exception in words; NULL with an exception set. */
PyObject *codec_name(PyObject *cls);
PyObject *codec_told(PyObject *exception);

#endif
