// Tells log-probabilities: of the token that stands at a position, of the most likely ones, and the token's rank.

#include <new>

#include "ranking.h"
#include "sampling.h"

namespace ringcast {
namespace {

void tell_row(const LogprobArgs& a, int64_t index) {
    const float* logits = a.logits + a.rows[index] * a.vocab;
    double normalizer = a.normalizers[index];
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
    Ranking ranking(logits, a.vocab);
    ranking.sort_first(a.width - 1);
    for (int64_t place = 1; place < a.width; ++place) tell(place, ranking[place - 1]);
}

}  // namespace

bool logprobs(const LogprobArgs& a) {
    bool enough_memory = true;
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads) if (a.count > 1)
    for (int64_t index = 0; index < a.count; ++index) {
        try {
            tell_row(a, index);
        } catch (const std::bad_alloc&) {  // may not leave the parallel loop
#pragma omp atomic write
            enough_memory = false;
        }
    }
    return enough_memory;
}

}  // namespace ringcast
