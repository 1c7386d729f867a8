// Sums in the specified order, and the network functions based on them. See functions.py.
//
// Every sum is ((c + t0) + t1) + ..., in ascending order, with each product and each sum rounded. The elements of a
// vector register belong to different sums; a sum is never split. The compiler must not fuse a multiplication and an
// addition, so it is given -ffp-contract=off, and library.py checks the compiled library before it is used.

#include "coefficients.h"
#include "common.h"

namespace {

constexpr std::ptrdiff_t WIDTH = 8;   // floats of a vector
constexpr std::ptrdiff_t PANEL = 16;  // columns of a tile: two vectors
constexpr int ROWS = 4;               // rows of a tile

typedef float Vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

// A matrix within a batch: element (i, j) is at data[i * row + j * column].
struct Matrix {
    const float* data;
    std::ptrdiff_t row, column;
};

// Add the products of R rows of `a` and the first `columns` columns of a panel to a tile of the output.
template <int R>
INLINE void tile(Matrix a, const float* panel, std::ptrdiff_t depth, float* output, std::ptrdiff_t stride,
                 std::ptrdiff_t columns) {
    float edge[R][PANEL];
    Vector low[R], high[R];
    for (int r = 0; r < R; ++r) {
        const float* from = output + r * stride;
        if (columns < PANEL) {
            for (std::ptrdiff_t c = 0; c < PANEL; ++c) edge[r][c] = c < columns ? from[c] : 0.0f;
            from = edge[r];
        }
        std::memcpy(&low[r], from, sizeof(Vector));
        std::memcpy(&high[r], from + WIDTH, sizeof(Vector));
    }
    for (std::ptrdiff_t k = 0; k < depth; ++k) {
        const Vector first = *reinterpret_cast<const Vector*>(panel + k * PANEL);
        const Vector second = *reinterpret_cast<const Vector*>(panel + k * PANEL + WIDTH);
        for (int r = 0; r < R; ++r) {
            const float factor = a.data[r * a.row + k * a.column];
            low[r] = low[r] + factor * first;
            high[r] = high[r] + factor * second;
        }
    }
    for (int r = 0; r < R; ++r) {
        std::memcpy(edge[r], &low[r], sizeof(Vector));
        std::memcpy(edge[r] + WIDTH, &high[r], sizeof(Vector));
        for (std::ptrdiff_t c = 0; c < columns; ++c) output[r * stride + c] = canonical(edge[r][c]);
    }
}

// exp(x) for x <= 0, with the same operations as sim/golden/exponential.py, in the same order.
INLINE float exponential(float given) {
    const float x = given > number(LEAST) ? given : number(LEAST);
    const float shifted = x * number(LOG2_E) + number(MAGIC);
    const float n = shifted - number(MAGIC);
    const std::int32_t exponent = pattern(shifted) - static_cast<std::int32_t>(MAGIC);
    const float r = (x - n * number(LN2_HIGH)) - n * number(LN2_LOW);
    float p = number(EXP[EXP_COUNT - 1]);
    for (int c = EXP_COUNT - 2; c >= 0; --c) p = p * r + number(EXP[c]);
    const float y = ((p * r) * r + r) + 1.0f;
    const std::int32_t half = exponent >> 1;
    const float result = (y * number(static_cast<std::uint32_t>(half + 127) << 23)) *
                         number(static_cast<std::uint32_t>(exponent - half + 127) << 23);
    return given == given ? result : number(0x7fc00000);
}

// log(x) for finite x >= 1.
INLINE float logarithm(float given) {
    const std::int32_t bits = pattern(given == given ? given : 1.0f);
    const std::int32_t exponent = (bits - static_cast<std::int32_t>(ROOT_HALF)) >> 23;
    const float m = number(static_cast<std::uint32_t>(bits) - (static_cast<std::uint32_t>(exponent) << 23)) - 1.0f;
    const float n = static_cast<float>(exponent);
    float p = number(LOG[LOG_COUNT - 1]);
    for (int c = LOG_COUNT - 2; c >= 0; --c) p = p * m + number(LOG[c]);
    const float y = (p * m) * m;
    const float result = ((y + n * number(LN2_LOW)) + m) + n * number(LN2_HIGH);
    return given == given ? result : number(0x7fc00000);
}

// Sum R rows, each from its first element. Rows are independent, so several are summed at a time.
template <int R>
INLINE void sums(const float* x, std::ptrdiff_t columns, float* output) {
    float total[R] = {};
    for (std::ptrdiff_t j = 0; j < columns; ++j) {
        for (int r = 0; r < R; ++r) total[r] = total[r] + x[r * columns + j];
    }
    for (int r = 0; r < R; ++r) output[r] = canonical(total[r]);
}

}  // namespace

extern "C" {

// output[i] += a[i] * b[i] for each i of a batch, with matrices of shape (rows, depth) and (depth, columns). The
// output is contiguous; `panel` has room for depth * 16 floats. Batch, row and column strides are in elements.
VERSIONS void product(std::int64_t batch, std::int64_t rows, std::int64_t depth, std::int64_t columns,
                      const float* a, std::int64_t a_batch, std::int64_t a_row, std::int64_t a_column,
                      const float* b, std::int64_t b_batch, std::int64_t b_row, std::int64_t b_column,
                      float* output, float* panel) {
    for (std::int64_t n = 0; n < batch; ++n) {
        const float* right = b + n * b_batch;
        float* result = output + n * rows * columns;
        for (std::int64_t j = 0; j < columns; j += PANEL) {
            const std::int64_t width = columns - j < PANEL ? columns - j : PANEL;
            for (std::int64_t k = 0; k < depth; ++k) {
                const float* from = right + k * b_row + j * b_column;
                float* to = panel + k * PANEL;
                if (width == PANEL && b_column == 1) {
                    std::memcpy(to, from, PANEL * sizeof(float));
                } else {
                    for (std::int64_t c = 0; c < PANEL; ++c) to[c] = c < width ? from[c * b_column] : 0.0f;
                }
            }
            const Matrix left{a + n * a_batch, a_row, a_column};
            std::int64_t i = 0;
            for (; i + ROWS <= rows; i += ROWS) {
                tile<ROWS>({left.data + i * left.row, left.row, left.column}, panel, depth,
                           result + i * columns + j, columns, width);
            }
            for (; i < rows; ++i) {
                tile<1>({left.data + i * left.row, left.row, left.column}, panel, depth, result + i * columns + j,
                        columns, width);
            }
        }
    }
}

// output[i] = sum of row i.
VERSIONS void row_sums(std::int64_t rows, std::int64_t columns, const float* x, float* output) {
    std::int64_t i = 0;
    for (; i + 8 <= rows; i += 8) sums<8>(x + i * columns, columns, output + i);
    for (; i < rows; ++i) sums<1>(x + i * columns, columns, output + i);
}

// output[places[i]] += x[i], row by row; the output has `count` rows.
VERSIONS void gather_sums(std::int64_t rows, std::int64_t columns, const float* x, const std::int64_t* places,
                          std::int64_t count, float* output) {
    for (std::int64_t i = 0; i < rows; ++i) {
        float* to = output + places[i] * columns;
        for (std::int64_t j = 0; j < columns; ++j) to[j] = to[j] + x[i * columns + j];
    }
    for (std::int64_t i = 0; i < count * columns; ++i) output[i] = canonical(output[i]);
}

VERSIONS void exponentials(std::int64_t count, const float* x, float* output) {
    for (std::int64_t i = 0; i < count; ++i) output[i] = exponential(x[i]);
}

VERSIONS void logarithms(std::int64_t count, const float* x, float* output) {
    for (std::int64_t i = 0; i < count; ++i) output[i] = logarithm(x[i]);
}

// For each row: differences from its maximum, the exponentials, and the exponentials' sum. Arrays may coincide.
VERSIONS void softmax_parts(std::int64_t rows, std::int64_t columns, const float* x, float* shifted, float* powers,
                            float* totals) {
    for (std::int64_t i = 0; i < rows; ++i) {
        const float* row = x + i * columns;
        float largest = row[0];
        for (std::int64_t j = 1; j < columns; ++j) largest = row[j] > largest ? row[j] : largest;
        for (std::int64_t j = 0; j < columns; ++j) shifted[i * columns + j] = row[j] - largest;
    }
    for (std::int64_t i = 0; i < rows * columns; ++i) powers[i] = exponential(shifted[i]);
    std::int64_t i = 0;
    for (; i + 8 <= rows; i += 8) sums<8>(powers + i * columns, columns, totals + i);
    for (; i < rows; ++i) sums<1>(powers + i * columns, columns, totals + i);
}

}  // extern "C"
