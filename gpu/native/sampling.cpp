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
#include <cmath>
#include <new>

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

// How many of the best `allowed` tokens reach the probability `top_p` among themselves: the fewest, at least one.
int64_t nucleus_size(Ranking& ranking, int64_t allowed, double top_p, const float* logits, double largest,
                     double temperature) {
    if (top_p >= 1.0) return allowed;
    auto weight = [&](int64_t token) { return std::exp((logits[token] - largest) / temperature); };
    double total = 0.0;
    if (allowed == ranking.size()) {
        for (int64_t token = 0; token < allowed; ++token) total += weight(token);
    } else {
        for (int64_t rank = 0; rank < allowed; ++rank) total += weight(ranking[rank]);
    }
    double reached = 0.0;
    for (int64_t rank = 0; rank < allowed; ++rank) {
        if (rank >= ranking.sorted()) ranking.sort_first(std::min(allowed, std::max<int64_t>(256, 4 * rank)));
        reached += weight(ranking[rank]);
        if (reached >= top_p * total) return rank + 1;
    }
    return allowed;
}

int64_t draw_row(const SampleArgs& a, int64_t index) {
    const float* logits = a.logits + a.rows[index] * a.vocab;
    double temperature = a.temperature[index], top_p = a.top_p[index];
    int64_t top_k = a.top_k[index] > 0 ? std::min(a.top_k[index], a.vocab) : a.vocab;
    int64_t best = std::max_element(logits, logits + a.vocab) - logits;
    double largest = logits[best];
    // Tokens below this are less likely than min_p times the likeliest; all rules keep a head of the ranking, so they combine.
    double cutoff = a.min_p[index] > 0.0 ? std::log(a.min_p[index]) : -INFINITY;
    auto scaled = [&](int64_t token) { return (logits[token] - largest) / temperature; };
    Draw draw(a.seeds[index], a.positions[index]);
    // The likeliest token first: it sets the mark that spares the others their logarithms.
    draw.offer(best, 0.0);
    if (top_k == a.vocab && top_p >= 1.0) {
        for (int64_t token = 0; token < a.vocab; ++token)
            if (scaled(token) >= cutoff) draw.offer(token, scaled(token));
        return draw.token();
    }
    if (a.min_p[index] > 0.0)
        top_k = std::min(top_k, static_cast<int64_t>(std::count_if(logits, logits + a.vocab, [&](float logit) {
                             return (logit - largest) / temperature >= cutoff;
                         })));
    Ranking ranking(logits, a.vocab);
    if (top_k < a.vocab) ranking.sort_first(top_k);
    int64_t kept = nucleus_size(ranking, top_k, top_p, logits, largest, temperature);
    ranking.sort_first(kept);
    for (int64_t rank = 0; rank < kept; ++rank) draw.offer(ranking[rank], scaled(ranking[rank]));
    return draw.token();
}

}  // namespace

bool sample(const SampleArgs& a) {
    bool enough_memory = true;
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads) if (a.draws > 1)
    for (int64_t index = 0; index < a.draws; ++index) {
        try {
            a.out[index] = draw_row(a, index);
        } catch (const std::bad_alloc&) {  // may not leave the parallel loop
#pragma omp atomic write
            enough_memory = false;
        }
    }
    return enough_memory;
}

}  // namespace ringcast
