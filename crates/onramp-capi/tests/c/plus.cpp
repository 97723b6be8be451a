// The interface from C++17: owners that free, and threads.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

struct Free {
    void operator()(onramp_tree *tree) const { GIVES(0, onramp_tree_free(tree)); }
    void operator()(onramp_link *link) const { GIVES(0, onramp_link_free(link)); }
    void operator()(onramp_sender *sender) const { GIVES(0, onramp_sender_free(sender)); }
};
using Tree = std::unique_ptr<onramp_tree, Free>;
using Link = std::unique_ptr<onramp_link, Free>;
using Sender = std::unique_ptr<onramp_sender, Free>;

constexpr std::uint64_t SECOND = 1000000000;

Tree tree_of(const char *lines)
{
    onramp_tree *tree = nullptr;
    GIVES(0, onramp_tree_new(&tree, lines, 0, 1));
    return Tree(tree);
}

// Two threads use one tree: each call succeeds or gives -EBUSY, and no packet is lost.
void two_threads()
{
    Tree tree = tree_of("qdisc add root pfifo limit 1000000");
    std::atomic<int> went_in{0}, came_out{0};
    auto work = [&] {
        std::array<onramp_pkt, 64> pkts{};
        for (int round = 0; round < 2000; round++) {
            int done = onramp_tree_enqueue(tree.get(), 0, pkts.data(), 2);
            CHECK(done == 0 || done == -EBUSY);
            went_in += done == 0 ? 2 : 0;
            done = onramp_tree_dequeue(tree.get(), 0, pkts.data(), 1, nullptr);
            CHECK(done >= 0 || done == -EBUSY);
            came_out += done > 0 ? done : 0;
        }
    };
    std::thread one(work), other(work);
    one.join();
    other.join();
    std::uint64_t held = 0;
    GIVES(0, onramp_tree_backlog(tree.get(), &held, nullptr));
    CHECK(went_in.load() == came_out.load() + static_cast<int>(held));
}

// Each thread has its own text of errors.
void texts()
{
    Tree tree = tree_of("qdisc add root fq");
    FAILS(EINVAL, "pkts is NULL", onramp_tree_enqueue(tree.get(), 0, nullptr, 1));
    std::thread([] { CHECK(std::string(onramp_error()).empty()); }).join();
    CHECK(std::string(onramp_error()) == "pkts is NULL");
}

// A device that counts what it gets.
struct Counter {
    std::atomic<std::size_t> packets{0}, bytes{0};
    std::atomic<int> freed{0};

    static std::size_t transmit(void *user, onramp_pkt *, const iovec *payloads, std::size_t n,
                                std::uint64_t, std::uint64_t *)
    {
        auto *counter = static_cast<Counter *>(user);
        for (std::size_t i = 0; i < n; i++)
            counter->bytes += payloads[i].iov_len;
        counter->packets += n;
        return n;
    }
    static void free(void *user) { static_cast<Counter *>(user)->freed++; }
};

extern "C" std::size_t counter_transmit(void *user, onramp_pkt *pkts, const iovec *payloads,
                                        std::size_t n, std::uint64_t now, std::uint64_t *retry_at)
{
    return Counter::transmit(user, pkts, payloads, n, now, retry_at);
}
extern "C" void counter_free(void *user) { Counter::free(user); }

// Several threads, each with a sender of its own, send through two devices.
void many_senders()
{
    std::array<Counter, 2> counters;
    {
        std::array<onramp_device, 2> devices{};
        for (std::size_t i = 0; i < devices.size(); i++) {
            devices[i].size = sizeof devices[i];
            devices[i].mtu = 1514;
            devices[i].flags = ONRAMP_NEVER_BLOCKS;
            devices[i].user = &counters[i];
            devices[i].transmit = counter_transmit;
            devices[i].free = counter_free;
        }
        onramp_link *made = nullptr;
        GIVES(0, onramp_link_devices(&made, devices.data(), devices.size(), nullptr));
        Link link(made);
        auto send = [&] {
            onramp_sender *sending = nullptr;
            GIVES(0, onramp_sender_new(&sending, link.get(), 0));
            Sender sender(sending);
            std::array<onramp_flow, 2> flows{};
            for (auto &flow : flows)
                GIVES(0, onramp_flow_init(&flow, sender.get(), nullptr, 0));
            CHECK(flows[0].port < counters.size() && flows[1].port < counters.size());
            char bytes[10] = "hello";
            iovec part{bytes, sizeof bytes};
            std::vector<onramp_msg> msgs(16);
            for (auto &msg : msgs) {
                msg.iov = &part;
                msg.iovlen = 1;
            }
            for (std::size_t sent = 0; sent < 1600;) {
                int done = onramp_send(sender.get(), &flows[sent / 16 % 2], msgs.data(), 16);
                if (done == -EAGAIN)
                    GIVES(0, onramp_sender_wait(sender.get(), &flows[0], 10, 60 * SECOND));
                else
                    CHECK(done > 0);
                sent += done > 0 ? static_cast<std::size_t>(done) : 0;
            }
            GIVES(0, onramp_sender_flush(sender.get(), 60 * SECOND));
            GIVES(0, onramp_sender_in_flight(sender.get()));
        };
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++)
            threads.emplace_back(send);
        for (auto &thread : threads)
            thread.join();
        GIVES(0, onramp_link_flush(link.get(), 60 * SECOND));
        // Closing waits for the packets; then nobody may send any more.
        GIVES(0, onramp_link_close(link.get(), 60 * SECOND, nullptr));
    }
    CHECK(counters[0].packets + counters[1].packets >= 4 * 1600);
    // The flows of all threads take the devices in turn.
    CHECK(counters[0].packets > 0 && counters[1].packets > 0);
    CHECK(counters[0].bytes == 10 * counters[0].packets);
    CHECK(counters[0].freed == 1 && counters[1].freed == 1);
}

} // namespace

int main()
{
    two_threads();
    texts();
    many_senders();
    return 0;
}
