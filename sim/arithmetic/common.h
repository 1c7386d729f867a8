// Definitions shared by all kernels: function versions for wider vectors, conversion between binary32 numbers and
// their bits, and checks that reject compilers with inexact arithmetic. library.py passes -ffp-contract=off to the
// compiler.

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __FAST_MATH__
#error "sums must be as they are written: compile without -ffast-math"
#endif
static_assert(FLT_EVAL_METHOD == 0, "floats must not be computed with more bits than they have");

// On x86, the loader selects the function version with the widest vectors that the processor supports. With
// ONE_VERSION, the library has only one version, for the compiler's default instruction set.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__AVX512F__) && !defined(ONE_VERSION)
#define VERSIONS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VERSIONS
#endif
#define INLINE static inline __attribute__((always_inline))

namespace {

INLINE float number(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE std::int32_t pattern(float value) {
    std::int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float canonical(float value) { return value == value ? value : number(0x7fc00000); }

}  // namespace
