// Tells log-probabilities: of the token that stands at a position, of the most likely ones, and the token's rank.

#include <atomic>
#include <cmath>
#include <new>

#include "crew.h"
#include "ranking.h"
#include "sampling.h"

namespace ringcast {
namespace {

void tell_row(const LogprobArgs& a, int64_t index) {
    const float* logits = a.logits + a.rows[index] * a.vocab;
    Softmax sum = a.softmax(logits, a.vocab, 1.0f);
    double normalizer = sum.largest + std::log(sum.total);
    int32_t* token_ids = a.token_ids + index * a.width;
    float* values = a.logprobs + index * a.width;
    auto tell = [&](int64_t place, int64_t token) {
        token_ids[place] = static_cast<int32_t>(token);
        values[place] = static_cast<float>(logits[token] - normalizer);
    };
    float own = logits[a.tokens[index]];
    int32_t better = 0;
    for (int64_t token = 0; token < a.vocab; ++token) better += logits[token] > own ? 1 : 0;
    a.ranks[index] = better + 1;
    tell(0, a.tokens[index]);
    if (a.width == 1) return;
    Ranking ranking = best_tokens(logits, a.vocab, a.width - 1);
    for (int64_t place = 1; place < a.width; ++place) tell(place, ranking[place - 1]);
}

}  // namespace

bool logprobs(const LogprobArgs& a) {
    std::atomic<bool> enough_memory{true};
    auto tell = [&](int64_t index, int) {
        try {
            tell_row(a, index);
        } catch (const std::bad_alloc&) {  // may not leave the parallel loop
            enough_memory = false;
        }
    };
    parallel_for(a.count, a.threads, tell);
    return enough_memory;
}

}  // namespace ringcast
