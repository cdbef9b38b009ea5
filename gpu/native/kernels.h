// What the CPU kernels are asked to do, and the table through which a processor's best version is called.
// Knows neither Python nor torch. Sizes and pointers are trusted here: gpu/kernels.py checks them.
#pragma once

#include <cstdint>

#include "matmul.h"

namespace ringcast {

// out = x / rms(x) * weight, row by row; or that is added to `out`, which is float32 then.
struct NormArgs {
    const float* x;       // [rows, size]
    const float* weight;  // [size]
    void* out;            // [rows, size] in `dtype`
    int64_t rows, size;
    float epsilon;
    bool add;
    Dtype dtype;
    int threads;
};

// out[i] = row `indices[i]` of x.
struct GatherArgs {
    const float* x;          // [*, size]
    const int64_t* indices;  // [count]
    float* out;              // [count, size]
    int64_t count, size;
};

enum class Activation : int { silu = 0, gelu_tanh = 1 };

// One layer of the cache, in blocks of `block_size` tokens. Keys lie [block, kv_head, head_dim, token], so that the scores
// of 16 neighbouring tokens are one vector; values lie [block, kv_head, token, head_dim].
struct CacheView {
    void* keys;
    void* values;
    int64_t kv_heads, head_dim, block_size;
    Dtype dtype;
};

// Norms each head of queries and keys (if there are weights for it), rotates their first `rotary_dim` dimensions (HF's halves),
// scales the queries, stores keys and values in the cache.
struct RotaryArgs {
    const void* qkv;           // [tokens, (heads + 2 * kv_heads) * head_dim] in `dtype`
    const float* query_norm;   // [head_dim]: weight of the RMSNorm, or null
    const float* key_norm;     // the same
    const float* cos_sin;      // [positions, rotary_dim]: cosines, then sines
    const int64_t* positions;  // [tokens]
    const int64_t* slots;      // [tokens]: block * block_size + place in the block
    float* queries;            // [tokens, heads, head_dim]
    int64_t tokens, heads, rotary_dim;
    float query_scale, epsilon;
    CacheView cache;
    Dtype dtype;
    int threads;
};

// Softmax attention of every query over the last `window` tokens of its sequence up to itself, or over all if that is 0.
// With a `softcap` > 0 a score s becomes softcap * tanh(s / softcap).
struct AttentionArgs {
    const float* queries;         // [tokens, heads, head_dim], scaled
    void* out;                    // [tokens, heads * head_dim] in `dtype`
    const int32_t* block_tables;  // [sequences, table_stride]
    const int32_t* query_starts;  // [sequences + 1]: the queries of a sequence are its last tokens
    const int32_t* kv_lengths;    // [sequences]: tokens in the cache, the queries' own included
    int64_t sequences, table_stride, heads, window;
    float softcap;
    CacheView cache;
    Dtype dtype;
    int threads;
};

// values = cap * tanh(values / cap), in place.
struct SoftcapArgs {
    float* values;  // [count]
    int64_t count;
    float cap;
    int threads;
};

// Of a row of logits: the largest, and the sum of exp(scale * (logit - largest)).
struct Softmax {
    float largest;
    double total;
};

struct Kernels {
    void (*norm)(const NormArgs&);
    void (*rotary)(const RotaryArgs&);
    bool (*attention)(const AttentionArgs&);  // false: no memory for the scores
    bool (*matmul)(const MatmulArgs&);        // false: no memory for the sums of the activations
    void (*embed)(const EmbedArgs&);
    void (*softcap)(const SoftcapArgs&);
    Softmax (*softmax)(const float* logits, int64_t vocab, float scale);
};

// One table per instruction set, each compiled in a file of its own; null where this build has none.
extern const Kernels portable_kernels;
#ifdef RINGCAST_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels avx512bf16_kernels;
#endif

}  // namespace ringcast
