/* The module object, the helpers that its types share, and nothing of the protocol. */
#include "codec.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

static unsigned fork_generation; /* how often this process image came out of fork() */

static void count_fork(void)
{
    fork_generation++;
}

native_state *native_state_of(PyTypeObject *type)
{
    PyObject *module = PyType_GetModuleByDef(type, &native_module);
    return module ? PyModule_GetState(module) : NULL;
}

int mapping_open(mapping *map, PyObject *file, const char *what, bool is_read_only)
{
    int fd = PyObject_AsFileDescriptor(file);
    if (fd < 0)
        return -1;
    struct stat status;
    if (fstat(fd, &status) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    if (status.st_size <= 0) {
        PyErr_Format(PyExc_ValueError, "%s: fd %d is an empty file; make it with create_segment", what, fd);
        return -1;
    }
    int rights = is_read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    int flags = is_read_only ? MAP_SHARED : MAP_SHARED | MAP_POPULATE; /* an onlooker may turn away at once */
    void *base = mmap(NULL, (size_t)status.st_size, rights, flags, fd, 0);
    if (base == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    madvise(base, (size_t)status.st_size, MADV_DONTFORK);
    *map = (mapping){base, (size_t)status.st_size, fork_generation};
    return 0;
}

void mapping_close(mapping *map)
{
    if (map->base && map->born == fork_generation)
        munmap(map->base, map->size);
    map->base = NULL;
}

bool mapping_is_here(const mapping *map)
{
    return map->base && map->born == fork_generation;
}

bool mapping_is_forked(const mapping *map)
{
    if (map->born == fork_generation)
        return false;
    PyErr_SetString(PyExc_RuntimeError, "channels of a parent process were used after fork(): start children with "
                                        "subprocess and hand them file descriptors");
    return true;
}

int take_arguments(const char *function, const char *const *names, Py_ssize_t required, PyObject *const *args,
                   Py_ssize_t given, PyObject *keywords, PyObject **out)
{
    Py_ssize_t known = 0;
    for (; names[known]; known++)
        out[known] = known < given ? args[known] : NULL;
    if (given > known) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zd arguments, %zd were given", function, known, given);
        return -1;
    }
    for (Py_ssize_t k = 0; keywords && k < PyTuple_GET_SIZE(keywords); k++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, k);
        Py_ssize_t i = 0;
        while (names[i] && PyUnicode_CompareWithASCIIString(keyword, names[i]) != 0)
            i++;
        if (!names[i] || out[i]) {
            PyErr_Format(PyExc_TypeError, "%s() got an unknown or doubled argument '%U'", function, keyword);
            return -1;
        }
        out[i] = args[given + k];
    }
    for (Py_ssize_t i = 0; i < required; i++) {
        if (!out[i]) {
            PyErr_Format(PyExc_TypeError, "%s() misses the argument '%s'", function, names[i]);
            return -1;
        }
    }
    return 0;
}

int take_unsigned(PyObject *value, const char *name, uint64_t limit, uint64_t *out)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (number == (unsigned long long)-1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Clear();
    } else if (number <= limit) {
        *out = number;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s is %R: it must be between 0 and %llu", name, value, (unsigned long long)limit);
    return -1;
}

int take_doorbell(native_state *state, PyObject *value, const char *name, PyObject **out)
{
    *out = NULL;
    if (value == Py_None)
        return 0;
    if (!Py_IS_TYPE(value, state->doorbell)) {
        PyErr_Format(PyExc_TypeError, "%s must be a Doorbell or None, not %.100s", name, Py_TYPE(value)->tp_name);
        return -1;
    }
    *out = Py_NewRef(value);
    return 0;
}

PyObject *make_message(native_state *state, const struct ring_record *header, const unsigned char *payload)
{
    PyObject *message = PyStructSequence_New(state->message);
    if (!message)
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, header->length);
    if (bytes)
        ring_copy(PyBytes_AS_STRING(bytes), payload, header->length);
    PyObject *fields[] = {PyLong_FromLong(header->type), bytes, PyLong_FromLong(header->kind),
                          PyLong_FromUnsignedLongLong(header->seq)};
    bool complete = true;
    for (int i = 0; i < 4; i++) {
        PyStructSequence_SetItem(message, i, fields[i]);
        complete = complete && fields[i];
    }
    if (!complete)
        Py_CLEAR(message);
    return message;
}

static PyStructSequence_Field message_fields[] = {
    {"type", "The sender's number for the kind of message."},
    {"payload", "bytes; a read-only memoryview if the message was oversized."},
    {"kind", "DATA, OVERFLOW or CLOSE."},
    {"seq", "The record's number in its ring; records of other readers and padding count too."},
    {NULL, NULL},
};

static PyStructSequence_Desc message_description = {
    "ringcast.channels.Message",
    "A record as its reader sees it: unpacks as (type, payload); kind and seq by name only.",
    message_fields,
    2,
};

static PyStructSequence_Field doorbell_fields[] = {
    {"sent", "rings by this object that took a system call"},
    {"suppressed", "rings by this object that found the owner awake"},
    {"waits", "calls of wait() that found nothing ready"},
    {"spins", "of those that spun before they slept"},
    {"spins_won", "of those whose spin found something"},
    {"sleeps", "sleeps in the kernel"},
    {"tokens", "wake-ups by a ring, seen by wait() and disarm()"},
    {NULL, NULL},
};

static PyStructSequence_Desc doorbell_description = {
    "ringcast.channels.DoorbellStatistics",
    "What one Doorbell object did since it was made: as a ringer of its owner, and as the owner.",
    doorbell_fields,
    7,
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

static int execute(PyObject *module)
{
    static bool registered;
    native_state *state = PyModule_GetState(module);
    if (!registered && pthread_atfork(NULL, NULL, count_fork) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    registered = true;

    PyObject *errors = PyImport_ImportModule("ringcast.channels.errors");
    if (!errors)
        return -1;
    state->ring_corrupt = PyObject_GetAttrString(errors, "RingCorrupt");
    state->ring_mismatch = PyObject_GetAttrString(errors, "RingMismatch");
    state->reader_limit = PyObject_GetAttrString(errors, "ReaderLimit");
    state->segment_error = PyObject_GetAttrString(errors, "SegmentError");
    state->encode_error = PyObject_GetAttrString(errors, "EncodeError");
    state->decode_error = PyObject_GetAttrString(errors, "DecodeError");
    Py_DECREF(errors);
    if (!state->ring_corrupt || !state->ring_mismatch || !state->reader_limit || !state->segment_error ||
        !state->encode_error || !state->decode_error)
        return -1;

    state->message = PyStructSequence_NewType(&message_description);
    if (!state->message || PyModule_AddType(module, state->message) < 0)
        return -1;
    state->doorbell_statistics = PyStructSequence_NewType(&doorbell_description);
    if (!state->doorbell_statistics || PyModule_AddType(module, state->doorbell_statistics) < 0)
        return -1;
    if (!(state->board = add_type(module, &board_spec)) || !(state->doorbell = add_type(module, &doorbell_spec)) ||
        !(state->ring_writer = add_type(module, &ring_writer_spec)) ||
        !(state->ring_reader = add_type(module, &ring_reader_spec)) ||
        !(state->sealed_memory = add_type(module, &sealed_memory_spec)) ||
        !(state->window = add_type(module, &window_spec)) ||
        !(state->reservation = add_type(module, &reservation_spec)) ||
        !(state->record_view = add_type(module, &record_view_spec)) ||
        !(state->codec = add_type(module, &codec_spec)) || !(state->inbox = add_type(module, &inbox_spec)) ||
        !(state->outbox = add_type(module, &outbox_spec)))
        return -1;

    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"DATA", KIND_DATA},   {"OVERFLOW", KIND_OVERFLOW}, {"PAD", KIND_PAD},
        {"CLOSE", KIND_CLOSE}, {"AWAKE", BELL_AWAKE},       {"ARMED", BELL_ARMED},
        {"RINGING", BELL_RINGING},          {"MAX_READERS", RING_MAX_READERS},
        {"HEADER_BYTES", RING_HEADER_BYTES}, {"RECORD_BYTES", RING_RECORD_BYTES},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    native_state *state = PyModule_GetState(module);
    Py_VISIT(state->board);
    Py_VISIT(state->doorbell);
    Py_VISIT(state->ring_writer);
    Py_VISIT(state->ring_reader);
    Py_VISIT(state->message);
    Py_VISIT(state->sealed_memory);
    Py_VISIT(state->window);
    Py_VISIT(state->reservation);
    Py_VISIT(state->record_view);
    Py_VISIT(state->doorbell_statistics);
    Py_VISIT(state->ring_corrupt);
    Py_VISIT(state->ring_mismatch);
    Py_VISIT(state->reader_limit);
    Py_VISIT(state->segment_error);
    Py_VISIT(state->encode_error);
    Py_VISIT(state->decode_error);
    Py_VISIT(state->codec);
    Py_VISIT(state->inbox);
    Py_VISIT(state->outbox);
    return 0;
}

static int clear(PyObject *module)
{
    native_state *state = PyModule_GetState(module);
    Py_CLEAR(state->board);
    Py_CLEAR(state->doorbell);
    Py_CLEAR(state->ring_writer);
    Py_CLEAR(state->ring_reader);
    Py_CLEAR(state->message);
    Py_CLEAR(state->sealed_memory);
    Py_CLEAR(state->window);
    Py_CLEAR(state->reservation);
    Py_CLEAR(state->record_view);
    Py_CLEAR(state->doorbell_statistics);
    Py_CLEAR(state->ring_corrupt);
    Py_CLEAR(state->ring_mismatch);
    Py_CLEAR(state->reader_limit);
    Py_CLEAR(state->segment_error);
    Py_CLEAR(state->encode_error);
    Py_CLEAR(state->decode_error);
    Py_CLEAR(state->codec);
    Py_CLEAR(state->inbox);
    Py_CLEAR(state->outbox);
    return 0;
}

static void release(void *module)
{
    clear(module);
}

static PyMethodDef functions[] = {
    METHOD("map_sealed", map_sealed, METH_FASTCALL,
           "map_sealed(fd, size_bytes) -> memoryview\n\nRead-only view of a sealed memfd; the fd stays the caller's."),
    METHOD("watch_processes", watch_processes, METH_FASTCALL,
           "watch_processes(pidfds, exit_code)\n\nExit hard as soon as one of the processes has ended."),
    METHOD("kill_with_parent", kill_with_parent, METH_NOARGS,
           "kill_with_parent()\n\nHave the kernel kill this process when the thread that started it ends."),
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ringcast.channels._native",
    .m_doc = "Rings, doorbells and the board: the only code that touches shared words.",
    .m_size = sizeof(native_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&native_module);
}
