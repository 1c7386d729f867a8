// MPI exchange between the processes of a ring; the caller has initialized MPI.
//
// A message starts with its length; a message longer than FIRST bytes is sent in two parts.

#include "exchange_times.h"
#include "ring_exchange.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <sched.h>
#include <string>
#include <vector>

namespace {

constexpr uint64_t FIRST = 4096;  // size of the first part in bytes, including the length
constexpr uint32_t SPINS = 1000;

struct Exchange {
    MPI_Comm communicator;
    std::vector<std::vector<uint64_t>> out, in;  // messages for and from each process
    std::vector<MPI_Request> requests;
    uint64_t used = 0;  // nanoseconds
    std::string error;

    bool fails(int result) {
        if (result == MPI_SUCCESS) return false;
        char text[MPI_MAX_ERROR_STRING];
        int length = 0;
        MPI_Error_string(result, text, &length);
        error.assign(text, length);
        return true;
    }

    bool wait() {
        int done = 0;
        for (uint32_t spin = 0; !done; ++spin) {
            if (fails(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE))) {
                return false;
            }
            if (!done && spin >= SPINS) sched_yield();
        }
        requests.clear();
        return true;
    }

    bool send(const void* data, uint64_t bytes, uint32_t to, int tag) {
        return !fails(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(to), tag, communicator,
                                &requests.emplace_back()));
    }

    bool receive(void* data, uint64_t bytes, uint32_t from, int tag) {
        return !fails(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(from), tag, communicator,
                                &requests.emplace_back()));
    }

    bool mail(RingMail* mails, uint32_t count) {
        for (uint32_t index = 0; index < count; ++index) {
            RingMail& mail = mails[index];
            std::vector<uint64_t>& from = in[mail.process];
            std::vector<uint64_t>& to = out[mail.process];
            if (from.size() < FIRST / 8) from.resize(FIRST / 8);
            to.resize(std::max<uint64_t>(to.size(), (mail.out_bytes + 15) / 8));
            to[0] = mail.out_bytes;
            if (mail.out_bytes) std::memcpy(&to[1], mail.out, mail.out_bytes);
            if (!receive(from.data(), FIRST, mail.process, 0)
                || !send(to.data(), std::min(FIRST, 8 + mail.out_bytes), mail.process, 0)) return false;
        }
        if (!wait()) return false;
        for (uint32_t index = 0; index < count; ++index) {
            RingMail& mail = mails[index];
            std::vector<uint64_t>& from = in[mail.process];
            mail.in_bytes = from[0];
            if (8 + mail.in_bytes > FIRST) {
                from.resize(std::max<uint64_t>(from.size(), (mail.in_bytes + 15) / 8));
                if (!receive(&from[FIRST / 8], 8 + mail.in_bytes - FIRST, mail.process, 1)) return false;
            }
            if (8 + mail.out_bytes > FIRST
                && !send(&out[mail.process][FIRST / 8], 8 + mail.out_bytes - FIRST, mail.process, 1)) return false;
            mail.in = &from[1];
        }
        return wait();
    }
};

Exchange& of(void* context) { return *static_cast<Exchange*>(context); }

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

// Called by all processes of MPI_COMM_WORLD; returns null on failure.
void* exchange_open() {
    Exchange* const exchange = new Exchange{};
    int processes = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    if (MPI_Comm_dup(MPI_COMM_WORLD, &exchange->communicator) != MPI_SUCCESS) {
        delete exchange;
        return nullptr;
    }
    exchange->out.resize(processes);
    exchange->in.resize(processes);
    return exchange;
}

int64_t exchange_mail(void* context, RingMail* mails, uint32_t count) {
    const Watch watch{of(context).used};
    return of(context).mail(mails, count) ? 0 : -1;
}

int64_t exchange_agree(void* context, uint64_t* value) {
    Exchange& own = of(context);
    const Watch watch{own.used};
    const uint64_t mine = *value;
    return !own.fails(MPI_Iallreduce(&mine, value, 1, MPI_UINT64_T, MPI_MAX, own.communicator,
                                     &own.requests.emplace_back())) && own.wait() ? 0 : -1;
}

const char* exchange_error(void* context) { return of(context).error.c_str(); }

// Processor time in nanoseconds of all exchanges of this process so far, including waiting.
uint64_t exchange_used(void* context) { return of(context).used; }

// Mean time in nanoseconds of `times` exchanges of the same messages, or of agreements if there are no messages.
int64_t exchange_repeat(void* context, RingMail* mails, uint32_t count, uint64_t times) {
    uint64_t value = 0;
    return mean_time(times, [&] {
        return count ? exchange_mail(context, mails, count) : exchange_agree(context, &value);
    });
}

void exchange_close(void* context) {
    MPI_Comm_free(&of(context).communicator);
    delete &of(context);
}

}

#pragma GCC visibility pop
