// A forward pass as a list of kernel calls: noted down once, run for every step.
//
// What changes from step to step are the batch's arrays and the number of rows. Calls before the gather have a row for each
// token, those behind it one for each draw. All other pointers stay: whoever notes the calls keeps that memory alive.
#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include "kernels.h"

namespace ringcast {

// What a step computes; the fields are those of `Batch` in gpu/batch.py.
struct StepBatch {
    const int64_t* token_ids;
    const int64_t* positions;
    const int64_t* slots;
    const int32_t* query_starts;
    const int32_t* kv_lengths;
    const int32_t* block_tables;
    const int64_t* logit_tokens;
    int64_t tokens, sequences, table_stride, draws;
};

using Call = std::variant<NormArgs, RotaryArgs, AttentionArgs, MatmulArgs, EmbedArgs, GatherArgs>;

// Makes the call; false: no memory.
bool make(const Kernels& kernels, const Call& call);

class Program {
  public:
    void add(const Call& call) { calls_.push_back(call); }

    // Makes the calls from `next` on for `batch`, `count` at most. `next` is then the call after them, 0 behind the last.
    // False: no memory, the cache may be half written.
    bool run(const Kernels& kernels, const StepBatch& batch, std::size_t& next, std::size_t count) const;

  private:
    std::vector<Call> calls_;
};

}  // namespace ringcast
