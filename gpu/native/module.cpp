// The Python module ringcast.gpu._kernels: thin functions that take data pointers as ints, release the GIL and call a kernel.
// gpu/kernels.py is the only caller and checks every size and type before; this file trusts its numbers.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"
#include "sampling.h"

using namespace ringcast;

namespace {

// A data pointer that travelled as a Python int.
template <class T>
T* pointer(unsigned long long address) {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

const Kernels* table_of(int level) {
#ifdef RINGCAST_X86
    if (level == 3) return &avx512bf16_kernels;
    if (level == 2) return &avx512_kernels;
    if (level == 1) return &avx2_kernels;
#endif
    return level == 0 ? &portable_kernels : nullptr;
}

// The table for `level`, or null with a ValueError set.
const Kernels* checked_table(int level) {
    const Kernels* table = table_of(level);
    if (table == nullptr) PyErr_Format(PyExc_ValueError, "this build has no kernels of level %d", level);
    return table;
}

PyObject* none_or_no_memory(bool enough) {
    if (!enough) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject* best_level(PyObject*, PyObject*) {
    long level = 0;
#ifdef RINGCAST_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) level = 1;
    if (level == 1 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        level = 2;
    if (level == 2 && __builtin_cpu_supports("avx512bf16")) level = 3;
#endif
    return PyLong_FromLong(level);
}

PyObject* norm(PyObject*, PyObject* args) {
    unsigned long long delta, residual, weight, out;
    long long rows, size;
    float epsilon;
    int level, threads, dtype;
    if (!PyArg_ParseTuple(args, "iiKKKKLLfi", &level, &threads, &delta, &residual, &weight, &out, &rows, &size,
                          &epsilon, &dtype))
        return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    NormArgs a = {pointer<const void>(delta), pointer<float>(residual), pointer<const float>(weight),
                  pointer<void>(out), rows, size, epsilon, static_cast<Dtype>(dtype), threads};
    Py_BEGIN_ALLOW_THREADS;
    table->norm(a);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject* gate(PyObject*, PyObject* args) {
    unsigned long long gate_up, out;
    long long rows, size;
    int level, threads, activation, dtype;
    if (!PyArg_ParseTuple(args, "iiKKLLii", &level, &threads, &gate_up, &out, &rows, &size, &activation, &dtype))
        return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    GateArgs a = {pointer<const void>(gate_up), pointer<void>(out), rows, size, static_cast<Activation>(activation),
                  static_cast<Dtype>(dtype), threads};
    Py_BEGIN_ALLOW_THREADS;
    table->gate(a);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
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

PyObject* rotary(PyObject*, PyObject* args) {
    unsigned long long qkv, query_norm, key_norm, cos_sin, positions, slots, queries;
    long long tokens, heads, rotary_dim;
    float query_scale, epsilon;
    int level, threads, dtype;
    CacheView cache;
    if (!PyArg_ParseTuple(args, "iiKKKKKKKLLLffO&i", &level, &threads, &qkv, &query_norm, &key_norm, &cos_sin,
                          &positions, &slots, &queries, &tokens, &heads, &rotary_dim, &query_scale, &epsilon,
                          parse_cache, &cache, &dtype))
        return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    RotaryArgs a = {pointer<const void>(qkv), pointer<const float>(query_norm), pointer<const float>(key_norm),
                    pointer<const float>(cos_sin), pointer<const int64_t>(positions), pointer<const int64_t>(slots),
                    pointer<float>(queries), tokens, heads, rotary_dim, query_scale, epsilon, cache,
                    static_cast<Dtype>(dtype), threads};
    Py_BEGIN_ALLOW_THREADS;
    table->rotary(a);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject* attention(PyObject*, PyObject* args) {
    unsigned long long queries, out, block_tables, query_starts, kv_lengths;
    long long sequences, table_stride, heads, window;
    float softcap;
    int level, threads, dtype;
    CacheView cache;
    if (!PyArg_ParseTuple(args, "iiKKKKKLLLLfO&i", &level, &threads, &queries, &out, &block_tables, &query_starts,
                          &kv_lengths, &sequences, &table_stride, &heads, &window, &softcap, parse_cache, &cache,
                          &dtype))
        return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    AttentionArgs a = {pointer<const float>(queries), pointer<void>(out), pointer<const int32_t>(block_tables),
                       pointer<const int32_t>(query_starts), pointer<const int32_t>(kv_lengths), sequences,
                       table_stride, heads, window, softcap, cache, static_cast<Dtype>(dtype), threads};
    bool enough;
    Py_BEGIN_ALLOW_THREADS;
    enough = table->attention(a);
    Py_END_ALLOW_THREADS;
    return none_or_no_memory(enough);
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

PyObject* matmul(PyObject*, PyObject* args) {
    unsigned long long x, bias, out;
    long long rows, columns;
    int level, threads, dtype, finish;
    PackedWeight weight;
    if (!PyArg_ParseTuple(args, "iiKLO&KKLii", &level, &threads, &x, &rows, parse_weight, &weight, &bias, &out, &columns,
                          &dtype, &finish))
        return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    MatmulArgs a = {pointer<const void>(x), rows, weight, pointer<const float>(bias), pointer<void>(out), columns,
                    static_cast<Dtype>(dtype), static_cast<Finish>(finish), threads};
    bool enough;
    Py_BEGIN_ALLOW_THREADS;
    enough = table->matmul(a);
    Py_END_ALLOW_THREADS;
    return none_or_no_memory(enough);
}

PyObject* embed(PyObject*, PyObject* args) {
    unsigned long long ids, out;
    long long tokens;
    float scale;
    int level, threads;
    PackedWeight weight;
    if (!PyArg_ParseTuple(args, "iiKLO&Kf", &level, &threads, &ids, &tokens, parse_weight, &weight, &out, &scale))
        return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    EmbedArgs a = {pointer<const int64_t>(ids), tokens, weight, pointer<float>(out), scale, threads};
    Py_BEGIN_ALLOW_THREADS;
    table->embed(a);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject* softcap(PyObject*, PyObject* args) {
    unsigned long long values;
    long long count;
    float cap;
    int level, threads;
    if (!PyArg_ParseTuple(args, "iiKLf", &level, &threads, &values, &count, &cap)) return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    SoftcapArgs a = {pointer<float>(values), count, cap, threads};
    Py_BEGIN_ALLOW_THREADS;
    table->softcap(a);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject* normalizers(PyObject*, PyObject* args) {
    unsigned long long logits, rows, out;
    long long count, vocab;
    int level, threads;
    if (!PyArg_ParseTuple(args, "iiKKKLL", &level, &threads, &logits, &rows, &out, &count, &vocab)) return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    NormalizerArgs a = {pointer<const float>(logits), pointer<const int64_t>(rows), pointer<double>(out), count, vocab,
                        threads};
    Py_BEGIN_ALLOW_THREADS;
    table->normalizers(a);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject* sample_tokens(PyObject*, PyObject* args) {
    unsigned long long logits, rows, temperature, top_p, top_k, min_p, seeds, positions, out;
    long long draws, vocab;
    int threads;
    if (!PyArg_ParseTuple(args, "iKKKKKKKKKLL", &threads, &logits, &rows, &temperature, &top_p, &top_k, &min_p, &seeds,
                          &positions, &out, &draws, &vocab))
        return nullptr;
    SampleArgs a = {pointer<const float>(logits), pointer<const int64_t>(rows), pointer<const double>(temperature),
                    pointer<const double>(top_p), pointer<const int64_t>(top_k), pointer<const double>(min_p),
                    pointer<const int64_t>(seeds), pointer<const int64_t>(positions), pointer<int64_t>(out), draws,
                    vocab, threads};
    bool enough;
    Py_BEGIN_ALLOW_THREADS;
    enough = sample(a);
    Py_END_ALLOW_THREADS;
    return none_or_no_memory(enough);
}

// (starts, values)
int parse_lists(PyObject* object, void* result) {
    unsigned long long starts, values;
    if (!PyArg_ParseTuple(object, "KK", &starts, &values)) return 0;
    *static_cast<Lists*>(result) = {pointer<const int64_t>(starts), pointer<const int32_t>(values)};
    return 1;
}

PyObject* adjust_logits(PyObject*, PyObject* args) {
    unsigned long long logits, word_starts, biases, prompt_tokens, repetition, frequency, presence;
    long long rows, vocab;
    int threads;
    Lists allowed, words, banned, biased, history;
    if (!PyArg_ParseTuple(args, "iKO&KO&O&O&KO&KKKKLL", &threads, &logits, parse_lists, &allowed, &word_starts,
                          parse_lists, &words, parse_lists, &banned, parse_lists, &biased, &biases, parse_lists,
                          &history, &prompt_tokens, &repetition, &frequency, &presence, &rows, &vocab))
        return nullptr;
    AdjustArgs a = {pointer<float>(logits), allowed, pointer<const int64_t>(word_starts), words, banned, biased,
                    pointer<const float>(biases), history, pointer<const int64_t>(prompt_tokens),
                    pointer<const float>(repetition), pointer<const float>(frequency), pointer<const float>(presence),
                    rows, vocab, threads};
    bool enough;
    Py_BEGIN_ALLOW_THREADS;
    enough = adjust(a);
    Py_END_ALLOW_THREADS;
    return none_or_no_memory(enough);
}

PyObject* token_logprobs(PyObject*, PyObject* args) {
    unsigned long long logits, rows, tokens, normalizers, token_ids, logprob, ranks;
    long long count, vocab, width;
    int threads;
    if (!PyArg_ParseTuple(args, "iKKKKKKKLLL", &threads, &logits, &rows, &tokens, &normalizers, &token_ids, &logprob,
                          &ranks, &count, &vocab, &width))
        return nullptr;
    LogprobArgs a = {pointer<const float>(logits), pointer<const int64_t>(rows), pointer<const int64_t>(tokens),
                     pointer<const double>(normalizers), pointer<int32_t>(token_ids), pointer<float>(logprob),
                     pointer<int32_t>(ranks), count, vocab, width, threads};
    bool enough;
    Py_BEGIN_ALLOW_THREADS;
    enough = logprobs(a);
    Py_END_ALLOW_THREADS;
    return none_or_no_memory(enough);
}

PyMethodDef methods[] = {
    {"best_level", best_level, METH_NOARGS, "0 portable, 1 AVX2, 2 AVX-512, 3 with BF16: the best this processor can run."},
    {"norm", norm, METH_VARARGS, "RMSNorm with residual; see NormArgs in kernels.h."},
    {"gate", gate, METH_VARARGS, "SiLU(gate) * up; see GateArgs in kernels.h."},
    {"rotary", rotary, METH_VARARGS, "Rotary embedding and cache write; see RotaryArgs in kernels.h."},
    {"attention", attention, METH_VARARGS, "Paged attention; see AttentionArgs in kernels.h."},
    {"matmul", matmul, METH_VARARGS, "Product with a packed weight; see MatmulArgs in matmul.h."},
    {"embed", embed, METH_VARARGS, "Rows of a packed weight; see EmbedArgs in matmul.h."},
    {"softcap", softcap, METH_VARARGS, "cap * tanh(x / cap); see SoftcapArgs in kernels.h."},
    {"normalizers", normalizers, METH_VARARGS, "Log of the sum of exponentials; see NormalizerArgs in kernels.h."},
    {"sample", sample_tokens, METH_VARARGS, "Token draws; see SampleArgs in sampling.h."},
    {"adjust", adjust_logits, METH_VARARGS, "Rules applied to logits; see AdjustArgs in sampling.h."},
    {"logprobs", token_logprobs, METH_VARARGS, "Log-probabilities; see LogprobArgs in sampling.h."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", "CPU kernels.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&definition); }
