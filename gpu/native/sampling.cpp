// Draws one token per row of logits: temperature, then min-p, then top-k, then top-p, then a Gumbel-max draw over what is kept.
//
// The noise of a token is a pure function of (seed, position, token id), in 64-bit integers, so every device gives the same:
//     mix(z):  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;  z = (z ^ z >> 27) * 0x94D049BB133111EB;  z ^ z >> 31
//     key   = mix(mix(seed + G) + position * G)              G = 0x9E3779B97F4A7C15
//     bits  = mix(key + (token + 1) * G) >> 12               52 bits, so that adding a half is exact
//     noise = -log(-log((bits + 0.5) / 2**52))
// That is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), seeded with `key` and read at
// the token's place. The token with the largest logit / temperature + noise is drawn (ties: the lowest id); it is distributed
// as the softmax over the kept tokens.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <utility>
#include <vector>

#include "crew.h"
#include "ranking.h"
#include "sampling.h"

namespace ringcast {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

// Draws among tokens that are offered one by one.
class Draw {
  public:
    Draw(int64_t seed, int64_t position)
        : key_(mix(mix(static_cast<uint64_t>(seed) + kGolden) + static_cast<uint64_t>(position) * kGolden)) {}

    void offer(int64_t token, double scaled_logit) {
        uint64_t bits = mix(key_ + (static_cast<uint64_t>(token) + 1) * kGolden) >> 12;
        // With u = (bits + 0.5) / 2**52 the noise is below -log(1 - u), and 1 - u >= 2**(magnitude - 53): most tokens end here,
        // without a logarithm.
        int magnitude = 63 - __builtin_clzll((uint64_t{1} << 52) - bits);
        if (scaled_logit + 0.6931472 * (53 - magnitude) < best_) return;
        double noise = -std::log(-std::log((static_cast<double>(bits) + 0.5) * 0x1p-52));
        double score = scaled_logit + noise;
        if (score > best_ || (score == best_ && token < token_)) {
            best_ = score;
            token_ = token;
        }
    }

    int64_t token() const { return token_; }

  private:
    uint64_t key_;
    double best_ = -INFINITY;
    int64_t token_ = 0;
};

// One draw: which tokens are kept, and what they weigh.
class Row {
  public:
    Row(const SampleArgs& a, int64_t index)
        : logits_(a.logits + a.rows[index] * a.vocab),
          vocab_(a.vocab),
          best_(a.best[index]),
          largest_(logits_[best_]),
          temperature_(a.temperature[index]),
          min_p_(a.min_p[index]),
          cutoff_(min_p_ > 0.0 ? std::log(min_p_) : -INFINITY),
          top_p_(a.top_p[index]),
          top_k_(a.top_k[index] > 0 ? std::min(a.top_k[index], a.vocab) : a.vocab),
          draw_(a.seeds[index], a.positions[index]),
          softmax_(a.softmax) {}

    int64_t drawn() {
        // The likeliest token first: it sets the mark that spares the others their logarithms.
        draw_.offer(best_, 0.0);
        if (top_k_ == vocab_ && top_p_ >= 1.0) {
            for (int64_t token = 0; token < vocab_; ++token)
                if (scaled(token) >= cutoff_) draw_.offer(token, scaled(token));
            return draw_.token();
        }
        Ranking ranking = candidates();
        int64_t kept = nucleus_size(ranking);
        ranking.sort_first(kept);
        for (int64_t rank = 0; rank < kept; ++rank) draw_.offer(ranking[rank], scaled(ranking[rank]));
        return draw_.token();
    }

  private:
    double scaled(int64_t token) const { return (logits_[token] - largest_) / temperature_; }

    // What min_p and top_k keep. Both keep a head of the ranking, so they combine; without either, what top_p could keep.
    Ranking candidates() {
        if (top_k_ < vocab_) {
            Ranking ranking = best_tokens(logits_, vocab_, top_k_);
            ranking.sort_first(top_k_);
            std::vector<int64_t> kept;
            for (int64_t rank = 0; rank < top_k_ && scaled(ranking[rank]) >= cutoff_; ++rank) kept.push_back(ranking[rank]);
            total_ = sum_of(kept);
            return Ranking(logits_, std::move(kept));
        }
        std::vector<int64_t> kept;
        if (min_p_ > 0.0) {
            for (int64_t token = 0; token < vocab_; ++token)
                if (scaled(token) >= cutoff_) kept.push_back(token);
            total_ = sum_of(kept);
        } else {
            // All tokens lighter than this together weigh less than what top_p leaves out, so it leaves them all out.
            total_ = softmax_(logits_, vocab_, static_cast<float>(1.0 / temperature_)).total;
            double lightest = std::log(0.99 * (1.0 - top_p_) * total_ / static_cast<double>(vocab_));
            float limit = static_cast<float>(largest_ + temperature_ * lightest);
            for (int64_t token = 0; token < vocab_; ++token)
                if (logits_[token] >= limit) kept.push_back(token);
        }
        return Ranking(logits_, std::move(kept));
    }

    double sum_of(const std::vector<int64_t>& tokens) const {
        double total = 0.0;
        for (int64_t token : tokens) total += std::exp(scaled(token));
        return total;
    }

    // How many of the best candidates reach the probability top_p among all that are kept: the fewest, at least one.
    int64_t nucleus_size(Ranking& ranking) {
        if (top_p_ >= 1.0) return ranking.size();
        double reached = 0.0;
        for (int64_t rank = 0; rank < ranking.size(); ++rank) {
            if (rank >= ranking.sorted()) ranking.sort_first(std::max<int64_t>(64, 4 * rank));
            reached += std::exp(scaled(ranking[rank]));
            if (reached >= top_p_ * total_) return rank + 1;
        }
        return ranking.size();
    }

    const float* logits_;
    int64_t vocab_, best_;
    double largest_, temperature_, min_p_, cutoff_, top_p_;
    int64_t top_k_;
    Draw draw_;
    decltype(SampleArgs::softmax) softmax_;
    double total_ = 0.0;  // weight of the tokens that top_p chooses from
};

}  // namespace

bool sample(const SampleArgs& a) {
    std::atomic<bool> enough_memory{true};
    auto draw_row = [&](int64_t index, int) {
        try {
            a.out[index] = Row(a, index).drawn();
        } catch (const std::bad_alloc&) {  // may not leave the parallel loop
            enough_memory = false;
        }
    };
    parallel_for(a.draws, a.threads, draw_row);
    return enough_memory;
}

}  // namespace ringcast
