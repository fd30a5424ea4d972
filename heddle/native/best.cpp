// The largest log probabilities of each row of scores, in two passes over a row that stays in a cache.
//
// log_softmax and topk would write and read all numbers several times.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 64;  // neighbours that are passed over if their maximum is not among the largest
constexpr float INF = std::numeric_limits<float>::infinity(), MOST = std::numeric_limits<float>::max();

typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

Floats filled(float number) { return Floats{} + number; }

// e^x for x <= 0, within two units of the last place; below -87 no less than e^-87. NaN stays NaN.
Floats exponential(Floats x) {
    const Floats many = filled(12582912);  // numbers of this size have no fraction, and end in the integer
    x = x < -87.0f ? filled(-87) : x;
    Floats shifted = add_product(many, x, filled(1.44269504f)), n = shifted - many;
    // Less n log 2, in two parts, of which the first has few digits.
    Floats r = add_product(add_product(x, n, filled(-0.693145752f)), n, filled(-1.42860677e-6f)), y = filled(1.98756915e-4f);
    for (float next : {1.39819995e-3f, 8.33345191e-3f, 4.16657962e-2f, 1.66666657e-1f, 0.5f, 1.0f, 1.0f})
        y = add_product(filled(next), y, r);
    return y * (Floats)(((Integers)shifted << 23) + (127 << 23));  // all but the lowest bits of `many` are shifted out
}

// The numbers at a place, of which only `count` are read; the others are -inf.
Floats part(const float* place, int64_t count) {
    float numbers[LANES];
    for (int j = 0; j < LANES; j++) numbers[j] = j < count ? place[j] : -INF;
    return at<Floats>(numbers);
}

// The maximum of each block's numbers that are no NaN.
void block_maxima(const float* x, int64_t ids, float* maxima) {
    for (int64_t first = 0; first < ids; first += BLOCK) {
        Floats most = filled(-INF);
        int64_t i = first, end = std::min(ids, first + BLOCK);
        for (; i + LANES <= end; i += LANES) {
            Floats next = at<Floats>(x + i);
            most = most < next ? next : most;
        }
        if (i < end) {
            Floats next = part(x + i, end - i);
            most = most < next ? next : most;
        }
        *maxima++ = largest(most);
    }
}

// The log of the sum of e^(x - most), of blocks in fp32, which are added in double.
float log_sum(const float* x, int64_t ids, float most) {
    double sum = 0;
    for (int64_t first = 0; first < ids; first += BLOCK) {
        Floats sums = {};
        int64_t i = first, end = std::min(ids, first + BLOCK);
        for (; i + LANES <= end; i += LANES) sums += exponential(at<Floats>(x + i) - most);
        if (i < end) sums += exponential(part(x + i, end - i) - most);
        sum += total(sums);
    }
    return float(std::log(sum));
}

// The `count` largest allowed numbers of a row and their places, in order; of equal ones the first. Returns how many there are.
//   least  no greater than any of them
int64_t select(const float* x, int64_t ids, const float* maxima, float least, const bool* allowed, int64_t count, float* values,
               int64_t* places) {
    int64_t size = 0;
    for (int64_t first = 0; first < ids; first += BLOCK) {
        if (!(maxima[first / BLOCK] >= least)) continue;
        for (int64_t i = first; i < std::min(ids, first + BLOCK); i++) {
            if (!(x[i] >= least) || (allowed && !allowed[i]) || (size == count && !(x[i] > values[size - 1]))) continue;
            int64_t place = size < count ? size++ : size - 1;
            for (; place > 0 && values[place - 1] < x[i]; place--)
                values[place] = values[place - 1], places[place] = places[place - 1];
            values[place] = x[i], places[place] = i;
        }
    }
    return size;
}

}  // namespace

// The largest log probabilities of n rows of scores, which are `stride` numbers apart, and their ids, in order, both [n count].
// Where fewer are allowed and greater than -inf, -inf and id 0 follow. A row with a NaN, or without a finite score, is NaN.
//   allowed  for each id, whether it may be among them; null: all. Probabilities are of all ids.
extern "C" void heddle_best(const float* scores, int64_t n, int64_t ids, int64_t stride, const bool* allowed, int64_t count,
                            float* values, int64_t* best, int threads) {
    const int64_t blocks = (ids + BLOCK - 1) / BLOCK, blocked = allowed ? std::count(allowed, allowed + ids, false) : 0;
#pragma omp parallel num_threads(threads) if (threads > 1 && n > 1)
    {
        std::vector<float> maxima(blocks), sorted(blocks);
#pragma omp for
        for (int64_t row = 0; row < n; row++) {
            const float* x = scores + row * stride;
            float *of_row = values + row * count, least = -MOST;
            block_maxima(x, ids, maxima.data());
            sorted = maxima;
            if (count + blocked < blocks) {  // so many blocks have a number as large, so the largest allowed ones are no smaller
                std::nth_element(sorted.begin(), sorted.begin() + count + blocked - 1, sorted.end(), std::greater<float>());
                least = std::max(least, sorted[count + blocked - 1]);
            }
            float most = *std::max_element(maxima.begin(), maxima.end()), log = log_sum(x, ids, most);
            int64_t size = select(x, ids, maxima.data(), least, allowed, count, of_row, best + row * count);
            for (int64_t i = 0; i < size; i++) of_row[i] = of_row[i] - most - log;
            for (int64_t i = size; i < count; i++) of_row[i] = std::isnan(log) ? log : -INF, best[row * count + i] = 0;
        }
    }
}
