// Applies the rules of a request to its logits, in place: vLLM's order, without its masks over the batch.
//     1. allowed ids: the others become -infinity        4. bias added
//     2. last tokens of bad words -> -infinity           5. repetition penalty over prompt and output (CTRL, arXiv 1909.05858)
//     3. banned ids -> -infinity                         6. frequency and presence penalty over the output (OpenAI's formula)
// A bad word counts as begun only in the output. One row costs its lists and its history, and a pass over the vocabulary only
// where ids are allowed by list.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <vector>

#include "crew.h"
#include "sampling.h"

namespace ringcast {
namespace {

struct Range {
    const int32_t* begin;
    const int32_t* end;
    int64_t size() const { return end - begin; }
};

Range list(const Lists& lists, int64_t index) {
    return {lists.values + lists.starts[index], lists.values + lists.starts[index + 1]};
}

void keep_allowed(Range ids, float* logits, int64_t vocab) {
    std::vector<float> kept;
    kept.reserve(static_cast<size_t>(ids.size()));
    for (const int32_t* id = ids.begin; id != ids.end; ++id) kept.push_back(logits[*id]);
    std::fill(logits, logits + vocab, -INFINITY);
    for (int64_t i = 0; i < ids.size(); ++i) logits[ids.begin[i]] = kept[static_cast<size_t>(i)];
}

void ban_words(const AdjustArgs& a, int64_t row, Range output, float* logits) {
    for (int64_t word = a.word_starts[row]; word < a.word_starts[row + 1]; ++word) {
        Range ids = list(a.words, word);
        int64_t before = ids.size() - 1;
        if (before <= output.size() && std::equal(ids.begin, ids.end - 1, output.end - before))
            logits[ids.end[-1]] = -INFINITY;
    }
}

void penalise(const AdjustArgs& a, int64_t row, Range history, Range output, float* logits) {
    float repetition = a.repetition[row], frequency = a.frequency[row], presence = a.presence[row];
    if (repetition != 1.0f) {
        std::vector<int32_t> seen(history.begin, history.end);
        std::sort(seen.begin(), seen.end());
        seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
        for (int32_t id : seen) logits[id] = logits[id] > 0.0f ? logits[id] / repetition : logits[id] * repetition;
    }
    if (frequency != 0.0f || presence != 0.0f) {
        std::vector<int32_t> drawn(output.begin, output.end);
        std::sort(drawn.begin(), drawn.end());
        for (size_t i = 0, next; i < drawn.size(); i = next) {
            for (next = i + 1; next < drawn.size() && drawn[next] == drawn[i];) ++next;
            logits[drawn[i]] -= frequency * static_cast<float>(next - i) + presence;
        }
    }
}

void adjust_row(const AdjustArgs& a, int64_t row) {
    float* logits = a.logits + row * a.vocab;
    Range history = list(a.history, row), output = {history.begin + a.prompt_tokens[row], history.end};
    if (list(a.allowed, row).size() > 0) keep_allowed(list(a.allowed, row), logits, a.vocab);
    ban_words(a, row, output, logits);
    Range banned = list(a.banned, row);
    for (const int32_t* id = banned.begin; id != banned.end; ++id) logits[*id] = -INFINITY;
    for (int64_t i = a.biased.starts[row]; i < a.biased.starts[row + 1]; ++i)
        logits[a.biased.values[i]] += a.biases[i];
    penalise(a, row, history, output, logits);
}

}  // namespace

bool adjust(const AdjustArgs& a) {
    std::atomic<bool> enough_memory{true};
    auto adjust_one = [&](int64_t row, int) {
        try {
            adjust_row(a, row);
        } catch (const std::bad_alloc&) {  // may not leave the parallel loop
            enough_memory = false;
        }
    };
    parallel_for(a.rows, a.threads, adjust_one);
    return enough_memory;
}

}  // namespace ringcast
