/* Python type Board: one mapping of the board segment. */
#include "binding.h"

static PyObject *board_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"fd", NULL};
    PyObject *fd;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Board", names, &fd))
        return NULL;
    native_state *state = native_state_of(type);
    BoardObject *self = (BoardObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    if (mapping_open(&self->map, fd, "Board") < 0)
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
    if (LOAD_ACQUIRE(&header->magic) == 0) { /* fresh: its maker maps it before anybody else has it */
        STORE_RELAXED(&header->abi, BOARD_ABI);
        STORE_RELAXED(&header->slots, (uint32_t)slots);
        STORE_RELEASE(&header->magic, BOARD_MAGIC);
    }
    if (LOAD_ACQUIRE(&header->magic) != BOARD_MAGIC || header->abi != BOARD_ABI || header->slots != slots) {
        PyErr_Format(state->ring_mismatch,
                     "this segment is no board of this version: magic %llx, layout %u, %u slots; expected %llx, %u, %u",
                     (unsigned long long)header->magic, header->abi, header->slots, BOARD_MAGIC, BOARD_ABI,
                     (unsigned)slots);
        goto fail;
    }
    self->slots = (uint32_t)slots;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static void board_dealloc(BoardObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    mapping_close(&self->map);
    type->tp_free(self);
    Py_DECREF(type);
}

static struct board_slot *slot_of(BoardObject *self, PyObject *number)
{
    uint64_t slot;
    if (mapping_is_forked(&self->map) || take_unsigned(number, "slot", self->slots - 1, &slot) < 0)
        return NULL;
    return &board_slots(self->map.base)[slot];
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
    struct board_slot *slot = slot_of(self, out[0]);
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
    struct board_slot *slot = slot_of(self, out[0]);
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

static PyMethodDef methods[] = {
    METHOD("size_bytes", board_size_bytes, METH_FASTCALL | METH_KEYWORDS | METH_STATIC,
           "size_bytes(slots=64) -> int\n\nHow large the segment must be."),
    METHOD("set_state", board_set_state, METH_FASTCALL | METH_KEYWORDS,
           "set_state(slot, incarnation, state)\n\nThe supervisor's word; both are up to 32 bits."),
    METHOD("state", board_state, METH_O, "state(slot) -> (incarnation, state)"),
    METHOD("advance", board_advance, METH_FASTCALL | METH_KEYWORDS,
           "advance(slot, phase)\n\nCount one step of progress, in that phase (up to 65535). The process's own word."),
    METHOD("progress", board_progress, METH_O, "progress(slot) -> (count, phase)"),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"slots", T_UINT, offsetof(BoardObject, slots), READONLY, PyDoc_STR("How many slots the segment has.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, PyDoc_STR("Board(fd)\n\nMaps a board segment (the fd stays the caller's): per slot a doorbell word, the "
                          "process's progress\nand the supervisor's state, each on a line of its own.")},
    {Py_tp_new, board_new},
    {Py_tp_dealloc, board_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec board_spec = {"ringcast.channels._native.Board", sizeof(BoardObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, type_slots};
