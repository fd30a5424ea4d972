// Vectors of numbers in fp32, as wide as this processor's.

#pragma once

#include <cstring>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef float Eight __attribute__((vector_size(32)));

template <class T> T at(const void* place) {
    T value;
    std::memcpy(&value, place, sizeof value);
    return value;
}

// sum + a b. Compilers choose between one rounding and two by how a loop looks, so it is chosen here.
template <class V> V add_product(V sum, V a, V b) {
#ifdef __FMA__
#ifdef __AVX512F__
    if constexpr (sizeof(V) == 64) return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
    else
#endif
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return sum + a * b;
#endif
}

// All of a vector's numbers, joined: its halves, their halves, and so on.
template <class V, class Join> float joined(V v, Join join) {
#ifdef __AVX__
#ifdef __AVX512F__
    if constexpr (sizeof(V) == 64)
        return joined(join((Eight)_mm512_castps512_ps256((__m512)v),
                           (Eight)_mm512_castps512_ps256(_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0x4e))), join);
    else
#endif
    {
        __m128 four = join(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
        __m128 two = join(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(join(two, _mm_movehdup_ps(two)));
    }
#else
    float parts[sizeof(V) / 4];
    std::memcpy(parts, &v, sizeof v);
    for (int half = sizeof(V) / 8; half; half /= 2)
        for (int lane = 0; lane < half; lane++) parts[lane] = join(parts[lane], parts[lane + half]);
    return parts[0];
#endif
}

template <class V> float total(V v) {
    return joined(v, [](auto a, auto b) { return a + b; });
}

// The largest number of a vector.
template <class V> float largest(V v) {
    return joined(v, [](auto a, auto b) { return a < b ? b : a; });
}

}  // namespace
