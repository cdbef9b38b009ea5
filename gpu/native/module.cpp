// The Python module ringcast.gpu._kernels: thin functions that take data pointers as ints, release the GIL and call a kernel.
// Those of a forward pass are in program_bindings.cpp. gpu/kernels.py and its neighbours check every size and type before;
// this file trusts its numbers.
#include "bindings.h"
#include "sampling.h"

using namespace ringcast;

namespace {

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

PyObject* sample_tokens(PyObject*, PyObject* args) {
    unsigned long long logits, rows, best, temperature, top_p, top_k, min_p, seeds, positions, out;
    long long draws, vocab;
    int level, threads;
    if (!PyArg_ParseTuple(args, "iiKKKKKKKKKKLL", &level, &threads, &logits, &rows, &best, &temperature, &top_p, &top_k,
                          &min_p, &seeds, &positions, &out, &draws, &vocab))
        return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    SampleArgs a = {pointer<const float>(logits), pointer<const int64_t>(rows), pointer<const int64_t>(best),
                    pointer<const double>(temperature), pointer<const double>(top_p), pointer<const int64_t>(top_k),
                    pointer<const double>(min_p), pointer<const int64_t>(seeds), pointer<const int64_t>(positions),
                    pointer<int64_t>(out), draws, vocab, table->softmax, threads};
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
    unsigned long long logits, rows, tokens, token_ids, logprob, ranks;
    long long count, vocab, width;
    int level, threads;
    if (!PyArg_ParseTuple(args, "iiKKKKKKLLL", &level, &threads, &logits, &rows, &tokens, &token_ids, &logprob, &ranks,
                          &count, &vocab, &width))
        return nullptr;
    const Kernels* table = checked_table(level);
    if (table == nullptr) return nullptr;
    LogprobArgs a = {pointer<const float>(logits), pointer<const int64_t>(rows), pointer<const int64_t>(tokens),
                     pointer<int32_t>(token_ids), pointer<float>(logprob), pointer<int32_t>(ranks), count, vocab, width,
                     table->softmax, threads};
    bool enough;
    Py_BEGIN_ALLOW_THREADS;
    enough = logprobs(a);
    Py_END_ALLOW_THREADS;
    return none_or_no_memory(enough);
}

PyMethodDef methods[] = {
    {"best_level", best_level, METH_NOARGS, "0 portable, 1 AVX2, 2 AVX-512, 3 with BF16: the best this processor can run."},
    {"softcap", softcap, METH_VARARGS, "cap * tanh(x / cap); see SoftcapArgs in kernels.h."},
    {"sample", sample_tokens, METH_VARARGS, "Token draws; see SampleArgs in sampling.h."},
    {"adjust", adjust_logits, METH_VARARGS, "Rules applied to logits; see AdjustArgs in sampling.h."},
    {"logprobs", token_logprobs, METH_VARARGS, "Log-probabilities; see LogprobArgs in sampling.h."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", "CPU kernels.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernels(void) {
    PyObject* module = PyModule_Create(&definition);
    if (module != nullptr && !add_program_bindings(module)) Py_CLEAR(module);
    return module;
}
