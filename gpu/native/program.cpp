#include "program.h"

#include <cstring>

namespace ringcast {
namespace {

struct Maker {
    const Kernels& kernels;

    bool operator()(const NormArgs& a) const { return kernels.norm(a), true; }
    bool operator()(const RotaryArgs& a) const { return kernels.rotary(a), true; }
    bool operator()(const AttentionArgs& a) const { return kernels.attention(a); }
    bool operator()(const MatmulArgs& a) const { return kernels.matmul(a); }
    bool operator()(const EmbedArgs& a) const { return kernels.embed(a), true; }
    bool operator()(const GatherArgs& a) const {
        for (int64_t i = 0; i < a.count; ++i)
            std::memcpy(a.out + i * a.size, a.x + a.indices[i] * a.size, static_cast<size_t>(a.size) * sizeof(float));
        return true;
    }
};

// Puts the step's arrays and rows into a call.
struct Filler {
    const StepBatch& batch;
    int64_t rows;

    void operator()(NormArgs& a) const { a.rows = rows; }
    void operator()(MatmulArgs& a) const { a.rows = rows; }
    void operator()(EmbedArgs& a) const {
        a.ids = batch.token_ids;
        a.tokens = rows;
    }
    void operator()(RotaryArgs& a) const {
        a.positions = batch.positions;
        a.slots = batch.slots;
        a.tokens = rows;
    }
    void operator()(AttentionArgs& a) const {
        a.block_tables = batch.block_tables;
        a.query_starts = batch.query_starts;
        a.kv_lengths = batch.kv_lengths;
        a.sequences = batch.sequences;
        a.table_stride = batch.table_stride;
    }
    void operator()(GatherArgs& a) const {
        a.indices = batch.logit_tokens;
        a.count = batch.draws;
    }
};

}  // namespace

bool make(const Kernels& kernels, const Call& call) { return std::visit(Maker{kernels}, call); }

bool Program::run(const Kernels& kernels, const StepBatch& batch, std::size_t& next, std::size_t count) const {
    const std::size_t first = next;
    int64_t rows = batch.tokens;
    for (std::size_t number = 0; number < calls_.size(); ++number) {
        if (std::holds_alternative<GatherArgs>(calls_[number])) rows = batch.draws;
        if (rows == 0) break;
        if (number < first) continue;
        if (number - first == count) {
            next = number;
            return true;
        }
        Call call = calls_[number];
        std::visit(Filler{batch, rows}, call);
        if (!make(kernels, call)) return false;
    }
    next = 0;
    return true;
}

}  // namespace ringcast
