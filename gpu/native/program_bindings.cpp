// The kernels of a forward pass for Python, twice under the same names and arguments: as functions of the module, which call
// them, and as methods of Program, which notes the calls down for its `run`.
#include <new>

#include "bindings.h"
#include "program.h"

namespace ringcast {
namespace {

using Parser = bool (*)(PyObject* args, Call& call, int& level);

bool parse_norm(PyObject* args, Call& call, int& level) {
    unsigned long long x, weight, out;
    long long rows, size;
    float epsilon;
    int threads, add, dtype;
    if (!PyArg_ParseTuple(args, "iiKKKLLfpi", &level, &threads, &x, &weight, &out, &rows, &size, &epsilon, &add, &dtype))
        return false;
    call = NormArgs{pointer<const float>(x), pointer<const float>(weight), pointer<void>(out), rows, size, epsilon,
                    add != 0, static_cast<Dtype>(dtype), threads};
    return true;
}

// (keys, values, kv_heads, head_dim, block_size, dtype)
int parse_cache(PyObject* object, void* result) {
    unsigned long long keys, values;
    long long kv_heads, head_dim, block_size;
    int dtype;
    if (!PyArg_ParseTuple(object, "KKLLLi", &keys, &values, &kv_heads, &head_dim, &block_size, &dtype)) return 0;
    *static_cast<CacheView*>(result) = {pointer<void>(keys), pointer<void>(values), kv_heads, head_dim, block_size,
                                        static_cast<Dtype>(dtype)};
    return 1;
}

bool parse_rotary(PyObject* args, Call& call, int& level) {
    unsigned long long qkv, query_norm, key_norm, cos_sin, positions, slots, queries;
    long long tokens, heads, rotary_dim;
    float query_scale, epsilon;
    int threads, dtype;
    CacheView cache;
    if (!PyArg_ParseTuple(args, "iiKKKKKKKLLLffO&i", &level, &threads, &qkv, &query_norm, &key_norm, &cos_sin,
                          &positions, &slots, &queries, &tokens, &heads, &rotary_dim, &query_scale, &epsilon,
                          parse_cache, &cache, &dtype))
        return false;
    call = RotaryArgs{pointer<const void>(qkv), pointer<const float>(query_norm), pointer<const float>(key_norm),
                      pointer<const float>(cos_sin), pointer<const int64_t>(positions), pointer<const int64_t>(slots),
                      pointer<float>(queries), tokens, heads, rotary_dim, query_scale, epsilon, cache,
                      static_cast<Dtype>(dtype), threads};
    return true;
}

bool parse_attention(PyObject* args, Call& call, int& level) {
    unsigned long long queries, out, block_tables, query_starts, kv_lengths;
    long long sequences, table_stride, heads, window;
    float softcap;
    int threads, dtype;
    CacheView cache;
    if (!PyArg_ParseTuple(args, "iiKKKKKLLLLfO&i", &level, &threads, &queries, &out, &block_tables, &query_starts,
                          &kv_lengths, &sequences, &table_stride, &heads, &window, &softcap, parse_cache, &cache,
                          &dtype))
        return false;
    call = AttentionArgs{pointer<const float>(queries), pointer<void>(out), pointer<const int32_t>(block_tables),
                         pointer<const int32_t>(query_starts), pointer<const int32_t>(kv_lengths), sequences,
                         table_stride, heads, window, softcap, cache, static_cast<Dtype>(dtype), threads};
    return true;
}

// (data, panels, depth, format)
int parse_weight(PyObject* object, void* result) {
    unsigned long long data;
    long long panels, depth;
    int format;
    if (!PyArg_ParseTuple(object, "KLLi", &data, &panels, &depth, &format)) return 0;
    *static_cast<PackedWeight*>(result) = {pointer<const void>(data), panels, depth, static_cast<Format>(format)};
    return 1;
}

bool parse_matmul(PyObject* args, Call& call, int& level) {
    unsigned long long x, bias, out;
    long long rows, columns;
    int threads, dtype, finish;
    PackedWeight weight;
    if (!PyArg_ParseTuple(args, "iiKLO&KKLii", &level, &threads, &x, &rows, parse_weight, &weight, &bias, &out,
                          &columns, &dtype, &finish))
        return false;
    call = MatmulArgs{pointer<const void>(x), rows, weight, pointer<const float>(bias), pointer<void>(out), columns,
                      static_cast<Dtype>(dtype), static_cast<Finish>(finish), threads};
    return true;
}

bool parse_embed(PyObject* args, Call& call, int& level) {
    unsigned long long ids, out;
    long long tokens;
    float scale;
    int threads;
    PackedWeight weight;
    if (!PyArg_ParseTuple(args, "iiKLO&Kf", &level, &threads, &ids, &tokens, parse_weight, &weight, &out, &scale))
        return false;
    call = EmbedArgs{pointer<const int64_t>(ids), tokens, weight, pointer<float>(out), scale, threads};
    return true;
}

bool parse_gather(PyObject* args, Call& call, int& level) {
    unsigned long long x, indices, out;
    long long count, size;
    if (!PyArg_ParseTuple(args, "iKKKLL", &level, &x, &indices, &out, &count, &size)) return false;
    call = GatherArgs{pointer<const float>(x), pointer<const int64_t>(indices), pointer<float>(out), count, size};
    return true;
}

template <Parser parse>
PyObject* call_now(PyObject*, PyObject* args) {
    Call call;
    int level;
    if (!parse(args, call, level)) return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    bool enough;
    Py_BEGIN_ALLOW_THREADS;
    enough = make(*table, call);
    Py_END_ALLOW_THREADS;
    return none_or_no_memory(enough);
}

struct ProgramObject {
    PyObject_HEAD;
    Program* program;
};

Program& program_of(PyObject* self) { return *reinterpret_cast<ProgramObject*>(self)->program; }

template <Parser parse>
PyObject* note(PyObject* self, PyObject* args) {
    Call call;
    int level;
    if (!parse(args, call, level)) return nullptr;
    try {
        program_of(self).add(call);
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

PyObject* run(PyObject* self, PyObject* args) {
    unsigned long long token_ids, positions, slots, query_starts, kv_lengths, block_tables, logit_tokens;
    long long tokens, sequences, table_stride, draws;
    Py_ssize_t first, count;
    int level;
    if (!PyArg_ParseTuple(args, "iKKKKKKKLLLLnn", &level, &token_ids, &positions, &slots, &query_starts, &kv_lengths,
                          &block_tables, &logit_tokens, &tokens, &sequences, &table_stride, &draws, &first, &count))
        return nullptr;
    if (first < 0 || count < 1) {
        PyErr_SetString(PyExc_ValueError, "run needs first >= 0 and count >= 1");
        return nullptr;
    }
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    StepBatch batch = {pointer<const int64_t>(token_ids), pointer<const int64_t>(positions),
                       pointer<const int64_t>(slots), pointer<const int32_t>(query_starts),
                       pointer<const int32_t>(kv_lengths), pointer<const int32_t>(block_tables),
                       pointer<const int64_t>(logit_tokens), tokens, sequences, table_stride, draws};
    bool enough;
    std::size_t next = static_cast<std::size_t>(first);
    Py_BEGIN_ALLOW_THREADS;
    enough = program_of(self).run(*table, batch, next, static_cast<std::size_t>(count));
    Py_END_ALLOW_THREADS;
    return enough ? PyLong_FromSize_t(next) : PyErr_NoMemory();
}

PyObject* make_program(PyTypeObject* type, PyObject*, PyObject*) {
    PyObject* self = type->tp_alloc(type, 0);
    if (self == nullptr) return nullptr;
    Program* program = new (std::nothrow) Program;
    reinterpret_cast<ProgramObject*>(self)->program = program;
    if (program != nullptr) return self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

void free_program(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<ProgramObject*>(self)->program;
    type->tp_free(self);
    Py_DECREF(type);
}

PyMethodDef functions[] = {
    {"norm", call_now<parse_norm>, METH_VARARGS, "RMSNorm; see NormArgs in kernels.h."},
    {"rotary", call_now<parse_rotary>, METH_VARARGS, "Rotary embedding and cache write; see RotaryArgs in kernels.h."},
    {"attention", call_now<parse_attention>, METH_VARARGS, "Paged attention; see AttentionArgs in kernels.h."},
    {"matmul", call_now<parse_matmul>, METH_VARARGS, "Product with a packed weight; see MatmulArgs in matmul.h."},
    {"embed", call_now<parse_embed>, METH_VARARGS, "Rows of a packed weight; see EmbedArgs in matmul.h."},
    {"gather", call_now<parse_gather>, METH_VARARGS, "Rows by index; see GatherArgs in kernels.h."},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef methods[] = {
    {"norm", note<parse_norm>, METH_VARARGS, "Note a call of norm."},
    {"rotary", note<parse_rotary>, METH_VARARGS, "Note a call of rotary."},
    {"attention", note<parse_attention>, METH_VARARGS, "Note a call of attention."},
    {"matmul", note<parse_matmul>, METH_VARARGS, "Note a call of matmul."},
    {"embed", note<parse_embed>, METH_VARARGS, "Note a call of embed."},
    {"gather", note<parse_gather>, METH_VARARGS, "Note a call of gather."},
    {"run", run, METH_VARARGS, "Make noted calls for a batch; see StepBatch and Program::run in program.h."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(make_program)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_program)},
    {Py_tp_methods, methods},
    {Py_tp_doc, const_cast<char*>("A forward pass, noted down once and run for every step.")},
    {0, nullptr},
};

PyType_Spec specification = {"ringcast.gpu._kernels.Program", sizeof(ProgramObject), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

const Kernels* checked_table(int level) {
#ifdef RINGCAST_X86
    if (level == 3) return &avx512bf16_kernels;
    if (level == 2) return &avx512_kernels;
    if (level == 1) return &avx2_kernels;
#endif
    if (level == 0) return &portable_kernels;
    PyErr_Format(PyExc_ValueError, "this build has no kernels of level %d", level);
    return nullptr;
}

bool add_program_bindings(PyObject* module) {
    if (PyModule_AddFunctions(module, functions) != 0) return false;
    PyObject* type = PyType_FromSpec(&specification);
    if (type == nullptr) return false;
    int added = PyModule_AddObjectRef(module, "Program", type);
    Py_DECREF(type);
    return added == 0;
}

}  // namespace ringcast
