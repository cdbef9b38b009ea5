// The order of a row's tokens: larger logits first, among equals the lower id. Used by sampling.cpp and logprobs.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace ringcast {

class Before {
  public:
    explicit Before(const float* logits) : logits_(logits) {}
    bool operator()(int64_t a, int64_t b) const {
        return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
    }

  private:
    const float* logits_;
};

// Some tokens of a row, brought into order as far as that is asked for.
class Ranking {
  public:
    Ranking(const float* logits, std::vector<int64_t> tokens) : before_(logits), tokens_(std::move(tokens)) {}

    // Puts the best `count` tokens into order; costs only what earlier calls have not done.
    void sort_first(int64_t count) {
        count = std::min(count, size());
        if (count <= sorted_) return;
        auto from = tokens_.begin() + sorted_, to = tokens_.begin() + count;
        if (to != tokens_.end()) std::nth_element(from, to, tokens_.end(), before_);
        std::sort(from, to, before_);
        sorted_ = count;
    }

    int64_t operator[](int64_t rank) const { return tokens_[static_cast<size_t>(rank)]; }
    int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
    int64_t sorted() const { return sorted_; }

  private:
    Before before_;
    std::vector<int64_t> tokens_;
    int64_t sorted_ = 0;
};

inline std::vector<int64_t> all_tokens(int64_t vocab) {
    std::vector<int64_t> tokens(static_cast<size_t>(vocab));
    std::iota(tokens.begin(), tokens.end(), int64_t{0});
    return tokens;
}

// The best `count` tokens of a row, in order: few are found by a heap in one pass over the logits, more by sorting.
inline Ranking best_tokens(const float* logits, int64_t vocab, int64_t count) {
    constexpr int64_t kHeapLimit = 256;
    if (count > kHeapLimit) {
        Ranking ranking(logits, all_tokens(vocab));
        ranking.sort_first(count);
        return ranking;
    }
    Before before(logits);
    std::vector<int64_t> best = all_tokens(count);
    std::make_heap(best.begin(), best.end(), before);  // its front is the worst of them
    for (int64_t token = count; token < vocab; ++token) {
        if (count == 0 || logits[token] <= logits[best.front()]) continue;
        std::pop_heap(best.begin(), best.end(), before);
        best.back() = token;
        std::push_heap(best.begin(), best.end(), before);
    }
    std::sort_heap(best.begin(), best.end(), before);
    Ranking ranking(logits, std::move(best));
    ranking.sort_first(count);
    return ranking;
}

}  // namespace ringcast
