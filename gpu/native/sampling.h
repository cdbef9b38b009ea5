// What is done to logits outside the model: rules applied, tokens drawn, log-probabilities told. Sizes and pointers are
// trusted here, and so are token ids: gpu/kernels.py and gpu/sampling_rules.py check them.
#pragma once

#include "kernels.h"

namespace ringcast {

// How to draw one token per row of logits. See sampling.cpp for the order of operations.
struct SampleArgs {
    const float* logits;        // [*, vocab]; row i of the draw is row `rows[i]` of it
    const int64_t* rows;        // [draws]
    const int64_t* best;        // [draws]: the row's largest logit, the first of equals
    const double* temperature;  // [draws], > 0
    const double* top_p;        // [draws], in (0, 1]
    const int64_t* top_k;       // [draws], 0 keeps all
    const double* min_p;        // [draws], in [0, 1]
    const int64_t* seeds;       // [draws]
    const int64_t* positions;   // [draws]: index in the sequence of the token being drawn
    int64_t* out;               // [draws]
    int64_t draws, vocab;
    decltype(Kernels::softmax) softmax;
    int threads;
};

bool sample(const SampleArgs&);  // false: no memory

// Lists of differing length, one after the other: list i is values[starts[i]] to values[starts[i + 1]].
struct Lists {
    const int64_t* starts;
    const int32_t* values;
};

// What a request's rule does to its logits before the draw; row i of every array belongs to row i of `logits`.
// See logits.cpp for the order of operations.
struct AdjustArgs {
    float* logits;                 // [rows, vocab], changed in place
    Lists allowed;                 // [rows]: nothing else may be drawn; an empty list allows all
    const int64_t* word_starts;    // [rows + 1]: which of `words` are the row's
    Lists words;                   // [words of all rows]: the last token may not follow the others
    Lists banned;                  // [rows]: may not be drawn
    Lists biased;                  // [rows]
    const float* biases;           // of the values of `biased`
    Lists history;                 // [rows]: the tokens so far, the prompt's first
    const int64_t* prompt_tokens;  // [rows]: how many of them are the prompt's
    const float* repetition;       // [rows], 1 is none
    const float* frequency;        // [rows], 0 is none
    const float* presence;         // [rows], 0 is none
    int64_t rows, vocab;
    int threads;
};

bool adjust(const AdjustArgs&);  // false: no memory

// The `width - 1` most likely tokens of a row behind the one that was drawn there, and its rank.
struct LogprobArgs {
    const float* logits;        // [*, vocab]
    const int64_t* rows;        // [count]
    const int64_t* tokens;      // [count]: what was drawn
    int32_t* token_ids;         // [count, width]
    float* logprobs;            // [count, width]
    int32_t* ranks;             // [count]: 1 + the number of tokens that are more likely
    int64_t count, vocab, width;
    decltype(Kernels::softmax) softmax;
    int threads;
};

bool logprobs(const LogprobArgs&);  // false: no memory

}  // namespace ringcast
