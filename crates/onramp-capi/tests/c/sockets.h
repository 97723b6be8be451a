/* What the tests' programs have in common that send through loopback sockets. */
#ifndef SOCKETS_H
#define SOCKETS_H

#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include "check.h"

#define SECOND 1000000000ULL

static inline int udp_socket(struct sockaddr_in *bound)
{
    socklen_t len = sizeof *bound;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    memset(bound, 0, sizeof *bound);
    bound->sin_family = AF_INET;
    bound->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)bound, sizeof *bound) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)bound, &len) == 0);
    return fd;
}

/* Receives a datagram; returns its length, and its TOS byte. */
static inline ssize_t receive(int fd, void *data, size_t size, int *tos)
{
    struct pollfd ready = {fd, POLLIN, 0};
    struct iovec part = {data, size};
    char control[64];
    struct msghdr msg = {0};
    msg.msg_iov = &part;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof control;
    CHECK(poll(&ready, 1, 60000) == 1);
    ssize_t len = recvmsg(fd, &msg, 0);
    struct cmsghdr *first = CMSG_FIRSTHDR(&msg);
    if (tos)
        *tos = first && first->cmsg_type == IP_TOS ? *CMSG_DATA(first) : -1;
    return len;
}

static inline onramp_msg message(const struct iovec *iov, size_t n)
{
    onramp_msg msg = {0};
    msg.iov = iov;
    msg.iovlen = n;
    return msg;
}

#endif
