// Exchange between a ring's processes on one host through shared memory, which they poll for changes.
//
// Each pair of processes has a queue of bytes in each direction; a waiting process yields its core. Each process
// holds a lock on one byte of the memory; the system releases the lock when the process ends for any reason.

#include "exchange_times.h"
#include "ring_exchange.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr uint64_t CAPACITY = 1 << 15;  // bytes per queue; longer messages are passed in parts
constexpr uint32_t SPINS = 1000, LOOKS = 16;
constexpr auto PATIENCE = std::chrono::milliseconds{2};   // waiting time after which a process sleeps between polls
constexpr auto INTERVAL = std::chrono::milliseconds{20};  // between checks for ended processes

struct Place {
    alignas(64) std::atomic<uint64_t> round;
    uint64_t values[2];  // of even rounds, and of odd rounds
};

struct Bytes {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> taken;
    alignas(64) uint8_t data[CAPACITY];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(Place) == 64);

std::string error;

// A message in one direction: its length, then its bytes.
struct Transfer {
    uint64_t length = 0;
    uint64_t done = 0;  // bytes so far, including the length
    bool complete() const { return done >= sizeof length && done == sizeof length + length; }
};

struct Exchange {
    int descriptor;
    uint32_t process, processes;
    uint8_t* memory;
    std::vector<std::vector<uint64_t>> in;  // for each process
    std::vector<Transfer> outs, ins;
    uint64_t round = 0;
    uint64_t used = 0;  // nanoseconds
    std::string error;

    static uint64_t size(uint32_t processes) {
        return 64 + processes * sizeof(Place) + uint64_t{processes} * processes * sizeof(Bytes);
    }

    // Index of the first process found to have ended, plus 1; 0 if there is none.
    std::atomic<uint32_t>& ended() { return *reinterpret_cast<std::atomic<uint32_t>*>(memory); }
    Place& place(uint32_t of) { return reinterpret_cast<Place*>(memory + 64)[of]; }
    Bytes& bytes(uint32_t from, uint32_t to) {
        return reinterpret_cast<Bytes*>(memory + 64 + processes * sizeof(Place))[from * processes + to];
    }

    bool is_there(uint32_t other) const {
        struct flock lock{};
        lock.l_type = F_WRLCK;
        lock.l_whence = SEEK_SET;
        lock.l_start = other;
        lock.l_len = 1;
        return other == process || fcntl(descriptor, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
    }

    // The process that ended first, as far as any process knows; -1 if all are running.
    int32_t look() {
        for (uint32_t other = 0; other < processes && !ended().load(); ++other) {
            uint32_t none = 0;
            if (!is_there(other)) ended().compare_exchange_strong(none, other + 1);
        }
        return static_cast<int32_t>(ended().load()) - 1;
    }

    // Calls a function, which reports progress in `moved`, until it returns true. False if a process has ended.
    template <typename Call> bool repeat(const Call& call) {
        uint32_t idle = 0;
        const auto begun = std::chrono::steady_clock::now();
        auto looked = begun;
        for (;;) {
            bool moved = false;
            if (call(moved)) return true;
            if (moved) {
                idle = 0;
                continue;
            }
            if (++idle < SPINS) {
#if defined(__x86_64__)
                __builtin_ia32_pause();
#endif
                continue;
            }
            sched_yield();
            if (idle % LOOKS) continue;
            const auto now = std::chrono::steady_clock::now();
            if (now - begun > PATIENCE) usleep(100);
            if (now - looked < INTERVAL) continue;
            looked = now;
            if (const int32_t other = look(); other >= 0) {
                error = "process " + std::to_string(other) + " has ended";
                return false;
            }
        }
    }

    static void copy_in(Bytes& to, uint64_t at, const void* from, uint64_t count) {
        const uint64_t first = std::min(count, CAPACITY - at % CAPACITY);
        std::memcpy(to.data + at % CAPACITY, from, first);
        std::memcpy(to.data, static_cast<const uint8_t*>(from) + first, count - first);
    }

    static void copy_out(const Bytes& from, uint64_t at, void* to, uint64_t count) {
        const uint64_t first = std::min(count, CAPACITY - at % CAPACITY);
        std::memcpy(to, from.data + at % CAPACITY, first);
        std::memcpy(static_cast<uint8_t*>(to) + first, from.data, count - first);
    }

    // Moves as many bytes of a message as fit into the queue.
    bool push(const RingMail& mail, Transfer& out) {
        if (out.complete()) return false;
        Bytes& to = bytes(process, mail.process);
        uint64_t at = to.written.load(std::memory_order_relaxed);
        uint64_t room = CAPACITY - (at - to.taken.load(std::memory_order_acquire));
        const uint64_t before = at;
        if (!out.done && room >= sizeof out.length) {
            out.length = mail.out_bytes;
            copy_in(to, at, &out.length, sizeof out.length);
            out.done = sizeof out.length;
            at += sizeof out.length;
            room -= sizeof out.length;
        }
        if (out.done) {
            const uint64_t sent = out.done - sizeof out.length;
            const uint64_t count = std::min(room, out.length - sent);
            copy_in(to, at, static_cast<const uint8_t*>(mail.out) + sent, count);
            out.done += count;
            at += count;
        }
        if (at != before) to.written.store(at, std::memory_order_release);
        return at != before;
    }

    bool pull(RingMail& mail, Transfer& in_) {
        if (in_.complete()) return false;
        Bytes& from = bytes(mail.process, process);
        uint64_t at = from.taken.load(std::memory_order_relaxed);
        uint64_t there = from.written.load(std::memory_order_acquire) - at;
        const uint64_t before = at;
        std::vector<uint64_t>& kept = in[mail.process];
        if (!in_.done && there >= sizeof in_.length) {
            copy_out(from, at, &in_.length, sizeof in_.length);
            if (kept.size() < (in_.length + 7) / 8) kept.resize((in_.length + 7) / 8);
            mail.in = kept.data();
            mail.in_bytes = in_.length;
            in_.done = sizeof in_.length;
            at += sizeof in_.length;
            there -= sizeof in_.length;
        }
        if (in_.done) {
            const uint64_t had = in_.done - sizeof in_.length;
            const uint64_t count = std::min(there, in_.length - had);
            copy_out(from, at, reinterpret_cast<uint8_t*>(kept.data()) + had, count);
            in_.done += count;
            at += count;
        }
        if (at != before) from.taken.store(at, std::memory_order_release);
        return at != before;
    }
};

Exchange& of(void* context) { return *static_cast<Exchange*>(context); }

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

const char* exchange_why() { return error.c_str(); }

// Descriptor of new anonymous memory for this number of processes; negative on error.
int32_t exchange_create(uint32_t processes) {
    const std::string name = "/gradring-" + std::to_string(getpid()) + "-" + std::to_string(
        std::chrono::steady_clock::now().time_since_epoch().count());
    const int descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (descriptor >= 0) shm_unlink(name.c_str());
    if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(Exchange::size(processes)))) {
        error = std::string("shared memory cannot be had: ") + std::strerror(errno);
        if (descriptor >= 0) close(descriptor);
        return -1;
    }
    return descriptor;
}

// Opens the exchange as a process; the descriptor then belongs to the exchange. Null on failure.
void* exchange_open(int32_t descriptor, uint32_t process, uint32_t processes) {
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = process;
    lock.l_len = 1;
    void* const memory = mmap(nullptr, Exchange::size(processes), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED || fcntl(descriptor, F_SETLK, &lock)) {
        error = std::string("shared memory cannot be used: ") + std::strerror(errno);
        return nullptr;
    }
    Exchange* const exchange = new Exchange{descriptor, process, processes, static_cast<uint8_t*>(memory), {}, {}, {}, 0, 0, {}};
    exchange->in.resize(processes);
    return exchange;
}

int64_t exchange_mail(void* context, RingMail* mails, uint32_t count) {
    Exchange& own = of(context);
    const Watch watch{own.used};
    own.outs.assign(count, {});
    own.ins.assign(count, {});
    return own.repeat([&](bool& moved) {
        bool complete = true;
        for (uint32_t index = 0; index < count; ++index) {
            moved |= own.push(mails[index], own.outs[index]);
            moved |= own.pull(mails[index], own.ins[index]);
            complete &= own.outs[index].complete() && own.ins[index].complete();
        }
        return complete;
    }) ? 0 : -1;
}

int64_t exchange_agree(void* context, uint64_t* value) {
    Exchange& own = of(context);
    const Watch watch{own.used};
    const uint64_t round = ++own.round;
    own.place(own.process).values[round & 1] = *value;
    own.place(own.process).round.store(round, std::memory_order_release);
    uint32_t next = 0;
    return own.repeat([&](bool& moved) {
        for (; next < own.processes; ++next) {
            const Place& other = own.place(next);
            if (other.round.load(std::memory_order_acquire) < round) return false;
            *value = std::max(*value, other.values[round & 1]);
            moved = true;
        }
        return true;
    }) ? 0 : -1;
}

const char* exchange_error(void* context) { return of(context).error.c_str(); }

// CPU time in nanoseconds of all exchanges of this process so far, including waiting.
uint64_t exchange_used(void* context) { return of(context).used; }

// Mean time in nanoseconds of `times` exchanges of the same messages, or of agreements if there are no messages.
int64_t exchange_repeat(void* context, RingMail* mails, uint32_t count, uint64_t times) {
    uint64_t value = 0;
    return mean_time(times, [&] {
        return count ? exchange_mail(context, mails, count) : exchange_agree(context, &value);
    });
}

// The process that ended first, as far as this process knows; negative if all are running.
int32_t exchange_ended(void* context) { return of(context).look(); }

void exchange_close(void* context) {
    Exchange& own = of(context);
    munmap(own.memory, Exchange::size(own.processes));
    close(own.descriptor);
    delete &own;
}

}

#pragma GCC visibility pop
