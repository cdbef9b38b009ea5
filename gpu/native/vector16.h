// Sixteen floats at a time, by GCC's and Clang's vector extension: one AVX-512 register, two of AVX2, four of SSE or NEON.
// Included by kernels.inc only; everything is local to the file that includes it, since each is compiled for another CPU.
#pragma once

#include <cstdint>
#include <cstring>

#define RINGCAST_INLINE static inline __attribute__((always_inline))

namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

constexpr int64_t kLanes = 16;
constexpr int64_t kMaxHeadDim = 1024;  // gpu/kernels.py refuses larger attention heads

struct BFloat16 {
    uint16_t bits;
};

RINGCAST_INLINE void load(const float* from, Floats& to) { std::memcpy(&to, from, sizeof to); }

RINGCAST_INLINE void load(const BFloat16* from, Floats& to) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    Words words = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(&to, &words, sizeof to);
}

RINGCAST_INLINE void store(const Floats& from, float* to) { std::memcpy(to, &from, sizeof from); }

// Rounds to nearest, ties to even; NaN stays NaN.
RINGCAST_INLINE void store(const Floats& from, BFloat16* to) {
    Words words;
    std::memcpy(&words, &from, sizeof words);
    Words rounded = (words + 0x7FFF + ((words >> 16) & 1)) >> 16;
    rounded = from == from ? rounded : (words >> 16) | 0x40;
    Halves halves = __builtin_convertvector(rounded, Halves);
    std::memcpy(to, &halves, sizeof halves);
}

RINGCAST_INLINE float to_float(float value) { return value; }

RINGCAST_INLINE float to_float(BFloat16 value) {
    uint32_t word = uint32_t{value.bits} << 16;
    float result;
    std::memcpy(&result, &word, sizeof result);
    return result;
}

RINGCAST_INLINE void from_float(float value, float* to) { *to = value; }

RINGCAST_INLINE void from_float(float value, BFloat16* to) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    uint32_t rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16;
    to->bits = static_cast<uint16_t>(value == value ? rounded : (word >> 16) | 0x40);
}

// The first `count` items, the rest zero; never reads behind them.
template <class T>
RINGCAST_INLINE void load_first(const T* from, int64_t count, Floats& to) {
    T padded[kLanes] = {};
    std::memcpy(padded, from, static_cast<size_t>(count) * sizeof(T));
    load(padded, to);
}

template <class T>
RINGCAST_INLINE void store_first(const Floats& from, int64_t count, T* to) {
    T padded[kLanes];
    store(from, padded);
    std::memcpy(to, padded, static_cast<size_t>(count) * sizeof(T));
}

template <class T>
RINGCAST_INLINE void load_first_or_all(const T* from, int64_t count, Floats& to) {
    count == kLanes ? load(from, to) : load_first(from, count, to);
}

template <class T>
RINGCAST_INLINE void store_first_or_all(const Floats& from, int64_t count, T* to) {
    count == kLanes ? store(from, to) : store_first(from, count, to);
}

// In a fixed order, whatever the instruction set.
RINGCAST_INLINE float sum_lanes(const Floats& value) {
    float sums[kLanes];
    std::memcpy(sums, &value, sizeof sums);
    for (int width = 8; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    return sums[0];
}

RINGCAST_INLINE float max_lanes(const Floats& value) {
    float largest = value[0];
    for (int lane = 1; lane < kLanes; ++lane) largest = value[lane] > largest ? value[lane] : largest;
    return largest;
}

// e**x to about 2 ulp: 2**n times a polynomial on [-ln2/2, ln2/2] (Cephes, expf). Below -87 it gives 0, above 88 e**88.
RINGCAST_INLINE void exponential(const Floats& input, Floats& out) {
    Floats x = input < -87.0f ? Floats{} - 87.0f : input;
    x = x > 88.0f ? Floats{} + 88.0f : x;
    Floats scaled = x * 1.44269504088896341f;
    scaled += scaled < 0.0f ? Floats{} - 0.5f : Floats{} + 0.5f;
    Ints whole = __builtin_convertvector(scaled, Ints);
    Floats n = __builtin_convertvector(whole, Floats);
    Floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    Ints exponent = (whole + 127) << 23;
    Floats power;
    std::memcpy(&power, &exponent, sizeof power);
    out = input < -87.0f ? Floats{} : p * power;
}

// tanh(x) to about 2 ulp: an odd polynomial below 0.625, above by way of e**2x (Cephes, tanhf).
RINGCAST_INLINE void hyperbolic_tangent(const Floats& input, Floats& out) {
    Floats x = input < 0.0f ? -input : input, square = x * x, power;
    Floats p = square * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    p = p * square * x + x;
    exponential(x + x, power);
    Floats size = x < 0.625f ? p : 1.0f - 2.0f / (power + 1.0f);
    out = input < 0.0f ? -size : size;
}

}  // namespace
