/* A server that sends each datagram back, with one thread and epoll: `echo PORT [LINES OF TC]`. The
 * answers go through qdiscs, and leave from the address on which the server was asked. While they
 * have no room, the server receives nothing more, and waits until its sender says that there is
 * room again. The link has no thread: the server does what is due when the link's descriptor says
 * so.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <onramp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { BATCH = 32, SIZE = 65507 };

static char bytes[BATCH][SIZE];
static struct sockaddr_in from[BATCH];
static struct iovec parts[BATCH];
static struct mmsghdr msgs[BATCH];
/* Where each datagram came to: a control message, which is aligned as its length is. */
static size_t came_to[BATCH][CMSG_SPACE(sizeof(struct in_pktinfo)) / sizeof(size_t)];

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    return EXIT_FAILURE;
}

static int receive(int fd)
{
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){.iov_base = bytes[i], .iov_len = SIZE};
        msgs[i].msg_hdr = (struct msghdr){.msg_name = &from[i], .msg_namelen = sizeof from[i],
                                          .msg_iov = &parts[i], .msg_iovlen = 1,
                                          .msg_control = came_to[i],
                                          .msg_controllen = sizeof came_to[i]};
    }
    int count = recvmmsg(fd, msgs, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < count; i++)
        parts[i].iov_len = msgs[i].msg_len;
    return count;
}

/* Answers messages `first` to `count`, whose control messages now say where the answers leave from.
 * Returns the first that has no room. */
static int answer(onramp_sender *sender, int first, int count)
{
    while (first < count) {
        int done = onramp_sendmmsg(sender, msgs + first, (unsigned)(count - first), MSG_DONTWAIT);
        if (done == -EAGAIN)
            break;
        /* A message that cannot be sent at all is left out. */
        first += done > 0 ? done : 1;
    }
    return first;
}

static void watch(int epoll, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

/* Says whether the server waits for datagrams, or for room. */
static void wait_for(int epoll, int fd, int datagrams)
{
    struct epoll_event event = {.events = datagrams ? EPOLLIN : 0, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

int main(int argc, char **argv)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), epoll = epoll_create1(EPOLL_CLOEXEC);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    onramp_options options = {.size = sizeof options, .flags = ONRAMP_MANUAL,
                              .tc = argc > 2 ? argv[2] : NULL};
    onramp_link *link;
    onramp_sender *sender;
    onramp_flow any;
    struct epoll_event event;
    int first = 0, count = 0, on = 1;

    address.sin_port = htons((uint16_t)(argc > 1 ? atoi(argv[1]) : 7));
    if (setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) < 0)
        return fail("cannot set up the socket", strerror(errno));
    if (onramp_link_sockets(&link, &fd, 1, &options) < 0 ||
        onramp_sender_new(&sender, link, 0) < 0 || onramp_flow_init(&any, sender, NULL, 0) < 0)
        return fail("cannot make the link", onramp_error());
    watch(epoll, fd, EPOLLIN);
    watch(epoll, onramp_sender_fd(sender), EPOLLIN | EPOLLET);
    watch(epoll, onramp_link_fd(link), EPOLLIN);
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        if (epoll_wait(epoll, &event, 1, -1) < 0 && errno != EINTR)
            return fail("cannot wait", strerror(errno));
        /* If nothing is due, the call does nothing. */
        onramp_link_run(link, NULL);
        do {
            if (first == count) {
                first = 0;
                count = receive(fd);
            }
            first = answer(sender, first, count);
            /* 1: there is room again already. */
        } while (first < count && onramp_sender_arm(sender, &any, SIZE) == 1);
        if (count < 0)
            first = count = 0;
        wait_for(epoll, fd, first == count);
    }
}
