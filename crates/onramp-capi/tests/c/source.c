/* Packets that leave from a local address of the program's choice. */
#define _GNU_SOURCE
#include <net/if.h>
#include <stdbool.h>

#include "check.h"
#include "sockets.h"

/* Room for the control message of a source. */
union control {
    char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo)) + CMSG_SPACE(sizeof(struct in6_pktinfo))];
    struct cmsghdr align;
};

/* A server on all addresses, a link over it, and a client with its address. */
struct world {
    int server, client;
    struct sockaddr_in at, client_at;
    onramp_link *link;
    onramp_sender *sender;
};

static struct sockaddr_in address(const char *ip)
{
    struct sockaddr_in address = {0};
    address.sin_family = AF_INET;
    CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
    return address;
}

static struct world world(void)
{
    struct world world = {0};
    socklen_t len = sizeof world.at;
    int on = 1;
    world.client = udp_socket(&world.client_at);
    world.server = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    world.at = address("0.0.0.0");
    CHECK(bind(world.server, (struct sockaddr *)&world.at, sizeof world.at) == 0);
    CHECK(getsockname(world.server, (struct sockaddr *)&world.at, &len) == 0);
    CHECK(setsockopt(world.server, IPPROTO_IP, IP_PKTINFO, &on, sizeof on) == 0);
    GIVES(0, onramp_link_sockets(&world.link, &world.server, 1, NULL));
    GIVES(0, onramp_sender_new(&world.sender, world.link, ONRAMP_COMPLETIONS));
    return world;
}

static void end(struct world *world)
{
    GIVES(0, onramp_sender_free(world->sender));
    GIVES(0, onramp_link_close(world->link, 60 * SECOND, NULL));
    GIVES(0, onramp_link_free(world->link));
    CHECK(close(world->server) == 0 && close(world->client) == 0);
}

/* The next datagram that comes to the socket is from this address. */
static void comes_from(int fd, const char *ip)
{
    struct pollfd ready = {fd, POLLIN, 0};
    struct sockaddr_in from = {0};
    socklen_t len = sizeof from;
    char byte, text[INET_ADDRSTRLEN];
    CHECK(poll(&ready, 1, 60000) == 1);
    GIVES(1, recvfrom(fd, &byte, 1, 0, (struct sockaddr *)&from, &len));
    CHECK(inet_ntop(AF_INET, &from.sin_addr, text, sizeof text));
    if (strcmp(text, ip) != 0) {
        fprintf(stderr, "a datagram came from %s, not from %s\n", text, ip);
        exit(1);
    }
}

/* Makes `msg` a message with one control message. Returns the place of its data. */
static void *with_control(struct msghdr *msg, union control *control, int level, int type,
                          size_t len)
{
    memset(control, 0, sizeof *control);
    msg->msg_control = control->bytes;
    msg->msg_controllen = CMSG_SPACE(len);
    struct cmsghdr *first = CMSG_FIRSTHDR(msg);
    first->cmsg_level = level;
    first->cmsg_type = type;
    first->cmsg_len = CMSG_LEN(len);
    return CMSG_DATA(first);
}

/* A message of one byte. */
static struct mmsghdr message_to(void *to, socklen_t len)
{
    static struct iovec part = {"x", 1};
    struct mmsghdr msg;
    memset(&msg, 0, sizeof msg);
    msg.msg_hdr.msg_name = to;
    msg.msg_hdr.msg_namelen = len;
    msg.msg_hdr.msg_iov = &part;
    msg.msg_hdr.msg_iovlen = 1;
    return msg;
}

/* A server passes the control messages of a question back, and so answers from the address on which
 * it was asked. */
static void answers_from_where_it_was_asked(void)
{
    const char *const asked[] = {"127.0.0.9", "127.0.0.1", "127.0.0.7", "127.0.0.9"};
    struct world w = world();
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct sockaddr_in to = address(asked[i]), from;
        struct mmsghdr msg = message_to(&from, sizeof from);
        union control control;
        char byte;
        struct iovec part = {&byte, 1};
        struct pollfd ready = {w.server, POLLIN, 0};
        to.sin_port = w.at.sin_port;
        CHECK(sendto(w.client, "q", 1, 0, (struct sockaddr *)&to, sizeof to) == 1);
        CHECK(poll(&ready, 1, 60000) == 1);
        msg.msg_hdr.msg_iov = &part;
        msg.msg_hdr.msg_control = control.bytes;
        msg.msg_hdr.msg_controllen = sizeof control;
        GIVES(1, recvmsg(w.server, &msg.msg_hdr, 0));
        CHECK(CMSG_FIRSTHDR(&msg.msg_hdr)->cmsg_type == IP_PKTINFO);
        GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, i % 2 ? MSG_DONTWAIT : 0));
        comes_from(w.client, asked[i]);
        /* Without the control messages, the routing table chooses. */
        msg.msg_hdr.msg_control = NULL;
        msg.msg_hdr.msg_controllen = 0;
        GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
        comes_from(w.client, "127.0.0.1");
    }
    end(&w);
}

/* Returns why the next packet that the sender sends on was dropped; 0: it was sent. */
static int fate(struct world *w)
{
    onramp_completion done;
    GIVES(0, onramp_sender_flush(w->sender, 60 * SECOND));
    GIVES(1, onramp_sender_completions(w->sender, &done, 1));
    return done.drop_reason;
}

static void control_messages(void)
{
    struct world w = world();
    union control control;
    struct in_pktinfo *info;
    struct in6_pktinfo *six;
    struct mmsghdr msg = message_to(&w.client_at, sizeof w.client_at);
    struct mmsghdr many[3];
    int length = sizeof *info;
    info = with_control(&msg.msg_hdr, &control, IPPROTO_IP, IP_PKTINFO, sizeof *info);
    /* Nothing is asked for. */
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    comes_from(w.client, "127.0.0.1");
    GIVES(0, fate(&w));
    info->ipi_ifindex = (int)if_nametoindex("lo");
    CHECK(info->ipi_ifindex > 0);
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    comes_from(w.client, "127.0.0.1");
    GIVES(0, fate(&w));
    info->ipi_spec_dst = address("127.0.0.8").sin_addr;
    /* It means nothing when a datagram is sent. */
    info->ipi_addr = address("192.0.2.1").sin_addr;
    for (int i = 0; i < 3; i++)
        many[i] = msg;
    GIVES(3, onramp_sendmmsg(w.sender, many, 3, 0));
    for (int i = 0; i < 3; i++) {
        comes_from(w.client, "127.0.0.8");
        GIVES(0, fate(&w));
    }
    /* The kernel refuses an address that is not of this machine, and an interface that is not. */
    info->ipi_spec_dst = address("192.0.2.77").sin_addr;
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    CHECK(fate(&w) != 0);
    info->ipi_spec_dst = address("127.0.0.8").sin_addr;
    info->ipi_ifindex = 0x7fffffff;
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    CHECK(fate(&w) != 0);
    /* The structure has one length, and its family is that of the destination. */
    for (length = 0; length <= 20; length += 4) {
        with_control(&msg.msg_hdr, &control, IPPROTO_IP, IP_PKTINFO, (size_t)length);
        if (length != sizeof *info)
            FAILS(EINVAL, "IP_PKTINFO", onramp_sendmmsg(w.sender, &msg, 1, 0));
    }
    with_control(&msg.msg_hdr, &control, IPPROTO_IPV6, IPV6_PKTINFO, sizeof *six - 4);
    FAILS(EINVAL, "IPV6_PKTINFO has 16 bytes", onramp_sendmmsg(w.sender, &msg, 1, 0));
    six = with_control(&msg.msg_hdr, &control, IPPROTO_IPV6, IPV6_PKTINFO, sizeof *six);
    six->ipi6_addr = in6addr_loopback;
    FAILS(EINVAL, "127.0.0.1 cannot leave from ::1", onramp_sendmmsg(w.sender, &msg, 1, 0));
    GIVES(0, onramp_sender_in_flight(w.sender));
    end(&w);
}

/* A flow has a source, too. */
static void flows(void)
{
    struct world w = world();
    struct sockaddr_in from = address("127.0.0.9");
    struct sockaddr_in6 six = {0};
    struct iovec part = {"x", 1};
    onramp_msg msg = message(&part, 1);
    onramp_flow flow, before;
    unsigned lo = if_nametoindex("lo");
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_loopback;
    /* The port number does not matter. */
    from.sin_port = 1234;
    GIVES(0, onramp_flow_init(&flow, w.sender, (struct sockaddr *)&w.client_at,
                              sizeof w.client_at));
    CHECK(flow.source == 0 && sizeof flow == 72);
    GIVES(0, onramp_flow_from(&flow, (struct sockaddr *)&from, sizeof from, 0));
    GIVES(1, onramp_send(w.sender, &flow, &msg, 1));
    comes_from(w.client, "127.0.0.9");
    GIVES(0, fate(&w));
    before = flow;
    GIVES(0, onramp_flow_from(&flow, (struct sockaddr *)&from, sizeof from, lo));
    CHECK(flow.source != before.source);
    GIVES(1, onramp_send(w.sender, &flow, &msg, 1));
    comes_from(w.client, "127.0.0.9");
    GIVES(0, fate(&w));
    /* The same pair has the same number. */
    GIVES(0, onramp_flow_from(&flow, (struct sockaddr *)&from, sizeof from, 0));
    CHECK(flow.source == before.source);
    /* The interface alone, and then nothing. */
    GIVES(0, onramp_flow_from(&flow, NULL, 0, lo));
    CHECK(flow.source != 0 && flow.source != before.source);
    GIVES(1, onramp_send(w.sender, &flow, &msg, 1));
    comes_from(w.client, "127.0.0.1");
    GIVES(0, fate(&w));
    GIVES(0, onramp_flow_from(&flow, NULL, 0, 0));
    CHECK(flow.source == 0);
    from = address("0.0.0.0");
    flow.source = before.source;
    GIVES(0, onramp_flow_from(&flow, (struct sockaddr *)&from, sizeof from, 0));
    CHECK(flow.source == 0);
    /* What is wrong is refused, and changes nothing. */
    flow = before;
    FAILS(EINVAL, "127.0.0.1 cannot leave from ::1",
          onramp_flow_from(&flow, (struct sockaddr *)&six, sizeof six, 0));
    FAILS(EINVAL, "7 bytes", onramp_flow_from(&flow, (struct sockaddr *)&from, 7, 0));
    FAILS(EINVAL, "1 bytes", onramp_flow_from(&flow, (struct sockaddr *)&from, 1, 0));
    from.sin_family = AF_UNIX;
    FAILS(EAFNOSUPPORT, "family 1",
          onramp_flow_from(&flow, (struct sockaddr *)&from, sizeof from, 0));
    FAILS(EINVAL, "flow is NULL", onramp_flow_from(NULL, NULL, 0, 0));
    CHECK(memcmp(&flow, &before, sizeof flow) == 0);
    /* A number that nobody made stands for an address that the kernel refuses. */
    flow.source = 32767;
    GIVES(1, onramp_send(w.sender, &flow, &msg, 1));
    CHECK(fate(&w) != 0);
    /* A flow to the peer of the socket: its family is not known here. */
    GIVES(0, onramp_flow_init(&flow, w.sender, NULL, 0));
    GIVES(0, onramp_flow_from(&flow, (struct sockaddr *)&six, sizeof six, 0));
    end(&w);
}

/* A socket for IPv6 sends to addresses of both families. */
static void over_ipv6(void)
{
    struct world w = world();
    struct sockaddr_in6 at = {0}, to = {0};
    socklen_t len = sizeof at;
    union control control;
    struct in_pktinfo *info;
    struct in6_pktinfo *six;
    struct mmsghdr msg = message_to(&to, sizeof to);
    int client = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), server, off = 0;
    char byte;
    at.sin6_family = to.sin6_family = AF_INET6;
    at.sin6_addr = in6addr_loopback;
    if (client < 0 || bind(client, (struct sockaddr *)&at, sizeof at) < 0) {
        fprintf(stderr, "SKIP: this machine has no IPv6\n");
        end(&w);
        return;
    }
    CHECK(getsockname(client, (struct sockaddr *)&at, &len) == 0);
    server = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(setsockopt(server, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
    GIVES(0, onramp_sender_free(w.sender));
    GIVES(0, onramp_link_free(w.link));
    GIVES(0, onramp_link_sockets(&w.link, &server, 1, NULL));
    GIVES(0, onramp_sender_new(&w.sender, w.link, ONRAMP_COMPLETIONS));
    /* To IPv6, from an address of this machine, and from another, which the kernel refuses. */
    to = at;
    six = with_control(&msg.msg_hdr, &control, IPPROTO_IPV6, IPV6_PKTINFO, sizeof *six);
    six->ipi6_addr = in6addr_loopback;
    six->ipi6_ifindex = if_nametoindex("lo");
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    GIVES(0, fate(&w));
    GIVES(1, recv(client, &byte, 1, 0));
    CHECK(inet_pton(AF_INET6, "2001:db8::77", &six->ipi6_addr) == 1);
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    CHECK(fate(&w) != 0);
    info = with_control(&msg.msg_hdr, &control, IPPROTO_IP, IP_PKTINFO, sizeof *info);
    info->ipi_ifindex = 1;
    FAILS(EINVAL, "::1 cannot leave from 0.0.0.0", onramp_sendmmsg(w.sender, &msg, 1, 0));
    /* To IPv4, with the structures of both families. */
    to.sin6_port = w.client_at.sin_port;
    CHECK(inet_pton(AF_INET6, "::ffff:127.0.0.1", &to.sin6_addr) == 1);
    info->ipi_ifindex = 0;
    info->ipi_spec_dst = address("127.0.0.6").sin_addr;
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    comes_from(w.client, "127.0.0.6");
    six = with_control(&msg.msg_hdr, &control, IPPROTO_IPV6, IPV6_PKTINFO, sizeof *six);
    CHECK(inet_pton(AF_INET6, "::ffff:127.0.0.5", &six->ipi6_addr) == 1);
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    comes_from(w.client, "127.0.0.5");
    end(&w);
    CHECK(close(client) == 0 && close(server) == 0);
}

static size_t none(void *user, onramp_pkt *pkts, const struct iovec *payloads, size_t n,
                   uint64_t now, uint64_t *retry_at)
{
    (void)user, (void)pkts, (void)payloads, (void)now, (void)retry_at;
    return n;
}

/* A link over devices has no addresses, so it refuses sources. */
static void over_devices(void)
{
    struct sockaddr_in from = address("127.0.0.9");
    onramp_device device = {0};
    onramp_link *link = NULL;
    onramp_sender *sender = NULL;
    onramp_flow flow;
    struct iovec part = {"x", 1};
    onramp_msg msg = message(&part, 1);
    struct mmsghdr other = message_to(NULL, 0);
    union control control;
    struct in_pktinfo *info;
    device.size = sizeof device;
    device.mtu = 1514;
    device.transmit = none;
    GIVES(0, onramp_link_devices(&link, &device, 1, NULL));
    GIVES(0, onramp_sender_new(&sender, link, 0));
    GIVES(0, onramp_flow_init(&flow, sender, NULL, 0));
    GIVES(0, onramp_flow_from(&flow, (struct sockaddr *)&from, sizeof from, 0));
    FAILS(EINVAL, "no addresses", onramp_send(sender, &flow, &msg, 1));
    info = with_control(&other.msg_hdr, &control, IPPROTO_IP, IP_PKTINFO, sizeof *info);
    GIVES(1, onramp_sendmmsg(sender, &other, 1, 0));
    info->ipi_spec_dst = from.sin_addr;
    FAILS(EINVAL, "no addresses", onramp_sendmmsg(sender, &other, 1, 0));
    GIVES(0, onramp_sender_free(sender));
    GIVES(0, onramp_link_free(link));
}

/* The process has numbers for 32,767 sources. Those that have one still work. */
static void too_many(void)
{
    struct world w = world();
    struct sockaddr_in from = address("127.0.0.9");
    union control control;
    struct mmsghdr msg = message_to(&w.client_at, sizeof w.client_at);
    onramp_flow flow;
    struct in_pktinfo *info;
    unsigned made = 0;
    GIVES(0, onramp_flow_init(&flow, w.sender, (struct sockaddr *)&w.client_at,
                              sizeof w.client_at));
    while (onramp_flow_from(&flow, (struct sockaddr *)&from, sizeof from, 1000 + made) == 0)
        made++;
    /* Numbers are given in order, and a call that fails changes no flow. */
    CHECK(made > 0 && flow.source == 32767);
    FAILS(EDQUOT, "32767 sources",
          onramp_flow_from(&flow, (struct sockaddr *)&from, sizeof from, 1000 + made));
    info = with_control(&msg.msg_hdr, &control, IPPROTO_IP, IP_PKTINFO, sizeof *info);
    info->ipi_spec_dst = from.sin_addr;
    info->ipi_ifindex = (int)(1000 + made);
    FAILS(EDQUOT, "32767 sources", onramp_sendmmsg(w.sender, &msg, 1, 0));
    info->ipi_ifindex = 0;
    GIVES(1, onramp_sendmmsg(w.sender, &msg, 1, 0));
    comes_from(w.client, "127.0.0.9");
    end(&w);
}

int main(void)
{
    answers_from_where_it_was_asked();
    control_messages();
    flows();
    over_ipv6();
    over_devices();
    too_many();
    return 0;
}
