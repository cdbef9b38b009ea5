// The order of a row's tokens by their logits. Used by sampling.cpp and logprobs.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace ringcast {

// One row's logits and their order: larger first, among equals the lower id.
class Ranking {
  public:
    Ranking(const float* logits, int64_t vocab) : logits_(logits), ids_(static_cast<size_t>(vocab)) {
        std::iota(ids_.begin(), ids_.end(), int64_t{0});
    }

    // Puts the best `count` tokens into order; costs only what earlier calls have not done.
    void sort_first(int64_t count) {
        count = std::min(count, static_cast<int64_t>(ids_.size()));
        if (count <= sorted_) return;
        auto before = [this](int64_t a, int64_t b) {
            return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
        };
        auto from = ids_.begin() + sorted_, to = ids_.begin() + count;
        if (to != ids_.end()) std::nth_element(from, to, ids_.end(), before);
        std::sort(from, to, before);
        sorted_ = count;
    }

    int64_t operator[](int64_t rank) const { return ids_[static_cast<size_t>(rank)]; }
    int64_t size() const { return static_cast<int64_t>(ids_.size()); }
    int64_t sorted() const { return sorted_; }

  private:
    const float* logits_;
    std::vector<int64_t> ids_;
    int64_t sorted_ = 0;
};

}  // namespace ringcast
