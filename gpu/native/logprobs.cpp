// Tells log-probabilities: of the token that stands at a position, of the most likely ones, and the token's rank.

#include <new>

#include "ranking.h"
#include "sampling.h"

namespace ringcast {
namespace {

// Up to so many tokens are found by a heap in one pass over the logits, more by sorting.
constexpr int64_t kHeapLimit = 64;

// The best `count` tokens in order: larger logits first, among equals the lower id.
std::vector<int64_t> best_tokens(const float* logits, int64_t vocab, int64_t count) {
    std::vector<int64_t> best(static_cast<size_t>(count));
    if (count > kHeapLimit) {
        Ranking ranking(logits, vocab);
        ranking.sort_first(count);
        for (int64_t rank = 0; rank < count; ++rank) best[static_cast<size_t>(rank)] = ranking[rank];
        return best;
    }
    auto before = [logits](int64_t a, int64_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    std::iota(best.begin(), best.end(), int64_t{0});
    std::make_heap(best.begin(), best.end(), before);  // its front is the worst of them
    for (int64_t token = count; token < vocab; ++token) {
        if (logits[token] <= logits[best.front()]) continue;
        std::pop_heap(best.begin(), best.end(), before);
        best.back() = token;
        std::push_heap(best.begin(), best.end(), before);
    }
    std::sort_heap(best.begin(), best.end(), before);
    return best;
}

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
    int64_t place = 1;
    for (int64_t token : best_tokens(logits, a.vocab, a.width - 1)) tell(place++, token);
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
