// The nodes' optimizer on arrays of binary32 bit patterns, as in sim/golden/optimizer.py. See optimizer.py.
//
// Every operation propagates NaNs, so only stored results need to be converted to the canonical NaN.

#include "blocks.h"
#include "constants.h"

namespace {

typedef std::uint16_t Half;

constexpr Word SIGN = 0x80000000;

// Optimizer state in binary32.
struct Whole {
    Word* x;

    explicit Whole(void* plane) : x(static_cast<Word*>(plane)) {}

    INLINE float load(const Whole& plane, std::int64_t i) { return number(plane.x[i]); }
    INLINE void store(const Whole& plane, std::int64_t i, float value) {
        plane.x[i] = static_cast<Word>(pattern(canonical(value)));
    }
    INLINE void finish(const Whole&, std::int64_t) {}
};

// Optimizer state in bfloat16, two elements per word, rounded to nearest even, as in sim/golden/moments.py.
struct Packed {
    Half* x;

    explicit Packed(void* plane) : x(static_cast<Half*>(plane)) {}

    INLINE float load(const Packed& plane, std::int64_t i) { return number(static_cast<Word>(plane.x[i]) << 16); }
    INLINE void store(const Packed& plane, std::int64_t i, float value) {
        const Word bits = static_cast<Word>(pattern(value));
        const Word half = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        plane.x[i] = static_cast<Half>((bits & MAGNITUDE) > INFINITE ? NAN_BITS >> 16 : half);
    }
    // If the number of elements is odd, the upper half of the last word is zero.
    INLINE void finish(const Packed& plane, std::int64_t count) {
        if (count % 2) plane.x[count] = 0;
    }
};

// Limit the magnitude of a number to the value with bit pattern `most`; a NaN stays a NaN.
INLINE float limited(float x, Word most) {
    const Word bits = static_cast<Word>(pattern(x)), magnitude = bits & MAGNITUDE;
    return number(magnitude > most && magnitude <= INFINITE ? (bits & SIGN) | most : bits);
}

struct Arrays {
    std::int64_t count;
    const Word* gradient;
    Word* weights;
    void *first, *second;
};

template <int RULE, bool DECAYED, bool NESTEROV, class State>
INLINE void run(const Word* scalars, const Arrays& arrays) {
    const float scale = number(scalars[GRADIENT_SCALE]), factor = number(scalars[WEIGHT_FACTOR]);
    const float first_decay = number(scalars[FIRST_DECAY]), first_gain = number(scalars[FIRST_GAIN]);
    const float second_decay = number(scalars[SECOND_DECAY]), second_gain = number(scalars[SECOND_GAIN]);
    const float epsilon = number(scalars[EPSILON]), rate = number(scalars[LEARNING_RATE]);
    const Word most = scalars[CLIP] & MAGNITUDE;
    const std::int64_t count = arrays.count;
    const Word* gradient = arrays.gradient;
    Word* weights = arrays.weights;
    const State first(arrays.first), second(arrays.second);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
        const float weight = number(weights[i]), decayed = factor * weight;
        float g = limited(scale * number(gradient[i]), most);
        if (DECAYED) g = g + decayed;
        float step = g;
        if (RULE != SGD) {
            step = first_decay * State::load(first, i) + first_gain * g;
            State::store(first, i, step);
        }
        if (NESTEROV) step = first_decay * step + g;
        if (RULE == ADAM || RULE == ADAMW) {
            const float square = second_decay * State::load(second, i) + (second_gain * g) * g;
            State::store(second, i, square);
            step = step / (__builtin_sqrtf(square) + epsilon);
        }
        weights[i] = static_cast<Word>(pattern(canonical((RULE == ADAMW ? decayed : weight) - rate * step)));
    }
    if (RULE != SGD) State::finish(first, count);
    if (RULE == ADAM || RULE == ADAMW) State::finish(second, count);
}

template <int RULE, bool NESTEROV, class State>
INLINE void decay(const Word* scalars, const Arrays& arrays) {
    if (scalars[WEIGHT_FACTOR] & MAGNITUDE) {
        run<RULE, true, NESTEROV, State>(scalars, arrays);
    } else {
        run<RULE, false, NESTEROV, State>(scalars, arrays);
    }
}

template <class State>
INLINE void rules(std::int64_t rule, bool nesterov, const Word* scalars, const Arrays& arrays) {
    if (rule == ADAMW) {
        run<ADAMW, false, false, State>(scalars, arrays);
    } else if (rule == ADAM) {
        decay<ADAM, false, State>(scalars, arrays);
    } else if (nesterov) {
        decay<MOMENTUM, true, State>(scalars, arrays);
    } else {
        decay<MOMENTUM, false, State>(scalars, arrays);
    }
}

}  // namespace

extern "C" {

// Update weights and state in place. State planes that the rule does not use may be null.
VERSIONS void update(std::int64_t rule, std::int64_t nesterov, std::int64_t packed, const Word* scalars,
                     std::int64_t count, const Word* gradient, Word* weights, void* first, void* second) {
    const Arrays arrays = {count, gradient, weights, first, second};
    if (rule == SGD) {
        decay<SGD, false, Whole>(scalars, arrays);
    } else if (packed) {
        rules<Packed>(rule, nesterov, scalars, arrays);
    } else {
        rules<Whole>(rule, nesterov, scalars, arrays);
    }
}

}  // extern "C"
