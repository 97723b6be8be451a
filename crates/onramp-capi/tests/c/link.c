/* Links over loopback sockets, and over devices of this program. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "sockets.h"

static void sockets(void)
{
    struct sockaddr_in here, there;
    int on = 1, tos, out = udp_socket(&here), in = udp_socket(&there);
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_flow flow, peer;
    char bytes[64], text[4096];
    CHECK(setsockopt(in, IPPROTO_IP, IP_RECVTOS, &on, sizeof on) == 0);
    CHECK(connect(out, (struct sockaddr *)&there, sizeof there) == 0);
    GIVES(0, onramp_link_sockets(&link, &out, 1, NULL));
    /* The link has a duplicate of the descriptor. */
    CHECK(close(out) == 0);
    GIVES(0, onramp_sender_new(&sender, link, ONRAMP_COMPLETIONS));
    GIVES(0, onramp_flow_init(&flow, sender, (struct sockaddr *)&there, sizeof there));
    GIVES(0, onramp_flow_init(&peer, sender, NULL, 0));
    CHECK(flow.key != peer.key && flow.link == peer.link);
    /* Parts are joined; datagrams of one flow keep their order; flows and messages have marks. */
    for (uint32_t i = 0; i < 40; i++) {
        struct iovec parts[3] = {{&i, sizeof i}, {"ab", 2}, {"cde", 3}};
        onramp_msg msg = message(parts, 3);
        flow.ecn = (uint8_t)(i % 2 + 1);
        msg.ecn = i == 39 ? 3 : 0;
        msg.cookie = 1000 + i;
        GIVES(1, onramp_send(sender, &flow, &msg, 1));
    }
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t number;
        GIVES(9, receive(in, bytes, sizeof bytes, &tos));
        memcpy(&number, bytes, sizeof number);
        CHECK(number == i && memcmp(bytes + 4, "abcde", 5) == 0);
        GIVES(i == 39 ? 3 : i % 2 + 1, tos);
    }
    /* Several messages at once, to the peer of the socket, the last cut into datagrams. */
    struct iovec part = {"0123456789", 10};
    onramp_msg several[3] = {message(&part, 1), message(&part, 1), message(&part, 1)};
    several[2].segment = 4;
    GIVES(3, onramp_send(sender, &peer, several, 3));
    const ssize_t lengths[] = {10, 10, 4, 4, 2};
    for (int i = 0; i < 5; i++)
        GIVES(lengths[i], receive(in, bytes, sizeof bytes, NULL));
    GIVES(0, onramp_sender_flush(sender, 60 * SECOND));
    onramp_completion done[64];
    uint64_t cookies = 0;
    GIVES(43, onramp_sender_completions(sender, done, 64));
    for (int i = 0; i < 43; i++) {
        CHECK(done[i].drop_reason == 0 && done[i].left_ns >= done[i].pushed_ns);
        cookies += done[i].cookie;
    }
    CHECK(cookies == 40 * 1000 + 39 * 40 / 2);
    GIVES(0, onramp_sender_completions(sender, done, 64));
    CHECK(onramp_link_stats(link, text, sizeof text) > 0);
    CHECK(strstr(text, "\"submitted\":43,") && strstr(text, "\"sent\":43,"));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_free(link));
    CHECK(close(in) == 0);
}

static void like_sendmmsg(void)
{
    struct sockaddr_in here, there[2];
    struct sockaddr_in6 far = {0};
    int out = udp_socket(&here), in[2] = {udp_socket(&there[0]), udp_socket(&there[1])};
    int tos, on = 1;
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_options options = {0};
    struct mmsghdr msgs[6];
    struct iovec part = {"0123456789", 10};
    union {
        char bytes[CMSG_SPACE(2) + CMSG_SPACE(sizeof(int)) + CMSG_SPACE(64)];
        struct cmsghdr align;
    } control = {{0}};
    char bytes[64];
    options.size = sizeof options;
    /* Slow enough that a call that waits has to wait: 6 packets of 52 bytes take 3 ms. */
    options.tc = "qdisc add root tbf rate 832kbit burst 104 limit 100000";
    options.credit_packets = 2;
    CHECK(setsockopt(in[0], IPPROTO_IP, IP_RECVTOS, &on, sizeof on) == 0);
    GIVES(0, onramp_link_sockets(&link, &out, 1, &options));
    GIVES(0, onramp_sender_new(&sender, link, 0));
    memset(msgs, 0, sizeof msgs);
    for (int i = 0; i < 6; i++) {
        msgs[i].msg_hdr.msg_name = &there[i % 2];
        msgs[i].msg_hdr.msg_namelen = sizeof there[0];
        msgs[i].msg_hdr.msg_iov = &part;
        msgs[i].msg_hdr.msg_iovlen = 1;
    }
    msgs[0].msg_hdr.msg_control = control.bytes;
    msgs[0].msg_hdr.msg_controllen = CMSG_SPACE(2) + CMSG_SPACE(sizeof(int));
    struct cmsghdr *first = CMSG_FIRSTHDR(&msgs[0].msg_hdr);
    first->cmsg_level = IPPROTO_UDP;
    first->cmsg_type = UDP_SEGMENT;
    first->cmsg_len = CMSG_LEN(2);
    memcpy(CMSG_DATA(first), &(uint16_t){6}, 2);
    struct cmsghdr *second = CMSG_NXTHDR(&msgs[0].msg_hdr, first);
    second->cmsg_level = IPPROTO_IP;
    second->cmsg_type = IP_TOS;
    second->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(second), &(int){2}, sizeof(int));
    int done = onramp_sendmmsg(sender, msgs, 6, MSG_DONTWAIT);
    CHECK(done >= 1 && done <= 6 && msgs[0].msg_len == 10);
    if (done < 6)
        GIVES(6 - done, onramp_sendmmsg(sender, msgs + done, (unsigned)(6 - done), MSG_NOSIGNAL));
    GIVES(6, receive(in[0], bytes, sizeof bytes, &tos));
    CHECK(tos == 2);
    GIVES(4, receive(in[0], bytes, sizeof bytes, NULL));
    for (int i = 1; i < 6; i++)
        GIVES(10, receive(in[i % 2], bytes, sizeof bytes, NULL));
    /* What is not known is refused, and nothing is sent. */
    FAILS(EOPNOTSUPP, "flags", onramp_sendmmsg(sender, msgs, 1, MSG_OOB));
    memcpy(CMSG_DATA(second), &(int){0xb8}, sizeof(int));
    FAILS(EOPNOTSUPP, "DSCP", onramp_sendmmsg(sender, msgs, 1, 0));
    second->cmsg_type = IP_TTL;
    FAILS(EOPNOTSUPP, "level 0 and type 2", onramp_sendmmsg(sender, msgs, 1, 0));
    second->cmsg_type = IP_PKTINFO;
    FAILS(EINVAL, "IP_PKTINFO has 4 bytes", onramp_sendmmsg(sender, msgs, 1, 0));
    second->cmsg_len = 1;
    FAILS(EINVAL, "length 1", onramp_sendmmsg(sender, msgs, 1, 0));
    far.sin6_family = AF_UNIX;
    msgs[1].msg_hdr.msg_name = &far;
    msgs[1].msg_hdr.msg_namelen = sizeof far;
    FAILS(EAFNOSUPPORT, "family 1", onramp_sendmmsg(sender, msgs + 1, 1, 0));
    far.sin6_family = AF_INET6;
    msgs[1].msg_hdr.msg_namelen = 20;
    FAILS(EINVAL, "20 bytes", onramp_sendmmsg(sender, msgs + 1, 1, 0));
    /* As in the kernel, a name without a length is none, and the socket has no peer. */
    msgs[1].msg_hdr.msg_namelen = 0;
    FAILS(EDESTADDRREQ, "socket 0 is not connected", onramp_sendmmsg(sender, msgs + 1, 1, 0));
    FAILS(EINVAL, "msgs is NULL", onramp_sendmmsg(sender, NULL, 1, 0));
    part.iov_len = 65508;
    part.iov_base = calloc(1, part.iov_len);
    FAILS(EMSGSIZE, "65507", onramp_sendmmsg(sender, msgs + 2, 1, 0));
    free(part.iov_base);
    GIVES(0, onramp_link_close(link, 60 * SECOND, NULL));
    part.iov_base = bytes;
    part.iov_len = 1;
    FAILS(EPIPE, "closed", onramp_sendmmsg(sender, msgs + 2, 1, 0));
    GIVES(0, onramp_link_free(link));
    GIVES(0, onramp_sender_free(sender));
    CHECK(close(out) == 0 && close(in[0]) == 0 && close(in[1]) == 0);
}

/* Sends one byte to an address, or to the peer, by a flow and then by a call like sendmmsg. Both
 * have to give the same number, which is returned. */
static int sends_to(onramp_sender *sender, const struct sockaddr *to, socklen_t len)
{
    onramp_flow flow;
    struct iovec part = {"x", 1};
    onramp_msg msg = message(&part, 1);
    struct mmsghdr like;
    int done = onramp_flow_init(&flow, sender, to, len);
    if (done == 0)
        done = onramp_send(sender, &flow, &msg, 1);
    memset(&like, 0, sizeof like);
    like.msg_hdr.msg_name = (void *)(uintptr_t)to;
    like.msg_hdr.msg_namelen = len;
    like.msg_hdr.msg_iov = &part;
    like.msg_hdr.msg_iovlen = 1;
    GIVES(done, onramp_sendmmsg(sender, &like, 1, MSG_DONTWAIT));
    return done;
}

/* Whether a socket can send to an address is known at once. Nothing is accepted and then lost. */
static void destinations(void)
{
    struct sockaddr_in here, there, none;
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6}, far = {.sin6_family = AF_INET6};
    int four = udp_socket(&here), in = udp_socket(&there), off = 0;
    int six = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char text[4096];
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_flow peer;
    mapped.sin6_port = far.sin6_port = there.sin_port;
    mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
    memcpy(mapped.sin6_addr.s6_addr + 12, &there.sin_addr, 4);
    far.sin6_addr.s6_addr[15] = 1;
    none = there;
    none.sin_port = 0;
    /* 1: a socket for IPv6 of both families, if the machine has IPv6. */
    CHECK(six < 0 || setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
    for (int is_six = 0; is_six < (six < 0 ? 1 : 2); is_six++) {
        GIVES(0, onramp_link_sockets(&link, is_six ? &six : &four, 1, NULL));
        GIVES(0, onramp_sender_new(&sender, link, 0));
        GIVES(1, sends_to(sender, (struct sockaddr *)&there, sizeof there));
        GIVES(1, sends_to(sender, (struct sockaddr *)&mapped, sizeof mapped));
        if (!is_six)
            FAILS(EAFNOSUPPORT, "to ::1 cannot leave from socket 0",
                  sends_to(sender, (struct sockaddr *)&far, sizeof far));
        FAILS(EINVAL, "127.0.0.1:0 has the port number 0",
              sends_to(sender, (struct sockaddr *)&none, sizeof none));
        /* A flow without an address can wait for room, but not send. */
        FAILS(EDESTADDRREQ, "socket 0 is not connected", sends_to(sender, NULL, 0));
        GIVES(0, onramp_flow_init(&peer, sender, NULL, 0));
        GIVES(0, onramp_sender_wait(sender, &peer, 1, 0));
        /* The socket gets a peer later. */
        CHECK((is_six ? connect(six, (struct sockaddr *)&mapped, sizeof mapped)
                      : connect(four, (struct sockaddr *)&there, sizeof there)) == 0);
        GIVES(1, sends_to(sender, NULL, 0));
        GIVES(0, onramp_sender_flush(sender, 60 * SECOND));
        for (int i = 0; i < 6; i++)
            GIVES(1, receive(in, text, sizeof text, NULL));
        CHECK(onramp_link_stats(link, text, sizeof text) > 0);
        CHECK(strstr(text, "\"submitted\":6,") && strstr(text, "\"sent\":6,"));
        GIVES(0, onramp_sender_free(sender));
        GIVES(0, onramp_link_free(link));
    }
    CHECK(close(four) == 0 && close(in) == 0 && (six < 0 || close(six) == 0));
}

/* What a thread sends, all to one address. */
struct stream {
    onramp_link *link;
    struct sockaddr_in *to;
};

static void *streams(void *user)
{
    const struct stream *stream = user;
    onramp_sender *sender = NULL;
    struct iovec part = {"hello", 5};
    struct mmsghdr msgs[500];
    memset(msgs, 0, sizeof msgs);
    for (int i = 0; i < 500; i++) {
        msgs[i].msg_hdr.msg_name = stream->to;
        msgs[i].msg_hdr.msg_namelen = sizeof *stream->to;
        msgs[i].msg_hdr.msg_iov = &part;
        msgs[i].msg_hdr.msg_iovlen = 1;
    }
    GIVES(0, onramp_sender_new(&sender, stream->link, 0));
    GIVES(500, onramp_sendmmsg(sender, msgs, 500, 0));
    GIVES(0, onramp_sender_free(sender));
    return NULL;
}

/* Threads that send to one address are one flow of fq. With the line of the page (docs/c.md), the
 * flow has room for the credits of all, so nothing is lost. */
static void threads_to_one_address(void)
{
    struct sockaddr_in here, there;
    int out = udp_socket(&here), in = udp_socket(&there);
    onramp_link *link = NULL;
    onramp_options options = {0};
    pthread_t threads[3];
    char text[4096];
    options.size = sizeof options;
    options.tc = "qdisc add root fq maxrate 8mbit flow_limit 1000";
    GIVES(0, onramp_link_sockets(&link, &out, 1, &options));
    struct stream stream = {link, &there};
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, streams, &stream) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    GIVES(0, onramp_link_close(link, 60 * SECOND, NULL));
    CHECK(onramp_link_stats(link, text, sizeof text) > 0);
    CHECK(strstr(text, "\"submitted\":1500,") && strstr(text, "\"sent\":1500,"));
    GIVES(0, onramp_link_free(link));
    CHECK(close(out) == 0 && close(in) == 0);
}

/* A plugged qdisc lets nothing go: room ends, and comes back when a line of tc pulls the plug. */
static void room(void)
{
    struct sockaddr_in here, there;
    int out = udp_socket(&here), in = udp_socket(&there);
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_flow flow;
    onramp_options options = {0};
    struct iovec part = {"0123456789", 10};
    onramp_msg msgs[9];
    uint64_t purged = 0;
    char text[512];
    options.size = sizeof options;
    options.tc = "qdisc add root handle 1: plug limit 1000000";
    options.credit_packets = 6;
    options.flags = ONRAMP_NO_GSO;
    for (int i = 0; i < 9; i++)
        msgs[i] = message(&part, 1);
    GIVES(0, onramp_link_sockets(&link, &out, 1, &options));
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, (struct sockaddr *)&there, sizeof there));
    GIVES(6, onramp_send(sender, &flow, msgs, 9));
    FAILS(EAGAIN, "no room", onramp_send(sender, &flow, msgs, 1));
    FAILS(ETIMEDOUT, "no room", onramp_sender_wait(sender, &flow, 10, 1000));
    FAILS(ETIMEDOUT, "in flight", onramp_sender_flush(sender, 1000));
    FAILS(ETIMEDOUT, "holds", onramp_link_flush(link, 1000));
    GIVES(6, onramp_sender_in_flight(sender));
    struct pollfd ready = {onramp_sender_fd(sender), POLLIN, 0};
    CHECK(ready.fd >= 0);
    GIVES(ready.fd, onramp_sender_fd(sender));
    GIVES(0, onramp_sender_arm(sender, &flow, 10));
    /* A wake-up may come although there is no room: then the caller asks again. */
    for (int tries = 0; poll(&ready, 1, 0) != 0; tries++) {
        CHECK(tries < 100);
        GIVES(0, onramp_sender_arm(sender, &flow, 10));
    }
    FAILS(EINVAL, "ONRAMP_COMPLETIONS", onramp_sender_completions(sender, NULL, 0));
    CHECK(onramp_link_tc(link, "-s qdisc show", text, sizeof text) > 0 && strstr(text, " 6p"));
    FAILS(EINVAL, "bogus", onramp_link_tc(link, "qdisc change root plug bogus", NULL, 0));
    GIVES(0, onramp_link_tc(link, "qdisc change root plug release_indefinite", NULL, 0));
    GIVES(1, poll(&ready, 1, 60000));
    GIVES(0, onramp_sender_wait(sender, &flow, 10, 60 * SECOND));
    GIVES(0, onramp_sender_flush(sender, 60 * SECOND));
    GIVES(1, onramp_sender_arm(sender, &flow, 10));
    GIVES(0, poll(&ready, 1, 0));
    for (int i = 0; i < 6; i++)
        GIVES(10, receive(in, text, sizeof text, NULL));
    /* A close drops what has not left. */
    GIVES(0, onramp_link_tc(link, "qdisc replace root handle 2: plug limit 1000000", NULL, 0));
    GIVES(3, onramp_send(sender, &flow, msgs, 3));
    FAILS(ETIMEDOUT, "3 packets", onramp_link_close(link, 1000, &purged));
    CHECK(purged == 3);
    FAILS(EPIPE, "closed", onramp_send(sender, &flow, msgs, 1));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_free(link));
    CHECK(close(out) == 0 && close(in) == 0);
}

/* With credits in time, two packets may be in flight until the link has shown its rate. */
static void room_in_time(void)
{
    struct sockaddr_in here;
    int fd = udp_socket(&here);
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_flow flow;
    onramp_options options = {0};
    struct iovec part = {"0123456789", 10};
    onramp_msg msgs[9];
    options.size = sizeof options;
    options.tc = "qdisc add root handle 1: plug limit 1000000";
    options.credit_packets = 6;
    options.credit_time_us = 1000;
    for (int i = 0; i < 9; i++)
        msgs[i] = message(&part, 1);
    GIVES(0, onramp_link_sockets(&link, &fd, 1, &options));
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, (struct sockaddr *)&here, sizeof here));
    GIVES(2, onramp_send(sender, &flow, msgs, 9));
    FAILS(EAGAIN, "no room", onramp_send(sender, &flow, msgs, 1));
    GIVES(0, onramp_link_tc(link, "qdisc change root plug release_indefinite", NULL, 0));
    GIVES(0, onramp_sender_wait(sender, &flow, 10, 60 * SECOND));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_free(link));
    CHECK(close(fd) == 0);
}

/* A device of this program, and what its callbacks have seen. */
struct device {
    onramp_link *link;
    onramp_sender *sender;
    onramp_flow flow;
    pthread_t main;
    size_t most;
    unsigned calls, packets, freed, cookies;
    int flush, close, again;
    char bytes[128];
};

static size_t transmit(void *user, onramp_pkt *pkts, const struct iovec *payloads, size_t n,
                       uint64_t now, uint64_t *retry_at)
{
    struct device *device = user;
    size_t taken = n < device->most ? n : device->most;
    CHECK(now > 0 && *retry_at > now && n <= 64);
    device->calls++;
    for (size_t i = 0; i < taken && i < n; i++) {
        device->cookies += (unsigned)pkts[i].cookie;
        CHECK(payloads[i].iov_len == 10 && pkts[i].len >= 10 && pkts[i].ecn == 1);
        device->bytes[device->packets++ % sizeof device->bytes] = *(char *)payloads[i].iov_base;
        pkts[i].drop_reason = pkts[i].cookie == 3 ? ONRAMP_DROP_NO_BUFFERS : 0;
    }
    device->flush = onramp_link_flush(device->link, 0);
    device->close = onramp_link_close(device->link, 0, NULL);
    CHECK(onramp_sender_arm(device->sender, &device->flow, 1) == -EDEADLK);
    if (pthread_equal(pthread_self(), device->main) && device->again == 0) {
        struct iovec part = {"x", 1};
        onramp_msg msg = message(&part, 1);
        device->again = onramp_send(device->sender, &device->flow, &msg, 1);
    }
    *retry_at = now + 1000;
    return taken;
}

static void device_free(void *user)
{
    struct device *device = user;
    device->freed++;
}

static void devices(void)
{
    struct device seen = {0};
    onramp_device device = {0};
    onramp_options options = {0};
    onramp_link *link = NULL;
    onramp_flow flow;
    onramp_completion done[64];
    char letters[10], text[1024];
    struct iovec part = {letters, sizeof letters};
    unsigned drops = 0;
    struct sockaddr_in there = {0};
    there.sin_family = AF_INET;
    device.size = sizeof device;
    device.mtu = 1514;
    device.name = "tested";
    device.user = &seen;
    device.transmit = transmit;
    device.free = device_free;
    options.size = sizeof options;
    options.tc = "qdisc add root bogus";
    FAILS(EINVAL, "bogus", onramp_link_devices(&link, &device, 1, &options));
    CHECK(!link && !seen.freed);
    options.tc = "qdisc add root handle 1: pfifo";
    GIVES(0, onramp_link_devices(&link, &device, 1, &options));
    seen.link = link;
    seen.main = pthread_self();
    seen.most = 2;
    GIVES(0, onramp_sender_new(&seen.sender, link, ONRAMP_COMPLETIONS));
    FAILS(EINVAL, "no addresses",
          onramp_flow_init(&flow, seen.sender, (struct sockaddr *)&there, sizeof there));
    GIVES(0, onramp_flow_init(&flow, seen.sender, NULL, 0));
    flow.ecn = 1;
    seen.flow = flow;
    for (unsigned i = 0; i < 20; i++) {
        onramp_msg msg = message(&part, 1);
        memset(letters, (int)('a' + i), sizeof letters);
        msg.cookie = i;
        GIVES(1, onramp_send(seen.sender, &flow, &msg, 1));
    }
    GIVES(0, onramp_sender_flush(seen.sender, 60 * SECOND));
    GIVES(0, onramp_link_flush(link, 60 * SECOND));
    GIVES(20, onramp_sender_completions(seen.sender, done, 64));
    for (int i = 0; i < 20; i++) {
        CHECK((done[i].cookie == 3) == (done[i].drop_reason == ONRAMP_DROP_NO_BUFFERS));
        drops += done[i].drop_reason != 0;
    }
    CHECK(drops == 1);
    CHECK(onramp_link_stats(link, text, sizeof text) > 0);
    CHECK(strstr(text, "\"drops\":{\"no_buffers\":1}"));
    /* The rest of what the callbacks have written is read only after the last of them. */
    GIVES(0, onramp_link_close(link, 60 * SECOND, NULL));
    GIVES(0, onramp_sender_free(seen.sender));
    CHECK(seen.freed == 0);
    GIVES(0, onramp_link_free(link));
    CHECK(seen.freed == 1 && seen.packets == 20 && seen.cookies == 190 && seen.calls >= 10);
    CHECK(memcmp(seen.bytes, "abcdefghijklmnopqrst", 20) == 0);
    CHECK(seen.flush == -EDEADLK && seen.close == -EDEADLK);
    CHECK(seen.again == 0 || seen.again == -EBUSY);
}

static size_t liar(void *user, onramp_pkt *pkts, const struct iovec *payloads, size_t n,
                   uint64_t now, uint64_t *retry_at)
{
    (void)user, (void)pkts, (void)payloads, (void)now, (void)retry_at;
    return n + 1;
}

/* A device that takes more packets than there are has sent none. */
static void device_that_lies(void)
{
    onramp_device device = {0};
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_flow flow;
    struct iovec part = {"x", 1};
    onramp_msg msg = message(&part, 1);
    onramp_completion done;
    device.size = sizeof device;
    device.mtu = 1514;
    device.transmit = liar;
    GIVES(0, onramp_link_devices(&link, &device, 1, NULL));
    GIVES(0, onramp_sender_new(&sender, link, ONRAMP_COMPLETIONS));
    GIVES(0, onramp_flow_init(&flow, sender, NULL, 0));
    GIVES(1, onramp_send(sender, &flow, &msg, 1));
    GIVES(0, onramp_sender_flush(sender, 60 * SECOND));
    GIVES(1, onramp_sender_completions(sender, &done, 1));
    CHECK(done.drop_reason == ONRAMP_DROP_DEVICE_ERROR);
    GIVES(1, onramp_send(sender, &flow, &msg, 1));
    GIVES(0, onramp_sender_flush(sender, 60 * SECOND));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_free(link));
}

/* A device that keeps a thread of the link in its callback until it is opened. */
struct trap {
    onramp_link *link;
    pthread_t main;
    sem_t inside, opens, freed;
    atomic_bool is_open, returned;
    bool slept;
    int closed;
    unsigned packets;
};

static size_t catch(void *user, onramp_pkt *pkts, const struct iovec *payloads, size_t n,
                    uint64_t now, uint64_t *retry_at)
{
    struct trap *trap = user;
    (void)pkts, (void)payloads;
    if (!atomic_load(&trap->is_open)) {
        if (pthread_equal(pthread_self(), trap->main)) {
            *retry_at = now + 1000;
            return 0;
        }
        CHECK(sem_post(&trap->inside) == 0 && sem_wait(&trap->opens) == 0);
    }
    trap->packets += (unsigned)n;
    return n;
}

static void trap_free(void *user)
{
    struct trap *trap = user;
    CHECK(sem_post(&trap->freed) == 0);
}

static void open_trap(struct trap *trap)
{
    atomic_store(&trap->is_open, true);
    CHECK(sem_post(&trap->opens) == 0);
}

static bool has_slept(const struct trap *trap)
{
    char text[4096];
    CHECK(onramp_link_stats(trap->link, text, sizeof text) > 0);
    return !strstr(text, "\"parks\":0,");
}

/* Waits until a call of the main thread sleeps or has returned, and then opens the device. */
static void *opens(void *user)
{
    struct trap *trap = user;
    while (!(trap->slept = has_slept(trap)) && !atomic_load(&trap->returned))
        sched_yield();
    open_trap(trap);
    return NULL;
}

/* As `opens`, but closes the link. */
static void *closes(void *user)
{
    struct trap *trap = user;
    while (!(trap->slept = has_slept(trap)) && !atomic_load(&trap->returned))
        sched_yield();
    trap->closed = onramp_link_close(trap->link, 0, NULL);
    return NULL;
}

/* A device keeps its port from taking packets. Calls without MSG_DONTWAIT wait until what was
 * accepted has entered the port, or until the link closes. `held`: messages of an earlier call do
 * not fit either. */
static void waits_for_the_port(bool held, bool is_closed)
{
    enum { MANY = 1024, CREDITS = 32768 };
    static struct mmsghdr msgs[MANY];
    struct iovec part = {"x", 1};
    struct trap trap = {0};
    onramp_device device = {0};
    onramp_options options = {0};
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    pthread_t other;
    unsigned accepted = 1, more = held ? 1 : 2;
    int done;
    trap.main = pthread_self();
    CHECK(sem_init(&trap.inside, 0, 0) == 0 && sem_init(&trap.opens, 0, 0) == 0);
    CHECK(sem_init(&trap.freed, 0, 0) == 0);
    device.size = sizeof device;
    device.mtu = 1514;
    device.user = &trap;
    device.transmit = catch;
    device.free = trap_free;
    options.size = sizeof options;
    options.tc = "qdisc add root pfifo limit 100000";
    options.credit_packets = CREDITS;
    for (int i = 0; i < MANY; i++) {
        msgs[i].msg_hdr.msg_iov = &part;
        msgs[i].msg_hdr.msg_iovlen = 1;
    }
    GIVES(0, onramp_link_devices(&link, &device, 1, &options));
    GIVES(0, onramp_sender_new(&sender, link, 0));
    trap.link = link;
    GIVES(1, onramp_sendmmsg(sender, msgs, 1, MSG_DONTWAIT));
    CHECK(sem_wait(&trap.inside) == 0);
    /* Single messages are refused when the port is full. Of the last of many, the sender keeps
     * those that do not fit. */
    while ((done = onramp_sendmmsg(sender, msgs, held ? MANY : 1, MSG_DONTWAIT)) > 0)
        accepted += (unsigned)done;
    CHECK(done == -EAGAIN && onramp_sender_in_flight(sender) < CREDITS);
    CHECK(pthread_create(&other, NULL, is_closed ? closes : opens, &trap) == 0);
    done = onramp_sendmmsg(sender, msgs, more, 0);
    atomic_store(&trap.returned, true);
    CHECK(pthread_join(other, NULL) == 0);
    if (is_closed) {
        GIVES(-EPIPE, done);
        GIVES(-ETIMEDOUT, trap.closed);
        open_trap(&trap);
    } else {
        GIVES(more, done);
        GIVES(0, onramp_link_flush(link, 60 * SECOND));
        GIVES(0, onramp_link_close(link, 60 * SECOND, NULL));
    }
    CHECK(trap.slept);
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_free(link));
    CHECK(sem_wait(&trap.freed) == 0);
    CHECK(is_closed || trap.packets == accepted + more);
    CHECK(sem_destroy(&trap.inside) == 0 && sem_destroy(&trap.opens) == 0);
    CHECK(sem_destroy(&trap.freed) == 0);
}

static void misuse(void)
{
    struct sockaddr_in here;
    int fd = udp_socket(&here), wrong[2] = {fd, -1};
    int stream = socket(AF_INET, SOCK_STREAM, 0), file = open("/dev/null", O_RDONLY);
    onramp_link *link = NULL, *other = NULL;
    onramp_sender *sender = NULL;
    onramp_options options = {0};
    onramp_device device = {0};
    onramp_flow flow, foreign;
    struct iovec part = {NULL, 1};
    onramp_msg msg = message(&part, 1);
    FAILS(EINVAL, "size of the options is 0", onramp_link_sockets(&link, &fd, 1, &options));
    options.size = sizeof options;
    options.mtu = 67;
    FAILS(EINVAL, "mtu of the options is 67; expected", onramp_link_sockets(&link, &fd, 1, &options));
    options.mtu = 0;
    options.size = sizeof options + 8;
    FAILS(EINVAL, "size of the options", onramp_link_sockets(&link, &fd, 1, &options));
    options.size = sizeof options;
    options.flags = 64;
    FAILS(EINVAL, "0x40", onramp_link_sockets(&link, &fd, 1, &options));
    options.flags = ONRAMP_NO_GSO;
    FAILS(EINVAL, "ONRAMP_NO_GSO", onramp_link_devices(&link, &device, 1, &options));
    options.flags = 0;
    options.credit_packets = 100000;
    FAILS(EINVAL, "100000", onramp_link_sockets(&link, &fd, 1, &options));
    FAILS(EBADF, "socket 1: -1", onramp_link_sockets(&link, wrong, 2, NULL));
    wrong[1] = stream;
    FAILS(EPROTOTYPE, "no UDP socket", onramp_link_sockets(&link, wrong, 2, NULL));
    wrong[1] = file;
    FAILS(ENOTSOCK, "socket 1", onramp_link_sockets(&link, wrong, 2, NULL));
    FAILS(EINVAL, "ports", onramp_link_sockets(&link, NULL, 0, NULL));
    FAILS(EINVAL, "fds is NULL", onramp_link_sockets(&link, NULL, 1, NULL));
    FAILS(EINVAL, "link is NULL", onramp_link_sockets(NULL, &fd, 1, NULL));
    FAILS(EINVAL, "device 0: size is 0", onramp_link_devices(&link, &device, 1, NULL));
    device.size = sizeof device;
    FAILS(EINVAL, "transmit is NULL", onramp_link_devices(&link, &device, 1, NULL));
    device.transmit = liar;
    FAILS(EINVAL, "mtu is 0", onramp_link_devices(&link, &device, 1, NULL));
    device.mtu = 1514;
    device.flags = 4;
    FAILS(EINVAL, "flags is 0x4", onramp_link_devices(&link, &device, 1, NULL));
    CHECK(!link);
    FAILS(EINVAL, "link is NULL", onramp_sender_new(&sender, NULL, 0));
    FAILS(EINVAL, "onramp_link is NULL", onramp_link_tc(NULL, "qdisc", NULL, 0));
    GIVES(0, onramp_link_sockets(&link, &fd, 1, NULL));
    GIVES(0, onramp_link_sockets(&other, &fd, 1, NULL));
    FAILS(EINVAL, "flags is 0x2", onramp_sender_new(&sender, link, 2));
    GIVES(0, onramp_sender_new(&sender, other, 0));
    GIVES(0, onramp_flow_init(&foreign, sender, NULL, 0));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, (struct sockaddr *)&here, sizeof here));
    FAILS(EINVAL, "iov_base is NULL", onramp_send(sender, &flow, &msg, 1));
    FAILS(EINVAL, "flow is NULL", onramp_send(sender, NULL, &msg, 1));
    FAILS(EINVAL, "msgs is NULL", onramp_send(sender, &flow, NULL, 1));
    FAILS(EBADF, "no onramp_sender", onramp_send((onramp_sender *)(void *)link, &flow, &msg, 1));
    GIVES(0, onramp_send(sender, &flow, NULL, 0));
    part.iov_base = "x";
    FAILS(EINVAL, "another link", onramp_send(sender, &foreign, &msg, 1));
    msg.ecn = 4;
    FAILS(EINVAL, "ecn is 4", onramp_send(sender, &flow, &msg, 1));
    msg.ecn = 0;
    flow.port = 1;
    FAILS(EINVAL, "port is 1", onramp_send(sender, &flow, &msg, 1));
    flow.port = 0;
    flow.ecn = 4;
    FAILS(EINVAL, "ecn is 4", onramp_send(sender, &flow, &msg, 1));
    flow.ecn = 0;
    flow.reserved = 1;
    FAILS(EINVAL, "reserved is 1", onramp_send(sender, &flow, &msg, 1));
    flow.reserved = 0;
    flow.reserved2[3] = 1;
    FAILS(EINVAL, "reserved2 is [0, 0, 0, 1]", onramp_send(sender, &flow, &msg, 1));
    flow.reserved2[3] = 0;
    flow.source = 32768;
    FAILS(EINVAL, "source is 32768", onramp_send(sender, &flow, &msg, 1));
    FAILS(EINVAL, "flow is NULL", onramp_sender_arm(sender, NULL, 1));
    FAILS(EINVAL, "onramp_sender is NULL", onramp_sender_fd(NULL));
    FAILS(EINVAL, "1 bytes", onramp_flow_init(&flow, sender, (struct sockaddr *)&here, 1));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_sender_free(NULL));
    GIVES(0, onramp_link_free(link));
    GIVES(0, onramp_link_free(other));
    GIVES(0, onramp_link_free(NULL));
    CHECK(close(fd) == 0 && close(stream) == 0 && close(file) == 0);
}

/* In a child, a link and its senders are closed copies, which can be freed. */
static void forked(void)
{
    struct sockaddr_in here;
    int fd = udp_socket(&here), status = 0;
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_flow flow;
    struct iovec part = {"x", 1};
    onramp_msg msg = message(&part, 1);
    onramp_options options = {0};
    options.size = sizeof options;
    options.tc = "qdisc add root handle 1: plug limit 1000000";
    options.credit_packets = 1;
    GIVES(0, onramp_link_sockets(&link, &fd, 1, &options));
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, (struct sockaddr *)&here, sizeof here));
    GIVES(1, onramp_send(sender, &flow, &msg, 1));
    struct pollfd ready = {onramp_sender_fd(sender), POLLIN, 0};
    GIVES(0, onramp_sender_arm(sender, &flow, 1));
    GIVES(0, onramp_link_tc(link, "qdisc change root plug release_indefinite", NULL, 0));
    GIVES(1, poll(&ready, 1, 60000));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(EPIPE, "closed", onramp_send(sender, &flow, &msg, 1));
        /* It leaves its parent's descriptor as it is. */
        GIVES(1, onramp_sender_arm(sender, &flow, 1));
        GIVES(0, onramp_sender_free(sender));
        GIVES(0, onramp_link_free(link));
        /* The memory of the link's threads is lost in the child, so leave no leak to be found. */
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    GIVES(1, poll(&ready, 1, 0));
    GIVES(0, onramp_sender_wait(sender, &flow, 1, 60 * SECOND));
    GIVES(1, onramp_send(sender, &flow, &msg, 1));
    GIVES(0, onramp_sender_flush(sender, 60 * SECOND));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_free(link));
    CHECK(close(fd) == 0);
}

int main(void)
{
    sockets();
    like_sendmmsg();
    destinations();
    threads_to_one_address();
    room();
    room_in_time();
    devices();
    device_that_lies();
    waits_for_the_port(false, false);
    waits_for_the_port(true, false);
    waits_for_the_port(true, true);
    misuse();
    forked();
    return 0;
}
