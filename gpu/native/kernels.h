// What the CPU kernels are asked to do, and the table through which a processor's best version is called.
// Knows neither Python nor torch. Sizes and pointers are trusted here: gpu/kernels.py checks them.
#pragma once

#include <cstdint>

namespace ringcast {

enum class Dtype : int { float32 = 0, bfloat16 = 1 };

// residual += delta (if there is one); out = residual / rms(residual) * weight, row by row.
struct NormArgs {
    const void* delta;    // [rows, size] in `dtype`, or null
    float* residual;      // [rows, size]
    const float* weight;  // [size]
    void* out;            // [rows, size] in `dtype`
    int64_t rows, size;
    float epsilon;
    Dtype dtype;
    int threads;
};

// out = silu(first half of the row) * second half.
struct GateArgs {
    const void* gate_up;  // [rows, 2 * size] in `dtype`
    void* out;            // [rows, size] in `dtype`
    int64_t rows, size;
    Dtype dtype;
    int threads;
};

// One layer of the cache, in blocks of `block_size` tokens. Keys lie [block, kv_head, head_dim, token], so that the scores
// of 16 neighbouring tokens are one vector; values lie [block, kv_head, token, head_dim].
struct CacheView {
    void* keys;
    void* values;
    int64_t kv_heads, head_dim, block_size;
    Dtype dtype;
};

// Rotates queries and keys (HF's halves), scales the queries by 1/sqrt(head_dim), stores keys and values in the cache.
struct RotaryArgs {
    const void* qkv;           // [tokens, (heads + 2 * kv_heads) * head_dim] in `dtype`
    const float* cos_sin;      // [positions, head_dim]: cosines, then sines
    const int64_t* positions;  // [tokens]
    const int64_t* slots;      // [tokens]: block * block_size + place in the block
    float* queries;            // [tokens, heads, head_dim]
    int64_t tokens, heads;
    CacheView cache;
    Dtype dtype;
    int threads;
};

// Softmax attention of every query over the tokens of its sequence up to itself.
struct AttentionArgs {
    const float* queries;         // [tokens, heads, head_dim], scaled
    void* out;                    // [tokens, heads * head_dim] in `dtype`
    const int32_t* block_tables;  // [sequences, table_stride]
    const int32_t* query_starts;  // [sequences + 1]: the queries of a sequence are its last tokens
    const int32_t* kv_lengths;    // [sequences]: tokens in the cache, the queries' own included
    int64_t sequences, table_stride, heads;
    CacheView cache;
    Dtype dtype;
    int threads;
};

struct Kernels {
    void (*norm)(const NormArgs&);
    void (*gate)(const GateArgs&);
    void (*rotary)(const RotaryArgs&);
    bool (*attention)(const AttentionArgs&);  // false: no memory for the scores
};

// One table per instruction set, each compiled in a file of its own; null where this build has none.
extern const Kernels portable_kernels;
#ifdef RINGCAST_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

// How to draw one token per row of logits. See sampling.cpp for the order of operations.
struct SampleArgs {
    const float* logits;        // [*, vocab]; row i of the draw is row `rows[i]` of it
    const int64_t* rows;        // [draws]
    const double* temperature;  // [draws], > 0
    const double* top_p;        // [draws], in (0, 1]
    const int64_t* top_k;       // [draws], 0 keeps all
    const int64_t* seeds;       // [draws]
    const int64_t* positions;   // [draws]: index in the sequence of the token being drawn
    int64_t* out;               // [draws]
    int64_t draws, vocab;
    int threads;
};

bool sample(const SampleArgs&);  // false: no memory

}  // namespace ringcast
