// Threads that step the nodes, and the choice of how many to use.
//
// Included by ring.cpp, which is a single translation unit so that the compiler sees all code of a cycle.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Runs a job on a fixed number of threads, including the caller's. A waiting thread spins for about as long as a job
// takes, and then sleeps, so that on a busy machine it does not occupy the core that another thread needs to finish
// the job.
class Crew {
public:
    explicit Crew(uint32_t threads) {
        for (uint32_t index = 1; index < threads; ++index) m_threads.emplace_back([this, index] { work(index); });
    }

    ~Crew() {
        m_job = nullptr;
        start();
        for (std::thread& thread : m_threads) thread.join();
    }

    uint32_t size() const { return static_cast<uint32_t>(m_threads.size()) + 1; }

    template <typename Job> void run(const Job& job) {
        m_job = [](const void* object, uint32_t index) { (*static_cast<const Job*>(object))(index); };
        m_object = &job;
        m_busy.store(static_cast<uint32_t>(m_threads.size()), std::memory_order_relaxed);
        start();
        job(0);
        while (const uint32_t busy = m_busy.load(std::memory_order_acquire)) wait_for_change(m_busy, busy);
    }

private:
    static constexpr uint32_t SPINS = 2000;

    static void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
        for (uint32_t spin = 0; spin < SPINS; ++spin) {
            if (value.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        value.wait(old, std::memory_order_acquire);
    }

    void start() {
        m_ticket.fetch_add(1, std::memory_order_release);
        m_ticket.notify_all();
    }

    void work(uint32_t index) {
        for (uint32_t seen = 0;; ++seen) {
            wait_for_change(m_ticket, seen);
            if (!m_job) return;
            m_job(m_object, index);
            m_busy.fetch_sub(1, std::memory_order_release);
            m_busy.notify_one();
        }
    }

    void (*m_job)(const void*, uint32_t) = nullptr;
    const void* m_object = nullptr;
    alignas(64) std::atomic<uint32_t> m_ticket{0};
    alignas(64) std::atomic<uint32_t> m_busy{0};
    std::vector<std::thread> m_threads;
};

// Chooses between all threads and only the caller's, by the recent speed of each choice: if another process uses one of
// the cores, threads that often wait for each other are slower than one thread. The choice is repeated at intervals, and
// does not affect any cycle.
class Pace {
public:
    bool alone() const { return m_alone; }

    void add(uint64_t cycles, Clock::duration time) {
        m_cycles += cycles;
        m_time += time;
        if (m_time < (m_trying ? TRIAL : m_interval)) return;
        const double rate = static_cast<double>(m_cycles) / static_cast<double>(m_time.count());
        m_cycles = 0;
        m_time = {};
        if (!m_trying) {
            m_rate = rate;
        } else if (rate > MARGIN * m_rate) {
            m_interval = SHORTEST;
        } else {
            m_interval = std::min(2 * m_interval, LONGEST);
            m_alone = !m_alone;
        }
        if (!m_trying) m_alone = !m_alone;
        m_trying = !m_trying;
    }

private:
    static constexpr Clock::duration TRIAL = std::chrono::milliseconds{20};
    static constexpr Clock::duration SHORTEST = std::chrono::milliseconds{250};
    static constexpr Clock::duration LONGEST = std::chrono::seconds{4};
    static constexpr double MARGIN = 1.05;

    bool m_alone = false;
    bool m_trying = false;
    uint64_t m_cycles = 0;  // of the current choice
    Clock::duration m_time{};
    Clock::duration m_interval = SHORTEST;
    double m_rate = 0;  // of the previous choice, for comparison
};

}  // namespace
