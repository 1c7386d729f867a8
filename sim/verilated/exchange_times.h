// Times of exchanges between processes: the mean over many exchanges, and the total so far.
//
// Included by exchange_shared.cpp and exchange_mpi.cpp.

#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace {

// Adds the processor time that the calling thread uses during this object's lifetime, in nanoseconds.
class Watch {
public:
    explicit Watch(uint64_t& total) : m_total(total), m_begun(now()) {}
    ~Watch() { m_total += now() - m_begun; }

private:
    static uint64_t now() {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return uint64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
    }

    uint64_t& m_total;
    uint64_t m_begun;
};

// Mean time of a call in nanoseconds, or the negative result of a failed call.
template <typename Call> int64_t mean_time(uint64_t times, const Call& call) {
    const auto begun = std::chrono::steady_clock::now();
    for (uint64_t index = 0; index < times; ++index) {
        if (const int64_t result = call(); result < 0) return result;
    }
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begun;
    return time.count() / static_cast<int64_t>(times);
}

}  // namespace
