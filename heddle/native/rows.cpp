// Products y = x wᵀ + b of few rows x, for decoding: every weight is read once, at the rate of the memory.
//
// Libraries make their products for many rows: they rearrange the weights, or compute one row on one thread. Here each output is a
// dot product along a row of w as it lies in memory. Four kinds of weights:
//
//   fp32, bf16   multiplied in fp32
//   int8         groups of 32 neighbours: scale · q, q from -127 to 127
//   int4         the same with q from -8 to 7; 32 bytes have two groups, the first in their lower halves
//
// With int8 and int4, each group of x is rounded to scale · q, too, q from -127 to 127, and the products of a group are summed as
// integers, exactly. Sums over a row run in the same order for any number of rows, so a row's result does not depend on the others.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int GROUP = 32;
constexpr int ROWS = 4;          // of x, multiplied with a row of w that was read once
constexpr int64_t TILE = 32;     // rows of x that stay in a cache while all of a thread's rows of w are multiplied
constexpr int64_t SHARES = 8;    // parts of a product for each thread, so that one that is interrupted leaves work to the others
constexpr int64_t ALONE = 1 << 15;  // multiplications below which one thread is faster

typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int32_t Sums __attribute__((vector_size(32)));
typedef int8_t Bytes __attribute__((vector_size(GROUP)));

struct BFloat { uint16_t bits; };

float number(const BFloat* x) {
    uint32_t bits = uint32_t(x->bits) << 16;
    return at<float>(&bits);
}
float number(const void* x, bool narrow, int64_t i) {
    return narrow ? number(static_cast<const BFloat*>(x) + i) : static_cast<const float*>(x)[i];
}
void store(BFloat* y, float value) {
    uint32_t bits = at<uint32_t>(&value);
    // To the nearest, a tie to the even one; a NaN stays a NaN.
    y->bits = std::isnan(value) ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

Floats vector(const float* w) { return at<Floats>(w); }
Floats vector(const BFloat* w) {
#if defined(__AVX512F__)
    return (Floats)((Words)_mm512_cvtepu16_epi32(at<__m256i>(w)) << 16);
#elif defined(__AVX2__)
    return (Floats)((Words)_mm256_cvtepu16_epi32(at<__m128i>(w)) << 16);
#else
    return (Floats)(__builtin_convertvector(at<Halves>(w), Words) << 16);
#endif
}

// Sums of four neighbouring products each, of numbers without a sign and numbers with one.
Sums dot_unsigned(Bytes w, Bytes x) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (Sums)_mm256_dpbusd_epi32(_mm256_setzero_si256(), (__m256i)w, (__m256i)x);
#elif defined(__AVXVNNI__)
    return (Sums)_mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), (__m256i)w, (__m256i)x);
#elif defined(__AVX2__)
    return (Sums)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)w, (__m256i)x), _mm256_set1_epi16(1));
#else
    Sums sums = {};
    for (int lane = 0; lane < 8; lane++)
        for (int i = 4 * lane; i < 4 * lane + 4; i++) sums[lane] += int(uint8_t(w[i])) * int(x[i]);
    return sums;
#endif
}

// The same where both have a sign: that of w goes to x.
Sums dot_signed(Bytes w, Bytes x) {
#ifdef __AVX2__
    return dot_unsigned((Bytes)_mm256_abs_epi8((__m256i)w), (Bytes)_mm256_sign_epi8((__m256i)x, (__m256i)w));
#else
    return dot_unsigned(w < 0 ? -w : w, w < 0 ? -x : x);
#endif
}

Eight eight(const float* x) { return at<Eight>(x); }
Eight eight(const BFloat* x) {
#ifdef __AVX2__
    return (Eight)(Sums)_mm256_slli_epi32(_mm256_cvtepu16_epi32(at<__m128i>(x)), 16);
#else
    typedef uint16_t Narrow __attribute__((vector_size(16)));
    return (Eight)(__builtin_convertvector(at<Narrow>(x), Sums) << 16);
#endif
}

// What a product reads and writes. x is in fp32 here; D is a multiple of GROUP if the weights are integers.
struct Input {
    int64_t n, D;
    int threads;
    std::vector<float> x;
    std::vector<int8_t> q;      // of the groups of x
    std::vector<float> scales;  // of the groups of x, filled up to eight with zeros
    std::vector<float> sums;    // the same, of the numbers of a group after rounding
    int64_t groups = 0;         // in a row of the last two
};

// The nearest integer of a small number, of two equally near ones the even one; simpler for compilers than std::nearbyint.
float nearest(float value) {
    constexpr float many = 12582912;  // numbers of this size have no fraction
    return value + many - many;
}

// A group of x as scale · q: writes the integers and returns the scale. With a number that is not finite, the scale is NaN.
template <class T> float round_group(const float* group, T* integers) {
    float largest = 0, zero = 0;
    for (int i = 0; i < GROUP; i++) largest = std::max(largest, std::fabs(group[i])), zero += 0 * group[i];
    float scale = std::max(largest / 127, 1e-30f);
    for (int i = 0; i < GROUP; i++) integers[i] = zero == 0 ? T(nearest(group[i] / scale)) : T(0);
    return scale + zero;
}

Input read(const void* x, bool narrow, int64_t n, int64_t D, bool integers, int threads) {
    int64_t groups = (D + GROUP - 1) / GROUP, width = integers ? groups * GROUP : D;
    Input in{n, width, threads, std::vector<float>(n * width), {}, {}, {}};
    if (integers) {
        in.q.resize(n * width);
        in.groups = (groups + 7) / 8 * 8;
        in.scales.resize(n * in.groups);
        in.sums.resize(n * in.groups);
    }
#pragma omp parallel for num_threads(threads) if (threads > 1 && n * D >= ALONE)
    for (int64_t r = 0; r < n; r++) {
        float* row = in.x.data() + r * width;
        for (int64_t i = 0; i < D; i++) row[i] = number(x, narrow, r * D + i);
        if (!integers) continue;
        for (int64_t g = 0; g < groups; g++) {
            int8_t* q = in.q.data() + r * width + g * GROUP;
            float scale = in.scales[r * in.groups + g] = round_group(row + g * GROUP, q);
            int sum = 0;
            for (int i = 0; i < GROUP; i++) sum += q[i];
            in.sums[r * in.groups + g] = scale * float(sum);
        }
    }
    return in;
}

// The first D numbers of a row of x, rounded in groups.
void round_row(const void* x, bool narrow, int64_t start, int64_t D, float* out) {
    for (int64_t first = 0; first < D; first += GROUP) {
        int64_t count = std::min<int64_t>(GROUP, D - first);
        float group[GROUP] = {}, integers[GROUP];
        for (int64_t i = 0; i < count; i++) group[i] = number(x, narrow, start + first + i);
        float scale = round_group(group, integers);
        for (int64_t i = 0; i < count; i++) out[first + i] = integers[i] * scale;
    }
}

// The first D numbers of a row of weights in groups of 8 or 4 bits.
void unpack_row(const int8_t* w, const BFloat* scales, bool four, int64_t D, float* out) {
    for (int64_t first = 0; first < D; first += GROUP) {
        int64_t g = first / GROUP, count = std::min<int64_t>(GROUP, D - first);
        const int8_t* place = w + (four ? g / 2 : g) * GROUP;
        float scale = number(scales + g), numbers[GROUP];
        if (!four) for (int i = 0; i < GROUP; i++) numbers[i] = scale * float(place[i]);
        else if (g % 2) for (int i = 0; i < GROUP; i++) numbers[i] = scale * float((uint8_t(place[i]) >> 4) - 8);
        else for (int i = 0; i < GROUP; i++) numbers[i] = scale * float((uint8_t(place[i]) & 15) - 8);
        std::memcpy(out + first, numbers, count * sizeof(float));
    }
}

struct Output {
    void* y;
    const void* bias;
    int64_t F;
    bool narrow, narrow_bias;

    void put(int64_t row, int64_t f, float value) const {
        if (bias) value += number(bias, narrow_bias, f);
        if (narrow) store(static_cast<BFloat*>(y) + row * F + f, value);
        else static_cast<float*>(y)[row * F + f] = value;
    }
};

// The first `count` numbers at a place, and zeros.
template <class T> Floats part(const T* place, int64_t count) {
    T numbers[LANES] = {};
    std::memcpy(numbers, place, count * sizeof(T));
    return vector(numbers);
}

// N rows of x times M rows of w.
template <class W, int N, int M> void block(const float* x, int64_t D, const W* w, float (&out)[N][M]) {
    Floats sums[N][M] = {};
    int64_t i = 0;
    for (; i + LANES <= D; i += LANES) {
        Floats weights[M];
        for (int m = 0; m < M; m++) weights[m] = vector(w + m * D + i);
        for (int r = 0; r < N; r++) {
            Floats inputs = vector(x + r * D + i);
            for (int m = 0; m < M; m++) sums[r][m] = add_product(sums[r][m], inputs, weights[m]);
        }
    }
    for (int r = 0; r < N; r++)
        for (int m = 0; m < M; m++) {
            if (i < D) sums[r][m] = add_product(sums[r][m], part(x + r * D + i, D - i), part(w + m * D + i, D - i));
            out[r][m] = total(sums[r][m]);
        }
}

template <class W> struct Plain {
    const Input& in;
    const W* w;

    template <int N, int M> void rows(int64_t row, int64_t f, float (&out)[N][M]) const {
        block<W, N, M>(in.x.data() + row * in.D, in.D, w + f * in.D, out);
    }
};

// Weights in 8 or 4 bits. Those in 4 bits are stored plus 8, so 8 times the sum of x is subtracted at the end.
template <int BITS> struct Grouped {
    const Input& in;
    const int8_t* w;
    const BFloat* scales;

    // Sums of products of a pair of groups, the second one only if there is one.
    template <int N> void pair(const int8_t* row, int64_t row_of_x, int64_t g, bool second, Sums (&products)[N][2]) const {
        typedef uint16_t Pairs __attribute__((vector_size(GROUP)));
        Bytes one, other = {};
        if constexpr (BITS == 8) {
            one = at<Bytes>(row + g * GROUP);
            if (second) other = at<Bytes>(row + (g + 1) * GROUP);
        } else {
            Bytes both = at<Bytes>(row + g / 2 * GROUP);
            one = both & 15, other = (Bytes)((Pairs)both >> 4) & 15;
        }
        for (int r = 0; r < N; r++) {
            const int8_t* x = in.q.data() + (row_of_x + r) * in.D + g * GROUP;
            products[r][0] = BITS == 8 ? dot_signed(one, at<Bytes>(x)) : dot_unsigned(one, at<Bytes>(x));
            Bytes next = second ? at<Bytes>(x + GROUP) : Bytes{};
            products[r][1] = BITS == 8 ? dot_signed(other, next) : dot_unsigned(other, next);
        }
    }

    template <int N, int M> void rows(int64_t row, int64_t f, float (&out)[N][M]) const {
        int64_t groups = in.D / GROUP, stride = BITS == 8 ? in.D : (groups + 1) / 2 * GROUP;
        for (int m = 0; m < M; m++) {
            const int8_t* weights = w + (f + m) * stride;
            const BFloat* of_weights = scales + (f + m) * groups;
            Eight sums[N][2] = {}, offsets[N] = {};
            for (int64_t first = 0; first < groups; first += 8) {
                int64_t count = std::min<int64_t>(8, groups - first);
                BFloat last[8] = {};
                if (count < 8) std::memcpy(last, of_weights + first, count * sizeof(BFloat));
                Eight of_w = eight(count < 8 ? last : of_weights + first);
                float both[N][8];  // scales of eight groups of w and x
                for (int r = 0; r < N; r++) {
                    const int64_t place = (row + r) * in.groups + first;
                    Eight product = of_w * eight(in.scales.data() + place);
                    std::memcpy(both[r], &product, sizeof product);
                    if (BITS == 4) offsets[r] = add_product(offsets[r], of_w, eight(in.sums.data() + place));
                }
                for (int64_t i = 0; i < count; i += 2) {
                    Sums products[N][2];
                    pair<N>(weights, row, first + i, i + 1 < count, products);
                    for (int r = 0; r < N; r++)
                        for (int half = 0; half < 2; half++) {
                            Eight numbers = __builtin_convertvector(products[r][half], Eight);
                            sums[r][half] = add_product(sums[r][half], numbers, both[r][i + half] - Eight{});
                        }
                }
            }
            for (int r = 0; r < N; r++) out[r][m] = total(sums[r][0] + sums[r][1]) - (BITS == 4 ? 8 * total(offsets[r]) : 0);
        }
    }
};

template <int N, int M, class Product> void put_block(const Product& product, int64_t row, int64_t f, const Output& out) {
    float sums[N][M];
    product.template rows<N, M>(row, f, sums);
    for (int r = 0; r < N; r++)
        for (int m = 0; m < M; m++) out.put(row + r, f + m, sums[r][m]);
}

template <int M, class Product> void put_rows(const Product& product, int64_t row, int64_t end, int64_t f, const Output& out) {
    for (; row + ROWS <= end; row += ROWS) put_block<ROWS, M>(product, row, f, out);
    for (; row < end; row++) put_block<1, M>(product, row, f, out);
}

template <int M, class Product> void put_all(const Product& product, const Output& out) {
    int64_t n = product.in.n, F = out.F;
    int threads = n * F * product.in.D < ALONE ? 1 : product.in.threads;
    int64_t share = std::max<int64_t>(M, (F / (threads * SHARES) + M - 1) / M * M), shares = (F + share - 1) / share;
    std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t part; (part = next++) < shares;)
        for (int64_t row = 0; row < n; row += TILE) {
            int64_t last = std::min(n, row + TILE), f = part * share, end = std::min(F, f + share);
            for (; f + M <= end; f += M) put_rows<M>(product, row, last, f, out);
            for (; f < end; f++) put_rows<1>(product, row, last, f, out);
        }
}

template <class Product> void multiply(const Product& product, const Output& out) {
    // Enough independent sums to hide the latency of an addition, and few enough for the registers.
    if (product.in.n < ROWS) put_all<4>(product, out);
    else put_all<2>(product, out);
}

}  // namespace

extern "C" {

// y [n F] = x [n D] wᵀ + bias.
//   kind         of the weights: 0 fp32, 1 bf16, 2 int8, 3 int4
//   narrow       whether x and y are in bf16, not fp32
//   narrow_bias  whether the bias is; null: no bias
//   scales       of the groups of w in bf16, [F D/32], for int8 and int4
//   threads      to compute with; 0: as many as OpenMP would use
void heddle_product(int kind, int narrow, int narrow_bias, const void* x, const void* w, const void* scales, const void* bias,
                    void* y, int64_t n, int64_t F, int64_t D, int threads) {
#ifdef _OPENMP
    if (!threads) threads = omp_get_max_threads();
#else
    threads = 1;
#endif
    Input in = read(x, narrow, n, D, kind >= 2, threads);
    Output out{y, bias, F, narrow != 0, narrow_bias != 0};
    auto of_weights = static_cast<const BFloat*>(scales);
    switch (kind) {
        case 0: return multiply(Plain<float>{in, static_cast<const float*>(w)}, out);
        case 1: return multiply(Plain<BFloat>{in, static_cast<const BFloat*>(w)}, out);
        case 2: return multiply(Grouped<8>{in, static_cast<const int8_t*>(w), of_weights}, out);
        case 3: return multiply(Grouped<4>{in, static_cast<const int8_t*>(w), of_weights}, out);
    }
}

// The n rows of x [n D] as a product with integers rounds them, in fp32.
void heddle_round(int narrow, const void* x, float* out, int64_t n, int64_t D, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < n; r++) round_row(x, narrow, r * D, D, out + r * D);
}

// F rows of weights of kind 2 or 3 as ordinary numbers [F D].
void heddle_unpack(int kind, const void* w, const void* scales, float* out, int64_t F, int64_t D, int threads) {
    int64_t groups = (D + GROUP - 1) / GROUP, stride = (kind == 3 ? (groups + 1) / 2 : groups) * GROUP;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t f = 0; f < F; f++)
        unpack_row(static_cast<const int8_t*>(w) + f * stride, static_cast<const BFloat*>(scales) + f * groups, kind == 3, D,
                   out + f * D);
}
}
