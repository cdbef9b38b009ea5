// Matrix products with packed weights: what they are asked to do. Part of kernels.h; trusts its numbers as that does.
//
// A weight [columns, depth] is packed in groups of 64 columns (the last one may be narrower, in steps of 16; missing columns
// are zero), group after group; gpu/packing.py writes this layout. Within a group of `width` columns:
//     float32   [depth][width]                   float
//     bfloat16  [depth / 2][width][2]            bfloat16: neighbours along the depth are one 32-bit item
//     q4        [depth / 32] blocks of 32 deep:  scale[width], offset[width] (float16), then [4][width] 32-bit items of eight
//               4-bit numbers; number (2 i + j) of an item lies at bit 16 j + 4 i; weight = scale * number + offset
//     q8        [depth / 32] blocks of 32 deep:  scale[width] (float16), then [16][width][2] int8; weight = scale * number
#pragma once

#include <cstdint>

namespace ringcast {

enum class Dtype : int { float32 = 0, bfloat16 = 1 };
enum class Format : int { float32 = 0, bfloat16 = 1, q4 = 2, q8 = 3 };

struct PackedWeight {
    const void* data;
    int64_t panels;  // of 16 columns
    int64_t depth;   // even for bfloat16, a multiple of 32 for q4 and q8
    Format format;
};

// What becomes of the sums of a row.
enum class Finish : int {
    store = 0,  // out[row][column] = sum + bias
    add = 1,    // out[row][column] += sum + bias; out is float32
    silu = 2,   // out[row][column] = silu(gate) * up: even panels of the weight hold gates, odd ones the ups of the panel before
    gelu = 3,   // the same with GELU's tanh form
};

// out = finish(x * weight^T). Every sum is accumulated in float32 by one chain along the depth, whatever the number of rows,
// the tile and the threads: no bit of a row depends on its company.
struct MatmulArgs {
    const void* x;  // [rows, depth]; float32 for a float32 weight, else bfloat16
    int64_t rows;
    PackedWeight weight;
    const float* bias;  // [panels * 16], or null; only for store and add
    void* out;          // [rows, columns] in `dtype`
    int64_t columns;    // of `out`
    Dtype dtype;
    Finish finish;
    int threads;
};

// out[token] = row ids[token] of the weight, times `scale`.
struct EmbedArgs {
    const int64_t* ids;  // [tokens]: columns of the packed weight
    int64_t tokens;
    PackedWeight weight;
    float* out;  // [tokens, depth]
    float scale;
    int threads;
};

}  // namespace ringcast
