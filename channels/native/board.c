/* Python type Board: one mapping of the board segment. */
#include "binding.h"

enum purpose { CREATE, JOIN, LOOK };

static PyObject *board_open(PyTypeObject *type, PyObject *fd, enum purpose purpose)
{
    native_state *state = native_state_of(type);
    BoardObject *self = (BoardObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->is_read_only = purpose == LOOK;
    if (mapping_open(&self->map, fd, "Board", purpose == LOOK) < 0)
        goto fail;
    uint64_t slots = self->map.size < BOARD_HEADER_BYTES
                         ? 0
                         : (self->map.size - BOARD_HEADER_BYTES) / sizeof(struct board_slot);
    if (slots == 0 || slots > 1 << 20) {
        PyErr_Format(PyExc_ValueError, "a board of %zu bytes: make it with create_segment(Board.size_bytes(slots))",
                     self->map.size);
        goto fail;
    }
    struct board_header *header = self->map.base;
    if (purpose == CREATE) {
        if (LOAD_ACQUIRE(&header->magic) != 0) {
            PyErr_SetString(state->ring_mismatch, "the segment is in use already: a new board goes into a new segment");
            goto fail;
        }
        STORE_RELAXED(&header->abi, BOARD_ABI);
        STORE_RELAXED(&header->slots, (uint32_t)slots);
        STORE_RELEASE(&header->magic, BOARD_MAGIC);
    }
    if (LOAD_ACQUIRE(&header->magic) != BOARD_MAGIC || header->abi != BOARD_ABI || header->slots != slots) {
        PyErr_Format(state->ring_mismatch,
                     "this segment is no board of this version: magic %08x%08x, layout %u, %u slots; expected %08x%08x, "
                     "%u, %u",
                     (unsigned)(header->magic >> 32), (unsigned)header->magic, header->abi, header->slots,
                     (unsigned)(BOARD_MAGIC >> 32), (unsigned)BOARD_MAGIC, BOARD_ABI, (unsigned)slots);
        goto fail;
    }
    self->slots = (uint32_t)slots;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static PyObject *board_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"fd", NULL};
    PyObject *fd;
    return PyArg_ParseTupleAndKeywords(args, keywords, "O:Board", names, &fd) ? board_open(type, fd, JOIN) : NULL;
}

static PyObject *board_create(PyObject *type, PyObject *fd)
{
    return board_open((PyTypeObject *)type, fd, CREATE);
}

static PyObject *board_look(PyObject *type, PyObject *fd)
{
    return board_open((PyTypeObject *)type, fd, LOOK);
}

static void board_dealloc(BoardObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    mapping_close(&self->map);
    type->tp_free(self);
    Py_DECREF(type);
}

bool board_is_ours(const BoardObject *self)
{
    if (self->is_read_only)
        PyErr_SetString(PyExc_ValueError, "this board was opened with Board.look(): an onlooker does not write to it");
    return !self->is_read_only;
}

static struct board_slot *slot_of(BoardObject *self, PyObject *number)
{
    uint64_t slot;
    if (mapping_is_forked(&self->map) || take_unsigned(number, "slot", self->slots - 1, &slot) < 0)
        return NULL;
    return &board_slots(self->map.base)[slot];
}

/* The same, to be written to. */
static struct board_slot *own_slot_of(BoardObject *self, PyObject *number)
{
    return board_is_ours(self) ? slot_of(self, number) : NULL;
}

static PyObject *board_size_bytes(PyObject *Py_UNUSED(type), PyObject *const *args, Py_ssize_t given,
                                  PyObject *keywords)
{
    static const char *const names[] = {"slots", NULL};
    PyObject *out[1];
    uint64_t slots = 64;
    if (take_arguments("size_bytes", names, 0, args, given, keywords, out) < 0 ||
        (out[0] && take_unsigned(out[0], "slots", 1 << 20, &slots) < 0))
        return NULL;
    return PyLong_FromUnsignedLongLong(BOARD_HEADER_BYTES + slots * sizeof(struct board_slot));
}

static PyObject *board_set_state(BoardObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"slot", "incarnation", "state", NULL};
    PyObject *out[3];
    uint64_t incarnation, state;
    if (take_arguments("set_state", names, 3, args, given, keywords, out) < 0)
        return NULL;
    struct board_slot *slot = own_slot_of(self, out[0]);
    if (!slot || take_unsigned(out[1], "incarnation", UINT32_MAX, &incarnation) < 0 ||
        take_unsigned(out[2], "state", UINT32_MAX, &state) < 0)
        return NULL;
    STORE_RELEASE(&slot->state, incarnation << 32 | state);
    Py_RETURN_NONE;
}

static PyObject *board_state(BoardObject *self, PyObject *number)
{
    struct board_slot *slot = slot_of(self, number);
    if (!slot)
        return NULL;
    uint64_t word = LOAD_ACQUIRE(&slot->state);
    return Py_BuildValue("kk", (unsigned long)(word >> 32), (unsigned long)(word & UINT32_MAX));
}

static PyObject *board_advance(BoardObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"slot", "phase", NULL};
    PyObject *out[2];
    uint64_t phase;
    if (take_arguments("advance", names, 2, args, given, keywords, out) < 0)
        return NULL;
    struct board_slot *slot = own_slot_of(self, out[0]);
    if (!slot || take_unsigned(out[1], "phase", UINT16_MAX, &phase) < 0)
        return NULL;
    uint64_t count = LOAD_RELAXED(&slot->progress) >> 16;
    STORE_RELEASE(&slot->progress, (count + 1) << 16 | phase);
    Py_RETURN_NONE;
}

static PyObject *board_progress(BoardObject *self, PyObject *number)
{
    struct board_slot *slot = slot_of(self, number);
    if (!slot)
        return NULL;
    uint64_t word = LOAD_ACQUIRE(&slot->progress);
    return Py_BuildValue("Kk", (unsigned long long)(word >> 16), (unsigned long)(word & UINT16_MAX));
}

static PyObject *get_busy(BoardObject *self, void *Py_UNUSED(closure))
{
    return mapping_is_forked(&self->map) ? NULL : PyLong_FromUnsignedLong(board_count(self->map.base).busy);
}

static PyObject *board_set_gauges(BoardObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (given < 1 || given > 1 + BOARD_GAUGES)
        return PyErr_Format(PyExc_TypeError, "set_gauges takes a slot and up to %d figures", BOARD_GAUGES);
    struct board_slot *slot = own_slot_of(self, args[0]);
    if (!slot)
        return NULL;
    for (Py_ssize_t i = 1; i < given; i++) {
        uint64_t value;
        if (take_unsigned(args[i], "a gauge", UINT64_MAX, &value) < 0)
            return NULL;
        STORE_RELAXED(&slot->gauges[i - 1], value);
    }
    Py_RETURN_NONE;
}

static PyObject *board_gauges(BoardObject *self, PyObject *number)
{
    struct board_slot *slot = slot_of(self, number);
    PyObject *gauges = slot ? PyTuple_New(BOARD_GAUGES) : NULL;
    for (Py_ssize_t i = 0; gauges && i < BOARD_GAUGES; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(LOAD_RELAXED(&slot->gauges[i]));
        if (!value)
            Py_CLEAR(gauges);
        else
            PyTuple_SET_ITEM(gauges, i, value);
    }
    return gauges;
}

static PyObject *board_set_label(BoardObject *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"slot", "label", NULL};
    PyObject *out[2];
    if (take_arguments("set_label", names, 2, args, given, keywords, out) < 0)
        return NULL;
    struct board_slot *slot = own_slot_of(self, out[0]);
    Py_ssize_t size;
    const char *text = slot ? PyUnicode_AsUTF8AndSize(out[1], &size) : NULL;
    if (!text)
        return NULL;
    uint64_t words[BOARD_LABEL_WORDS] = {0};
    size_t room = sizeof words;
    if ((size_t)size < room)
        room = (size_t)size;
    while (room < (size_t)size && room > 0 && (text[room] & 0xC0) == 0x80)
        room--; /* cut between characters */
    memcpy(words, text, room);
    for (int i = 0; i < BOARD_LABEL_WORDS; i++)
        STORE_RELAXED(&slot->label[i], words[i]);
    Py_RETURN_NONE;
}

static PyObject *board_label(BoardObject *self, PyObject *number)
{
    struct board_slot *slot = slot_of(self, number);
    if (!slot)
        return NULL;
    uint64_t words[BOARD_LABEL_WORDS];
    for (int i = 0; i < BOARD_LABEL_WORDS; i++)
        words[i] = LOAD_RELAXED(&slot->label[i]);
    return PyUnicode_DecodeUTF8((const char *)words, (Py_ssize_t)strnlen((const char *)words, sizeof words), "replace");
}

static PyMethodDef methods[] = {
    METHOD("create", board_create, METH_O | METH_CLASS,
           "create(fd) -> Board\n\nMake a new segment a board. RingMismatch if it holds something already."),
    METHOD("look", board_look, METH_O | METH_CLASS,
           "look(fd) -> Board\n\nFor onlookers: the mapping is read-only, and the fd may be."),
    METHOD("size_bytes", board_size_bytes, METH_FASTCALL | METH_KEYWORDS | METH_STATIC,
           "size_bytes(slots=64) -> int\n\nHow large the segment must be."),
    METHOD("set_state", board_set_state, METH_FASTCALL | METH_KEYWORDS,
           "set_state(slot, incarnation, state)\n\nThe supervisor's word; both are up to 32 bits."),
    METHOD("state", board_state, METH_O, "state(slot) -> (incarnation, state)"),
    METHOD("advance", board_advance, METH_FASTCALL | METH_KEYWORDS,
           "advance(slot, phase)\n\nCount one step of progress, in that phase (up to 65535). The process's own word."),
    METHOD("progress", board_progress, METH_O, "progress(slot) -> (count, phase)"),
    METHOD("set_gauges", board_set_gauges, METH_FASTCALL,
           "set_gauges(slot, *figures)\n\nUp to 8 unsigned figures for onlookers. The process's own words."),
    METHOD("gauges", board_gauges, METH_O, "gauges(slot) -> tuple of 8\n\nEach is whole; together they may be of two moments."),
    METHOD("set_label", board_set_label, METH_FASTCALL | METH_KEYWORDS,
           "set_label(slot, label)\n\nWhat runs there, cut to 64 bytes. The supervisor's word."),
    METHOD("label", board_label, METH_O, "label(slot) -> str"),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"slots", T_UINT, offsetof(BoardObject, slots), READONLY, PyDoc_STR("How many slots the segment has.")},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"busy", (getter)get_busy, NULL,
     PyDoc_STR("How many of the processes that wait on its bells are awake; one that died counts until another one looks\n"
               "whether it may spin."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, PyDoc_STR("Board(fd)\n\nMaps the board in a segment (the fd stays the caller's): per slot a doorbell word, the "
                          "process's progress\nand the supervisor's state, each on a line of its own. RingMismatch if "
                          "there is none: its maker calls create().")},
    {Py_tp_new, board_new},
    {Py_tp_dealloc, board_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec board_spec = {"ringcast.channels._native.Board", sizeof(BoardObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, type_slots};
