/* Links without threads: this program does what is due, in a loop of its own or while it waits. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "sockets.h"

static uint64_t now(void)
{
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static unsigned threads(void)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    while (readdir(tasks))
        count++;
    CHECK(closedir(tasks) == 0);
    return count;
}

/* A device that takes packets while it is open, and what its callback has seen. */
struct gate {
    onramp_link *link;
    pthread_t owner;
    bool open, from_owner;
    unsigned packets;
    int run;
};

static size_t pass(void *user, onramp_pkt *pkts, const struct iovec *payloads, size_t n,
                   uint64_t at, uint64_t *retry_at)
{
    struct gate *gate = user;
    (void)pkts, (void)payloads;
    gate->run = onramp_link_run(gate->link, NULL);
    gate->from_owner = gate->from_owner && pthread_equal(pthread_self(), gate->owner);
    *retry_at = at + 1000;
    if (!gate->open)
        return 0;
    gate->packets += (unsigned)n;
    return n;
}

/* Makes a link without threads over `n` devices of `gate`. */
static onramp_link *link_of(struct gate *gate, size_t n, const char *tc, uint32_t credits)
{
    onramp_device devices[4];
    onramp_options options = {0};
    onramp_link *link = NULL;
    unsigned before = threads();
    memset(gate, 0, sizeof *gate);
    memset(devices, 0, sizeof devices);
    gate->owner = pthread_self();
    gate->open = gate->from_owner = true;
    for (size_t i = 0; i < n; i++) {
        devices[i].size = sizeof devices[i];
        devices[i].mtu = 1514;
        devices[i].user = gate;
        devices[i].transmit = pass;
    }
    options.size = sizeof options;
    options.tc = tc;
    options.credit_packets = credits;
    options.flags = ONRAMP_MANUAL;
    GIVES(0, onramp_link_devices(&link, devices, n, &options));
    GIVES(before, threads());
    gate->link = link;
    return link;
}

/* Sends one byte on a flow. */
static int send_one(onramp_sender *sender, const onramp_flow *flow)
{
    struct iovec part = {"x", 1};
    onramp_msg msg = message(&part, 1);
    return onramp_send(sender, flow, &msg, 1);
}

static void end(onramp_link *link, onramp_sender *sender)
{
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_close(link, 60 * SECOND, NULL));
    GIVES(0, onramp_link_free(link));
}

/* A loop around poll sends what waits for its time, over sockets. */
static void loop_over_sockets(void)
{
    struct sockaddr_in here, there;
    int out = udp_socket(&here), in = udp_socket(&there);
    onramp_options options = {0};
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_flow flow;
    uint64_t next = 0;
    char byte;
    unsigned before = threads();
    options.size = sizeof options;
    options.flags = ONRAMP_MANUAL | ONRAMP_NO_GSO;
    /* A packet of 43 bytes takes 1 ms. */
    options.tc = "qdisc add root tbf rate 344kbit burst 43 limit 100000";
    GIVES(0, onramp_link_sockets(&link, &out, 1, &options));
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, (struct sockaddr *)&there, sizeof there));
    for (int i = 0; i < 5; i++)
        GIVES(1, send_one(sender, &flow));
    struct pollfd ready[2] = {{onramp_link_fd(link), POLLIN, 0}, {in, POLLIN, 0}};
    CHECK(ready[0].fd >= 0);
    GIVES(ready[0].fd, onramp_link_fd(link));
    for (int got = 0; got < 5;) {
        CHECK(poll(ready, 2, 60000) > 0);
        if (ready[0].revents)
            GIVES(0, onramp_link_run(link, &next));
        if (ready[1].revents) {
            GIVES(1, recv(in, &byte, 1, 0));
            got++;
        }
    }
    GIVES(before, threads());
    /* The last packet may have left in a call that was to look again. */
    for (int tries = 0; next != UINT64_MAX; tries++) {
        CHECK(tries < 1000);
        GIVES(0, onramp_link_run(link, &next));
    }
    GIVES(0, poll(ready, 1, 0));
    GIVES(0, onramp_link_run(link, NULL));
    end(link, sender);
    CHECK(close(out) == 0 && close(in) == 0);
}

/* Nothing leaves but in calls of this program. `next` tells when to call, and so does the
 * descriptor. */
static void nothing_leaves_by_itself(void)
{
    struct gate gate;
    onramp_link *link = link_of(&gate, 4, "qdisc add root netem delay 1ms", 0);
    onramp_sender *sender = NULL;
    onramp_flow flows[4];
    uint64_t next = 0;
    GIVES(0, onramp_sender_new(&sender, link, 0));
    for (int i = 0; i < 4; i++) {
        GIVES(0, onramp_flow_init(&flows[i], sender, NULL, 0));
        GIVES(1, send_one(sender, &flows[i]));
    }
    struct pollfd ready = {onramp_link_fd(link), POLLIN, 0};
    GIVES(1, poll(&ready, 1, 60000));
    /* The time of the packets has come, but nobody has called. */
    CHECK(gate.packets == 0);
    while (gate.packets < 4) {
        GIVES(1, poll(&ready, 1, 60000));
        GIVES(0, onramp_link_run(link, &next));
    }
    CHECK(gate.from_owner && gate.run == -EDEADLK);
    end(link, sender);
    /* A packet that leaves in 100 seconds: it is not due, and `next` says when it will be. */
    link = link_of(&gate, 1, "qdisc add root netem delay 100s", 0);
    uint64_t before = now(), purged = 0;
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flows[0], sender, NULL, 0));
    GIVES(1, send_one(sender, &flows[0]));
    ready.fd = onramp_link_fd(link);
    next = 0;
    for (int tries = 0; next <= now(); tries++) {
        CHECK(tries < 1000);
        GIVES(0, onramp_link_run(link, &next));
    }
    CHECK(next >= before + 100 * SECOND && next <= now() + 100 * SECOND);
    GIVES(0, poll(&ready, 1, 0));
    FAILS(ETIMEDOUT, "1 packets", onramp_link_close(link, 0, &purged));
    CHECK(purged == 1 && gate.packets == 0);
    GIVES(0, onramp_link_run(link, &next));
    CHECK(next == UINT64_MAX);
    GIVES(0, poll(&ready, 1, 0));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_free(link));
}

/* A program learns without waiting that all has left. */
static void in_flight_goes_down(void)
{
    struct gate gate;
    onramp_link *link = link_of(&gate, 1, "qdisc add root netem delay 1ms", 0);
    onramp_sender *sender = NULL;
    onramp_flow flow;
    struct pollfd ready = {onramp_link_fd(link), POLLIN, 0};
    gate.open = false;
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, NULL, 0));
    for (int i = 0; i < 3; i++)
        GIVES(1, send_one(sender, &flow));
    GIVES(3, onramp_sender_in_flight(sender));
    gate.open = true;
    while (onramp_sender_in_flight(sender) > 0) {
        CHECK(gate.packets < 3);
        GIVES(1, poll(&ready, 1, 60000));
        GIVES(0, onramp_link_run(link, NULL));
    }
    CHECK(gate.packets == 3);
    end(link, sender);
}

/* The calls that wait do the work themselves, though nobody calls `onramp_link_run`. */
static void calls_that_wait(void)
{
    struct gate gate;
    onramp_link *link = link_of(&gate, 2, "qdisc add root handle 1: netem delay 1ms", 2);
    onramp_sender *sender = NULL;
    onramp_flow flow;
    struct iovec part = {"x", 1};
    struct mmsghdr msgs[9];
    char text[512];
    memset(msgs, 0, sizeof msgs);
    for (int i = 0; i < 9; i++) {
        msgs[i].msg_hdr.msg_iov = &part;
        msgs[i].msg_hdr.msg_iovlen = 1;
    }
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, NULL, 0));
    GIVES(9, onramp_sendmmsg(sender, msgs, 9, 0));
    GIVES(0, onramp_sender_flush(sender, 60 * SECOND));
    CHECK(gate.packets == 9);
    GIVES(1, send_one(sender, &flow));
    GIVES(1, send_one(sender, &flow));
    GIVES(0, onramp_sender_wait(sender, &flow, 1, 60 * SECOND));
    CHECK(gate.packets >= 10);
    GIVES(1, send_one(sender, &flow));
    GIVES(0, onramp_link_flush(link, 60 * SECOND));
    CHECK(gate.packets == 12);
    GIVES(0, onramp_link_tc(link, "qdisc change root netem delay 2ms", NULL, 0));
    CHECK(onramp_link_tc(link, "qdisc show", text, sizeof text) > 0 && strstr(text, "delay 2ms"));
    /* They end in time if there is nothing that they can do. */
    gate.open = false;
    GIVES(0, onramp_sender_wait(sender, &flow, 1, 60 * SECOND));
    GIVES(2, onramp_sendmmsg(sender, msgs, 2, 0));
    FAILS(EAGAIN, "no room", send_one(sender, &flow));
    FAILS(ETIMEDOUT, "no room", onramp_sender_wait(sender, &flow, 1, 1000));
    FAILS(ETIMEDOUT, "in flight", onramp_sender_flush(sender, 1000));
    FAILS(ETIMEDOUT, "holds", onramp_link_flush(link, 1000));
    gate.open = true;
    /* A close waits as well. */
    GIVES(0, onramp_link_close(link, 60 * SECOND, NULL));
    CHECK(gate.packets == 14 && gate.from_owner && gate.run == -EDEADLK);
    end(link, sender);
}

/* The loop also wakes the sender that waits for room. */
static void room_comes_in_the_loop(void)
{
    struct gate gate;
    onramp_link *link = link_of(&gate, 1, "qdisc add root pfifo", 1);
    onramp_sender *sender = NULL;
    onramp_flow flow;
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, NULL, 0));
    gate.open = false;
    GIVES(1, send_one(sender, &flow));
    FAILS(EAGAIN, "no room", send_one(sender, &flow));
    struct pollfd ready[2] = {{onramp_link_fd(link), POLLIN, 0},
                              {onramp_sender_fd(sender), POLLIN, 0}};
    GIVES(0, onramp_sender_arm(sender, &flow, 1));
    gate.open = true;
    do {
        CHECK(poll(ready, 2, 60000) > 0);
        if (ready[0].revents)
            GIVES(0, onramp_link_run(link, NULL));
    } while (!ready[1].revents || onramp_sender_arm(sender, &flow, 1) == 0);
    CHECK(gate.packets == 1);
    GIVES(1, send_one(sender, &flow));
    end(link, sender);
    CHECK(gate.packets == 2);
}

/* Another thread sends; this one does what is due. */
static void *sends(void *user)
{
    onramp_link *link = user;
    onramp_sender *sender = NULL;
    onramp_flow flow;
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, NULL, 0));
    for (int i = 0; i < 10; i++)
        GIVES(1, send_one(sender, &flow));
    GIVES(0, onramp_sender_free(sender));
    return NULL;
}

static bool has_sent(onramp_link *link, const char *count)
{
    char text[4096];
    CHECK(onramp_link_stats(link, text, sizeof text) > 0);
    return strstr(text, count);
}

static void another_thread_sends(void)
{
    struct gate gate;
    onramp_link *link = link_of(&gate, 1, "qdisc add root netem delay 1ms", 16);
    pthread_t other;
    struct pollfd ready = {onramp_link_fd(link), POLLIN, 0};
    CHECK(pthread_create(&other, NULL, sends, link) == 0);
    while (!has_sent(link, "\"sent\":10,")) {
        GIVES(1, poll(&ready, 1, 60000));
        GIVES(0, onramp_link_run(link, NULL));
    }
    CHECK(pthread_join(other, NULL) == 0);
    GIVES(0, onramp_link_close(link, 60 * SECOND, NULL));
    GIVES(0, onramp_link_free(link));
    CHECK(gate.packets == 10);
}

static void misuse(void)
{
    struct sockaddr_in here;
    int fd = udp_socket(&here);
    struct gate gate;
    onramp_device device = {0};
    onramp_options options = {0};
    onramp_link *link = NULL;
    uint64_t next = 7;
    GIVES(0, onramp_link_sockets(&link, &fd, 1, NULL));
    FAILS(EINVAL, "ONRAMP_MANUAL", onramp_link_fd(link));
    FAILS(EINVAL, "ONRAMP_MANUAL", onramp_link_run(link, &next));
    CHECK(next == 7);
    GIVES(0, onramp_link_free(link));
    FAILS(EINVAL, "onramp_link is NULL", onramp_link_fd(NULL));
    FAILS(EINVAL, "onramp_link is NULL", onramp_link_run(NULL, NULL));
    options.size = sizeof options;
    options.flags = ONRAMP_MANUAL | ONRAMP_TXTIME;
    FAILS(EINVAL, "ONRAMP_TXTIME", onramp_link_devices(&link, &device, 1, &options));
    options.flags = 8;
    FAILS(EINVAL, "ONRAMP_MANUAL", onramp_link_sockets(&link, &fd, 1, &options));
    onramp_sender *sender = NULL;
    link = link_of(&gate, 1, NULL, 0);
    GIVES(0, onramp_sender_new(&sender, link, 0));
    FAILS(EBADF, "no onramp_link", onramp_link_fd((onramp_link *)(void *)sender));
    FAILS(EBADF, "no onramp_link", onramp_link_run((onramp_link *)(void *)sender, NULL));
    end(link, sender);
    CHECK(close(fd) == 0);
}

/* In a child, nothing is due, and the parent's timer stays as it is. */
static void forked(void)
{
    struct gate gate;
    onramp_link *link = link_of(&gate, 1, "qdisc add root netem delay 1ms", 0);
    onramp_sender *sender = NULL;
    onramp_flow flow;
    uint64_t next = 0;
    int status = 0;
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, NULL, 0));
    GIVES(1, send_one(sender, &flow));
    struct pollfd ready = {onramp_link_fd(link), POLLIN, 0};
    GIVES(1, poll(&ready, 1, 60000));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        GIVES(0, onramp_link_run(link, &next));
        CHECK(next == UINT64_MAX && gate.packets == 0);
        FAILS(EPIPE, "closed", send_one(sender, &flow));
        GIVES(0, onramp_sender_free(sender));
        GIVES(0, onramp_link_free(link));
        /* Memory that the parent uses may be lost in the child, so leave no leak to be found. */
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    GIVES(1, poll(&ready, 1, 0));
    while (gate.packets == 0)
        GIVES(0, onramp_link_run(link, NULL));
    end(link, sender);
}

int main(void)
{
    loop_over_sockets();
    nothing_leaves_by_itself();
    in_flight_goes_down();
    calls_that_wait();
    room_comes_in_the_loop();
    another_thread_sends();
    misuse();
    forked();
    return 0;
}
