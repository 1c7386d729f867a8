// Floating-point units as functions that use the processor's arithmetic instead of gateware. See native.py.
//
// Numbers are given as the bits of binary32, rounded to nearest even, with subnormal numbers and one NaN. `broken`
// detects a compiler that violates these rules, and `Environment` sets the processor's modes for any caller.

#pragma once

#include <cfenv>
#include <cfloat>
#include <cstdint>
#include <cstring>

#define NATIVE_ARITHMETIC 1

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "native arithmetic must be that of IEEE 754: compile without -ffast-math, or choose gateware"
#endif
static_assert(FLT_EVAL_METHOD == 0,
              "native arithmetic must not have more bits than a float, as x87 has: choose gateware");

namespace native {

#define NATIVE_FUNCTION __attribute__((always_inline)) inline

NATIVE_FUNCTION float number(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Bits of a result, in which every NaN becomes the canonical one.
NATIVE_FUNCTION std::uint32_t pattern(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return value == value ? bits : 0x7fc00000;
}

NATIVE_FUNCTION std::uint32_t add(std::uint32_t a, std::uint32_t b) { return pattern(number(a) + number(b)); }
NATIVE_FUNCTION std::uint32_t multiply(std::uint32_t a, std::uint32_t b) { return pattern(number(a) * number(b)); }
NATIVE_FUNCTION std::uint32_t divide(std::uint32_t a, std::uint32_t b) { return pattern(number(a) / number(b)); }
NATIVE_FUNCTION std::uint32_t square_root(std::uint32_t a) { return pattern(__builtin_sqrtf(number(a))); }

#undef NATIVE_FUNCTION

// Sets the modes of IEEE 754 for the current thread during this object's lifetime: rounding to nearest, subnormal
// numbers, no traps. Afterwards, the modes that the caller, or a library in the same process, had set are restored.
class Environment {
public:
    Environment() {
        std::fegetenv(&m_saved);
        std::fesetenv(FE_DFL_ENV);
    }
    ~Environment() { std::fesetenv(&m_saved); }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    std::fenv_t m_saved;
};

// Returns a rule that the compiled functions violate, determined by comparison with known results; null if none.
inline const char* broken() {
    struct Case {
        const char* rule;
        char function;
        std::uint32_t a, b, result;
    };
    static const volatile Case cases[] = {  // volatile, so that results are computed at run time
        {"round to nearest even", '+', 0x3f800000, 0x33800000, 0x3f800000},
        {"round to nearest even", '+', 0x3f800001, 0x33800000, 0x3f800002},
        {"round to nearest even", '*', 0x3f800001, 0x3fc00000, 0x3fc00002},
        {"keep subnormal numbers", '+', 0x00000001, 0x00000001, 0x00000002},
        {"keep subnormal numbers", '*', 0x00800000, 0x3f000000, 0x00400000},
        {"keep subnormal numbers", '/', 0x00800000, 0x40000000, 0x00400000},
        {"keep subnormal numbers", 'r', 0x00000001, 0, 0x1a3504f3},
        {"have one NaN", '+', 0x7f800000, 0xff800000, 0x7fc00000},
        {"have one NaN", '*', 0xffffffff, 0x3f800000, 0x7fc00000},
        {"have one NaN", '/', 0x80000000, 0x00000000, 0x7fc00000},
        {"have one NaN", 'r', 0xbf800000, 0, 0x7fc00000},
        {"keep the sign of zero", '+', 0x80000000, 0x80000000, 0x80000000},
        {"keep the sign of zero", '+', 0x80000000, 0x00000000, 0x00000000},
        {"keep the sign of zero", '*', 0x80000000, 0x3f800000, 0x80000000},
        {"keep the sign of zero", '/', 0x3f800000, 0x80000000, 0xff800000},
        {"keep the sign of zero", 'r', 0x80000000, 0, 0x80000000},
        {"divide exactly", '/', 0x3fffffff, 0x3ffffffe, 0x3f800001},
        {"divide exactly", '/', 0x40a00000, 0x40400000, 0x3fd55555},
        {"have exact roots", 'r', 0x40e00000, 0, 0x402953fd},
        {"have exact roots", 'r', 0x7f7fffff, 0, 0x5f7fffff},
    };
    const Environment environment;
    for (const volatile Case& one : cases) {
        const std::uint32_t a = one.a, b = one.b;
        const std::uint32_t found = one.function == '+' ? add(a, b)
                                  : one.function == '*' ? multiply(a, b)
                                  : one.function == '/' ? divide(a, b)
                                                        : square_root(a);
        if (found != one.result) return one.rule;
    }
    return nullptr;
}

}  // namespace native
