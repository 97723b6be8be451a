/* Onramp: Linux traffic control as a library, for C11 and C++17. docs/c.md shows how to begin.
 *
 * Results: 0 or a number; a negative errno if a call failed, and then onramp_error() says why.
 * No call unwinds or throws. A call that finds a bug of the library gives -EOWNERDEAD.
 * Threads: any thread may use an onramp_link; one thread at a time an onramp_tree or onramp_sender.
 * Time: nanoseconds; for links those of CLOCK_MONOTONIC, for trees the caller's own.
 * Fork: in a child, the links and senders of its parent are closed copies: only free them. */

#ifndef ONRAMP_H
#define ONRAMP_H

/* Made by cbindgen from the Rust code: change that, not this file. */

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
/* glibc declares its members if _GNU_SOURCE is defined. */
struct mmsghdr;

/* Version of the interface for which this header was written. `onramp_abi` returns the version of
 * the library that was loaded; a program whose library has another version should not go on. */
#define ONRAMP_ABI 1

/* Layer of a packet whose headers are not given. */
#define ONRAMP_LAYER_NONE 0

/* Layer of a packet whose bytes begin with an IPv4 or IPv6 header. */
#define ONRAMP_LAYER_IP 1

/* Layer of a packet whose bytes begin with an Ethernet header. */
#define ONRAMP_LAYER_ETHERNET 2

/* Most bytes of a packet's headers (`head`) that a tree copies. */
#define ONRAMP_HEAD_MAX 128

/* Flag of `onramp_options`: the kernel is not to segment messages (UDP GSO). */
#define ONRAMP_NO_GSO 1

/* Flag of `onramp_options`: pass transmit times to the kernel (`SO_TXTIME`), whose qdisc has to be
 * fq or etf. */
#define ONRAMP_TXTIME 2

/* Flag of `onramp_options`: the link has no threads. The program calls `onramp_link_run` when the
 * descriptor of `onramp_link_fd` is readable. */
#define ONRAMP_MANUAL 4

/* Flag of `onramp_device`: `transmit` returns within about 2 ms. A link with several devices then
 * needs no extra thread that watches for blocked ones. */
#define ONRAMP_NEVER_BLOCKS 1

/* Flag of `onramp_sender_new`: the sender reports what became of each packet:
 * `onramp_sender_completions`. */
#define ONRAMP_COMPLETIONS 1

/* The qdisc held its `limit` of packets or bytes. */
#define ONRAMP_DROP_OVERLIMIT 1

/* fq held `limit` packets in the packet's priority band. */
#define ONRAMP_DROP_FQ_BAND_LIMIT 2

/* fq held `flow_limit`, or sfq `depth`, packets of the packet's flow. */
#define ONRAMP_DROP_FQ_FLOW_LIMIT 3

/* The departure time asked for lies beyond fq's `horizon`, and `horizon_drop` is set. */
#define ONRAMP_DROP_FQ_HORIZON_LIMIT 4

/* A qdisc dropped the packet to signal congestion to the sender. */
#define ONRAMP_DROP_CONGESTED 5

/* A law against unresponsive flows dropped the packet (BLUE, PIE's cap). */
#define ONRAMP_DROP_FLOOD_PROTECTION 6

/* The packet waited too long in dualpi2's L-queue, and its sender does not understand ECN. */
#define ONRAMP_DROP_L4S_STEP_NON_ECN 7

/* The packet is larger than the token bucket of the qdisc. */
#define ONRAMP_DROP_TOO_BIG 8

/* The packet belongs to no class of the qdisc. */
#define ONRAMP_DROP_UNCLASSIFIED 9

/* The action of a filter dropped the packet. */
#define ONRAMP_DROP_FILTER 10

/* The packet's departure time had passed, or the packet had none and the qdisc needs one. */
#define ONRAMP_DROP_LATE 11

/* netem dropped the packet, as its option `loss` demands. */
#define ONRAMP_DROP_IMPAIRED 12

/* The qdisc is `blackhole` or `noop`, which drops all packets. */
#define ONRAMP_DROP_BLACKHOLE 13

/* The qdisc was reset or replaced, or the link closed, while the packet was in the qdisc. */
#define ONRAMP_DROP_PURGED 14

/* The packet is larger than the device or the path allows (EMSGSIZE). */
#define ONRAMP_DROP_MESSAGE_SIZE 15

/* No socket listens at the destination (ECONNREFUSED). */
#define ONRAMP_DROP_REFUSED 16

/* There is no route to the destination (ENETUNREACH, EHOSTUNREACH and similar errors). */
#define ONRAMP_DROP_UNREACHABLE 17

/* The kernel had no buffer for the packet, even after a retry (ENOBUFS, ENOMEM). */
#define ONRAMP_DROP_NO_BUFFERS 18

/* The kernel refused the packet: a firewall rule, or broadcast not enabled (EPERM, EACCES). */
#define ONRAMP_DROP_NO_PERMISSION 19

/* The qdisc or the device panicked, which ended the port that held the packet. */
#define ONRAMP_DROP_PORT_DEAD 20

/* The device reported an error for which there is no other reason in this list. */
#define ONRAMP_DROP_DEVICE_ERROR 21

/* The sender took the packet back before the device had it (`Sender::cancel`). */
#define ONRAMP_DROP_CANCELLED 22

/* Qdiscs in front of the caller's sockets or devices, each of which is a port (a transmit queue).
 * Any thread may use a link at any time. Threads of the library send what has to wait, or the
 * program does it with `onramp_link_run`, if the link was made with `ONRAMP_MANUAL`. */
typedef struct onramp_link onramp_link;

/* The part of a link with which one thread sends: it has the packets and the credits of the
 * thread. A sender may move to another thread, but a call that meets another one's gives -EBUSY. */
typedef struct onramp_sender onramp_sender;

/* A tree of qdiscs without threads, sockets or a clock. Every call takes the time: nanoseconds
 * from any beginning, which never go back. The same calls give the same results.
 *
 * One thread at a time may use a tree; a call that meets another one's gives -EBUSY. */
typedef struct onramp_tree onramp_tree;

/* A packet of a tree, or of a device of the caller's. Set to zero what is not known.
 *
 * A tree never touches the caller's buffers. The caller stores in `cookie` which buffer a packet
 * has, and finds the buffer again by the cookie when the packet leaves. Each cookie comes back
 * exactly once: from `onramp_tree_dequeue` or from `onramp_tree_drops`. Besides, netem with
 * `duplicate` makes packets (`made`) with the cookie of the original. */
typedef struct onramp_pkt {
    /* A number of the caller's, which the library never reads. */
    uint64_t cookie;
    /* Key of the packet's flow: equal numbers are one flow. `onramp_pkt_of_frame` computes it. */
    uint64_t flow;
    /* Earliest departure time, ns (`SO_TXTIME`); 0: none. Only fq and etf heed it. */
    uint64_t txtime_ns;
    /* Pacing rate of the flow, bytes a second; 0: none (`SO_MAX_PACING_RATE`). Only fq heeds it. */
    uint64_t pacing_rate;
    /* Out: when the packet was enqueued, ns. */
    uint64_t enqueued_ns;
    /* In: the packet's headers, for filters (u32, flower, bpf) and for qdiscs that read headers
     * (cake); NULL: not given. `onramp_tree_enqueue` copies the first `ONRAMP_HEAD_MAX` bytes.
     * Out: NULL. */
    const void *head;
    /* Length on the wire, link header included, bytes. */
    uint32_t len;
    /* Priority (`SO_PRIORITY`): qdiscs such as prio choose a band or class by it. */
    uint32_t priority;
    /* Mark (`SO_MARK`), which the filter fw reads. */
    uint32_t mark;
    /* Bytes of payload in each segment, if the packet is to be segmented later; 0: it is not. */
    uint16_t gso_size;
    /* In: number of bytes at `head`. Out: 0. */
    uint16_t head_len;
    /* In: `ONRAMP_LAYER_IP` or `ONRAMP_LAYER_ETHERNET`, if `head` is given. Out: unchanged. */
    uint8_t layer;
    /* ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE. If it was 1 or 2 and is 3 when the
     * packet leaves, a qdisc has marked the packet, and the caller has to mark the frame:
     * `onramp_frame_mark_ce`. */
    uint8_t ecn;
    /* Out: why the packet was dropped, one of `ONRAMP_DROP_...`; 0: it was not. */
    uint8_t drop_reason;
    /* Out, for a tree: 1 if netem made the packet as a duplicate, else 0. For a device: 0, also
     * for duplicates, which have the cookie of their original. */
    uint8_t made;
    /* Set to 0. */
    uint32_t reserved;
} onramp_pkt;

/* Options of a link. Set `size` to `sizeof(onramp_options)`, and all that is not used to 0. */
typedef struct onramp_options {
    /* `sizeof(onramp_options)`: later versions add fields at the end. */
    uint32_t size;
    /* `ONRAMP_MANUAL`; for links over sockets also `ONRAMP_NO_GSO` and `ONRAMP_TXTIME`. */
    uint32_t flags;
    /* Lines of tc that describe the tree in front of each port, such as `qdisc add root handle 1:
     * htb default 1`. NULL: fq, in which a flow with a rate of up to 100 Mbit/s pauses after each
     * packet. With `fq` here it sends a quantum before it pauses, as in Linux. */
    const char *tc;
    /* Most packets of a sender in flight (accepted, neither sent nor dropped), up to 32,768; 0:
     * the default, 96 packets and 1 MiB, and fewer if there are many senders and `credit_bytes` is
     * 0, too. */
    uint32_t credit_packets;
    /* Most bytes of payload of a sender in flight; 0: 1 MiB. */
    uint32_t credit_bytes;
    /* Largest packet on the wire, link header included, bytes, 68 or more; 0: as the device says.
     * Qdiscs derive their quantum from it. It does not bound the length of messages. */
    uint32_t mtu;
    /* Most time that packets of a sender wait in the link, microseconds: the sender may have as
     * many bytes in flight as leave in this time at their present rate, but two packets in any
     * case, and never more than its credits. 1,000 to 10,000 are good values; less than the delay
     * of a netem costs rate. 0: the credits alone bound the queue. */
    uint32_t credit_time_us;
    /* Seed of the random numbers of qdiscs, for tests that have to repeat exactly; 0: random. */
    uint64_t seed;
} onramp_options;

/* A device of the caller's: a transmit queue, such as one of a TAP, of AF_XDP or of virtio. */
typedef struct onramp_device {
    /* `sizeof(onramp_device)`: later versions add fields at the end. */
    uint32_t size;
    /* Largest packet, link header included, bytes. Not 0: qdiscs derive their quantum from it. */
    uint32_t mtu;
    /* `ONRAMP_NEVER_BLOCKS`. */
    uint32_t flags;
    /* Set to 0. */
    uint32_t reserved;
    /* Name for listings; NULL: "device". Copied. */
    const char *name;
    /* Passed to the callbacks. */
    void *user;
    /* Sends packets `0..n` (at most 64), whose bytes are `payloads[i]`, and returns how many it is
     * done with, from the first on. A packet that failed counts as done, with its `drop_reason`
     * set. If it takes fewer than `n`, the link offers the others again at `*retry_at` (ns of
     * CLOCK_MONOTONIC; 1 ms later if it is left alone). `now` is the time at which the calling
     * thread last read that clock. The arrays and the bytes are the library's, and end with the
     * call.
     *
     * One thread at a time calls it, but any: a thread that sends or waits, one that calls
     * `onramp_link_run`, or one of the library's. It must return: no longjmp, no exception. It
     * should not block. Inside, the calls of the library that wait for a link, and
     * `onramp_link_run`, give -EDEADLK, and those that use the sender whose call is going on give
     * -EBUSY. If it returns more than `n`, all `n` packets are dropped
     * (`ONRAMP_DROP_DEVICE_ERROR`); an unknown `drop_reason` means the same. */
    size_t (*transmit)(void *user,
                       struct onramp_pkt *pkts,
                       const struct iovec *payloads,
                       size_t n,
                       uint64_t now,
                       uint64_t *retry_at);
    /* Called once, after the last call of `transmit`; may be NULL. If no link could be made of the
     * device, it is not called. Same rules. */
    void (*free)(void *user);
} onramp_device;

/* Where packets go, and how qdiscs schedule them. A value: copy it freely, there is nothing to
 * free. `onramp_flow_init` fills it; every sender of the same link may use it. The caller may
 * change `pacing_rate`, `priority`, `mark` and `ecn` at any time, and `source` with
 * `onramp_flow_from`; they hold for later packets. */
typedef struct onramp_flow {
    /* The link of the flow. */
    uint64_t link;
    /* Key by which qdiscs tell the flow from others. */
    uint64_t key;
    /* Rate at which fq sends the flow's packets, bytes on the wire a second, headers included; 0:
     * none. */
    uint64_t pacing_rate;
    /* Number of the port (socket or device) of the flow. */
    uint32_t port;
    /* Priority (`SO_PRIORITY`). */
    uint32_t priority;
    /* Mark (`SO_MARK`). */
    uint32_t mark;
    /* The destination, as bytes of a `sockaddr_in` or `sockaddr_in6`; all 0: the peer to which the
     * socket is connected. */
    uint8_t address[28];
    /* ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE. */
    uint8_t ecn;
    /* Set to 0. */
    uint8_t reserved;
    /* Number of the local address from which packets leave, which `onramp_flow_from` sets; 0: the
     * system chooses the address. */
    uint16_t source;
    /* Set to 0. */
    uint8_t reserved2[4];
} onramp_flow;

/* A message for `onramp_send`: one datagram, or several of `segment` bytes each. */
typedef struct onramp_msg {
    /* The parts of the payload. The library copies the bytes before the call returns. */
    const struct iovec *iov;
    /* Number of parts. */
    size_t iovlen;
    /* Earliest departure time, ns of CLOCK_MONOTONIC; 0: none. */
    uint64_t txtime_ns;
    /* A number that the message's completion reports. */
    uint64_t cookie;
    /* Bytes in each datagram but the last (`UDP_SEGMENT`); 0: the payload is one datagram. */
    uint16_t segment;
    /* ECN code point of this message; 0: that of the flow. */
    uint8_t ecn;
    /* Set to 0. */
    uint8_t reserved[5];
} onramp_msg;

/* What became of a packet of a sender. */
typedef struct onramp_completion {
    /* The cookie of the message. */
    uint64_t cookie;
    /* Key of the flow. */
    uint64_t flow;
    /* When the packet was accepted, ns of CLOCK_MONOTONIC. Behind `series`, or `netem` with a
     * qdisc below it: when it came to the last qdisc. */
    uint64_t pushed_ns;
    /* When the packet left or was dropped, ns of CLOCK_MONOTONIC; `UINT64_MAX`: unknown. */
    uint64_t left_ns;
    /* Length on the wire, bytes. */
    uint32_t len;
    /* Why the packet was dropped, one of `ONRAMP_DROP_...`; 0: it was sent. */
    uint8_t drop_reason;
    /* 0. */
    uint8_t reserved[3];
} onramp_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* Returns the version of the interface of the library that was loaded: compare it with
 * `ONRAMP_ABI`. */
uint32_t onramp_abi(void);

/* Returns the version of the library as a text, such as "0.1.0". */
const char *onramp_version(void);

/* Returns why the last failed call of this thread failed: a text that names what was wrong. It
 * stays until the next failed call of this thread, and is empty before the first. */
const char *onramp_error(void);

/* Returns the name of a drop reason (`ONRAMP_DROP_...`), such as "overlimit"; NULL if no reason
 * has this number. */
const char *onramp_drop_name(uint8_t reason);

/* Returns a sentence that says when a packet is dropped for this reason (`ONRAMP_DROP_...`); NULL
 * if no reason has this number. */
const char *onramp_drop_about(uint8_t reason);

/* Makes a tree from lines of tc, one command a line: `qdisc add root handle 1: htb default 1`,
 * `class add parent 1: classid 1:1 htb rate 8mbit`, and so on. The lines need not name a device;
 * `#` begins a comment. `mtu` is the length of the largest packet, link header included, bytes (0:
 * 1514). Equal seeds give equal random choices.
 *
 * Returns 0. -EINVAL: a line is wrong, and the text names the word.
 *
 * # Safety
 *
 * `tree` may be written, and `tc` ends with a zero byte. */
int onramp_tree_new(struct onramp_tree **tree, const char *tc, uint32_t mtu, uint64_t seed);

/* Frees a tree, and forgets the packets that it holds: `onramp_tree_reset` and `onramp_tree_drops`
 * give their cookies back before. NULL is allowed.
 *
 * Returns 0. -EBUSY: another call is using the tree, which is not freed.
 *
 * # Safety
 *
 * `tree` is NULL or comes from `onramp_tree_new`, and is not used again. */
int onramp_tree_free(struct onramp_tree *tree);

/* Carries out a command of tc on a running tree, and writes what tc would print to `text`, `n`
 * bytes at most with the zero byte at its end. `qdisc change root fq maxrate 8mbit` changes the
 * tree; `-s qdisc show` and `-s -j class show` list it as text and as JSON. `text` may be NULL if
 * `n` is 0. Packets that a change drops are among `onramp_tree_drops`.
 *
 * Returns the length of the whole text, as `snprintf` does. -EINVAL: the line is wrong, nothing
 * has changed, and the text names the word.
 *
 * # Safety
 *
 * `tree` comes from `onramp_tree_new`; `line` ends with a zero byte; `n` bytes at `text` may be
 * written. */
int onramp_tree_tc(struct onramp_tree *tree, uint64_t now, const char *line, char *text, size_t n);

/* Enqueues packets, in order. A packet that is not enqueued is dropped, and so may be packets that
 * the tree already held: `onramp_tree_drops` returns them.
 *
 * Returns how many packets were dropped. -EINVAL: a packet is wrong, and none was enqueued.
 *
 * # Safety
 *
 * `tree` comes from `onramp_tree_new`; `n` packets at `pkts` may be read, and `head_len` bytes at
 * the `head` of each. */
int onramp_tree_enqueue(struct onramp_tree *tree,
                        uint64_t now,
                        const struct onramp_pkt *pkts,
                        size_t n);

/* Takes packets that may leave now, `n` at most, and writes them to `pkts`. Writes to `next` when
 * to ask again: `now` if `n` packets left, because more may be ready; `UINT64_MAX` if the tree is
 * empty, or if nothing leaves it until it is changed (a closed `plug`). A later call of
 * `onramp_tree_enqueue` or `onramp_tree_tc` may bring the time forward. `next` may be NULL.
 *
 * Returns how many packets left.
 *
 * # Safety
 *
 * `tree` comes from `onramp_tree_new`; `n` packets at `pkts` may be written, and `next`. */
int onramp_tree_dequeue(struct onramp_tree *tree,
                        uint64_t now,
                        struct onramp_pkt *pkts,
                        size_t n,
                        uint64_t *next);

/* Takes packets that were dropped, `n` at most, each with its `drop_reason`, and writes them to
 * `pkts`. If `pkts` is NULL, forgets `n` of them. The tree keeps dropped packets until they are
 * taken: take them from time to time.
 *
 * Returns how many packets it took.
 *
 * # Safety
 *
 * `tree` comes from `onramp_tree_new`; `pkts` is NULL, or `n` packets there may be written. */
int onramp_tree_drops(struct onramp_tree *tree, struct onramp_pkt *pkts, size_t n);

/* Drops all packets that the tree holds (`ONRAMP_DROP_PURGED`), and sets the state of all flows
 * back. `onramp_tree_drops` returns the packets.
 *
 * Returns 0.
 *
 * # Safety
 *
 * `tree` comes from `onramp_tree_new`. */
int onramp_tree_reset(struct onramp_tree *tree, uint64_t now);

/* Writes how many packets the tree holds, and their bytes. Dropped packets do not count. Both
 * places may be NULL.
 *
 * Returns 0.
 *
 * # Safety
 *
 * `tree` comes from `onramp_tree_new`; `packets` and `bytes` are NULL or may be written. */
int onramp_tree_backlog(struct onramp_tree *tree, uint64_t *packets, uint64_t *bytes);

/* Passes `n` packets through an empty tree in virtual time at once, in front of a device that
 * takes each packet as soon as the tree lets it go. Packet `i` arrives at `in_ns[i]` (never before
 * the packet before it), has `len[i]` bytes and belongs to flow `flow[i]` (NULL: all to one).
 * Writes when it left to `out_ns[i]`, `UINT64_MAX` if it was dropped, and its drop reason to
 * `why[i]` (NULL: not wanted; 0: it left). A packet that `netem` has duplicated counts as left as
 * soon as one of the two leaves. Packets that have not left an hour of virtual time after the last
 * one that did are dropped.
 *
 * Returns 0. -EBUSY: the tree holds packets, or dropped packets that were not taken.
 *
 * # Safety
 *
 * `tree` comes from `onramp_tree_new`; the arrays of `n` elements may be read or written, and do
 * not overlap. */
int onramp_tree_replay(struct onramp_tree *tree,
                       size_t n,
                       const uint64_t *in_ns,
                       const uint32_t *len,
                       const uint64_t *flow,
                       uint64_t *out_ns,
                       uint8_t *why);

/* Fills `pkt` from the headers of a frame that begins at `layer` (`ONRAMP_LAYER_IP` or
 * `ONRAMP_LAYER_ETHERNET`): `flow`, a hash of addresses, protocol, ports and VLAN; `len`, that of
 * the frame; `ecn`; `priority`, from the type of service, as Linux derives it; `head`, which
 * points to the frame, so keep the frame until the packet was enqueued; and `layer`. All other
 * fields are 0. With a random `seed`, it is hard to choose addresses that share a flow with
 * others.
 *
 * Returns 0.
 *
 * # Safety
 *
 * `pkt` may be written, and `len` bytes at `frame` may be read. */
int onramp_pkt_of_frame(struct onramp_pkt *pkt,
                        int layer,
                        const void *frame,
                        size_t len,
                        uint64_t seed);

/* Writes "congestion experienced" (CE) into the IP header of a frame, and corrects the checksum of
 * an IPv4 header. Call it for a frame whose packet left the tree with `ecn` 3 and came with 1 or
 * 2.
 *
 * Returns 1, or 0 if the frame is not IP or not ECN-capable, and was not changed.
 *
 * # Safety
 *
 * `len` bytes at `frame` may be read and written, and nobody else uses them meanwhile. */
int onramp_frame_mark_ce(int layer, void *frame, size_t len);

/* Makes a link over UDP sockets, connected or not. Each becomes a port. The sockets stay the
 * caller's, to receive from and to close: the link has duplicates of the descriptors. Set options
 * such as IP_TOS before. `options` may be NULL.
 *
 * Returns 0.
 *
 * # Safety
 *
 * `link` may be written; `n` descriptors at `fds` may be read, and are open; `options` is NULL or
 * may be read. */
int onramp_link_sockets(struct onramp_link **link,
                        const int *fds,
                        size_t n,
                        const struct onramp_options *options);

/* Makes a link over devices of the caller's. Each becomes a port. The structures are copied; what
 * their `user` points to must live until `free` is called. `options` may be NULL.
 *
 * Returns 0. If it fails, no callback was called, and none will be.
 *
 * # Safety
 *
 * `link` may be written; `n` devices at `devices` may be read, and their callbacks may be called
 * by any thread; `options` is NULL or may be read. */
int onramp_link_devices(struct onramp_link **link,
                        const struct onramp_device *devices,
                        size_t n,
                        const struct onramp_options *options);

/* Frees a link. Its senders stay usable. When the last of them is freed too, the link closes at
 * once, and drops the packets that it still holds: `onramp_link_close` gives them time. The `free`
 * of its devices is called then, or soon after, by a thread of the library that still uses them;
 * if the link was closed before, no thread does, unless it is blocked in a device. NULL is
 * allowed. A child after `fork` may free its copy of a link.
 *
 * Returns 0. -EDEADLK: the call came from a callback of a device.
 *
 * # Safety
 *
 * `link` is NULL or comes from this library; no other call uses it, or will. */
int onramp_link_free(struct onramp_link *link);

/* Closes a link: refuses new packets, waits until the link holds none, but for at most
 * `timeout_ns`, and drops the rest (`ONRAMP_DROP_PURGED`), whose number it writes to `purged`
 * (NULL: not wanted). Then the threads of the link end.
 *
 * Returns 0 if all packets have left or were dropped by a qdisc or a device (`onramp_link_stats`
 * tells which). -ETIMEDOUT: the call dropped some, or a device still blocks.
 *
 * # Safety
 *
 * `link` comes from this library; `purged` is NULL or may be written. */
int onramp_link_close(struct onramp_link *link, uint64_t timeout_ns, uint64_t *purged);

/* Waits until a link holds no packet, but for at most `timeout_ns`. While other threads send, that
 * may never be.
 *
 * Returns 0. -ETIMEDOUT: it still holds packets.
 *
 * # Safety
 *
 * `link` comes from this library. */
int onramp_link_flush(struct onramp_link *link, uint64_t timeout_ns);

/* Returns the descriptor of a link that was made with `ONRAMP_MANUAL`, for epoll, poll or an event
 * library. It is readable whenever `onramp_link_run` is due, also because another thread has sent
 * packets. It is the library's: do not read from it, and do not close it. The library closes it
 * when the link and its senders are freed.
 *
 * -EINVAL: the link has threads, which need no program.
 *
 * # Safety
 *
 * `link` comes from this library. */
int onramp_link_fd(struct onramp_link *link);

/* Does what is due in a link that was made with `ONRAMP_MANUAL`, without waiting: sends packets
 * whose time has come, a limited number from each port. Writes to `next` (NULL: not wanted) when
 * to call again, ns of CLOCK_MONOTONIC. A time in the past means at once, and `UINT64_MAX` that
 * only the descriptor will tell: there is nothing to do, another thread is in this call, the link
 * is closed, or this is a child after `fork`. A program that waits for the descriptor of
 * `onramp_link_fd` does not need `next`, because the descriptor becomes readable at that time too.
 *
 * The calls that wait (`onramp_sender_wait`, `onramp_sender_flush`, `onramp_link_flush`,
 * `onramp_link_close`, `onramp_link_tc`, and `onramp_sendmmsg` without MSG_DONTWAIT) do this work
 * themselves while they wait, so a program with one thread may make them. `onramp_sender_arm` does
 * not wait: the descriptor of `onramp_sender_fd` becomes readable because the program goes on
 * calling `onramp_link_run`. A device that blocks in `transmit` blocks the calling thread.
 *
 * Returns 0. -EINVAL: the link has threads, which do this work. -EDEADLK: the call came from a
 * callback of a device.
 *
 * # Safety
 *
 * `link` comes from this library; `next` is NULL or may be written. */
int onramp_link_run(struct onramp_link *link, uint64_t *next);

/* Carries out a command of tc on a running link, while other threads send, and writes what tc
 * would print to `text`: see `onramp_tree_tc`. The lines need not name a device.
 *
 * Returns the length of the whole text. -EINVAL: the line is wrong, and nothing has changed.
 * -EINPROGRESS: a device blocks its port, which makes the change later.
 *
 * # Safety
 *
 * `link` comes from this library; `line` ends with a zero byte; `n` bytes at `text` may be
 * written. */
int onramp_link_tc(struct onramp_link *link, const char *line, char *text, size_t n);

/* Writes the counters of a link to `text` as one JSON object, `n` bytes at most with the zero byte
 * at its end: `submitted`, `sent`, `held`, `drops` by reason, and more, for the link and for each
 * of its `ports` (docs/json.md). `text` may be NULL if `n` is 0.
 *
 * Returns the length of the whole text, as `snprintf` does.
 *
 * # Safety
 *
 * `link` comes from this library; `n` bytes at `text` may be written. */
int onramp_link_stats(struct onramp_link *link, char *text, size_t n);

/* Makes a sender of a link. Each thread that sends needs one of its own. `flags`: 0 or
 * `ONRAMP_COMPLETIONS`.
 *
 * Returns 0.
 *
 * # Safety
 *
 * `sender` may be written, and `link` comes from this library. */
int onramp_sender_new(struct onramp_sender **sender, struct onramp_link *link, uint32_t flags);

/* Frees a sender. The packets that it has submitted go on their way. NULL is allowed.
 *
 * Returns 0. -EBUSY: another call is using the sender, which is not freed. -EDEADLK: the call came
 * from a callback of a device.
 *
 * # Safety
 *
 * `sender` is NULL or comes from `onramp_sender_new`, and is not used again. */
int onramp_sender_free(struct onramp_sender *sender);

/* Fills `flow` with a new flow to the address `to` of `len` bytes, a `sockaddr_in` or
 * `sockaddr_in6`, on the next port in turn. NULL: to the peer to which the socket is connected, or
 * to the device of the caller's. Packets of one flow that one sender sends keep their order, as
 * far as the qdisc keeps it. Make a flow once for each connection, not for each packet.
 *
 * Returns 0. -EAFNOSUPPORT: the address is not one of IPv4 or IPv6, or it is one of IPv6 and the
 * socket is of IPv4. -EINVAL: its port number is 0, or the link is over devices.
 *
 * # Safety
 *
 * `flow` may be written; `sender` comes from `onramp_sender_new`; `to` is NULL, or `len` bytes
 * there may be read. */
int onramp_flow_init(struct onramp_flow *flow,
                     struct onramp_sender *sender,
                     const struct sockaddr *to,
                     socklen_t len);

/* Makes packets of `flow` leave from the local address `from` of `len` bytes, a `sockaddr_in` or
 * `sockaddr_in6` whose port number does not matter, and from the interface with the index
 * `ifindex` (`if_nametoindex`). NULL, or an unspecified address, leaves the choice of the address
 * to the system, and 0 that of the interface. A server whose socket is bound to no address has to
 * answer from the address to which the request came (`IP_PKTINFO`, `IPV6_PKTINFO`).
 *
 * The kernel checks the address when it sends: packets from an address that is not of this machine
 * are dropped (`ONRAMP_DROP_DEVICE_ERROR`, `ONRAMP_DROP_UNREACHABLE`).
 *
 * Returns 0. -EINVAL: one address is of IPv4, the other of IPv6. -EAFNOSUPPORT: `from` is neither.
 * -EDQUOT: the process has asked for 32,767 other pairs of address and interface, which the
 * library never forgets.
 *
 * # Safety
 *
 * `flow` may be read and written; `from` is NULL, or `len` bytes there may be read. */
int onramp_flow_from(struct onramp_flow *flow,
                     const struct sockaddr *from,
                     socklen_t len,
                     unsigned int ifindex);

/* Sends messages of one flow, in order. Never waits. They enter the flow's port together; those
 * that were accepted and do not fit into the port enter it with the next call that sends, waits or
 * flushes. The bytes are copied before the call returns. If this thread is the first at an idle
 * port, it also sends packets of the port, as far as the qdisc lets them go.
 *
 * Returns how many messages were accepted. If none was: -EAGAIN, no room (`onramp_sender_wait`);
 * -EMSGSIZE, too large; -EPIPE, the link is closed; -EOWNERDEAD, the flow's port is dead;
 * -ENOBUFS, completions wait; -EDESTADDRREQ, the flow has no address and the socket is not
 * connected; -EINVAL.
 *
 * # Safety
 *
 * `sender` comes from `onramp_sender_new`; `flow`, and `n` messages at `msgs` with their parts,
 * may be read. */
int onramp_send(struct onramp_sender *sender,
                const struct onramp_flow *flow,
                const struct onramp_msg *msgs,
                size_t n);

/* Sends messages as sendmmsg(2) does, with the same arguments: each to the address `msg_name`
 * (NULL: the peer of the socket). The flow of a message is a hash of that address and of the one
 * that IP_PKTINFO or IPV6_PKTINFO names. Knows the control messages UDP_SEGMENT, IP_TOS and
 * IPV6_TCLASS (only ECN), SCM_TXTIME, and IP_PKTINFO and IPV6_PKTINFO, which say from which local
 * address and interface the message leaves, as `onramp_flow_from` does. Writes to `msg_len` of
 * each accepted message how many bytes it has. `flags`: MSG_DONTWAIT or 0, and MSG_NOSIGNAL.
 * Without MSG_DONTWAIT, waits until all messages are accepted and have entered their ports.
 *
 * A call with one message of 4,096 bytes and more sends the message without a copy, if the port is
 * idle and the qdisc (a fifo, `codel`, `fq_codel`, `sfq`, `fq`) lets the message leave at once.
 *
 * Returns how many messages were accepted. If none was, an error as of `onramp_send`, or
 * -EOPNOTSUPP: a flag or control message is not known; -EAFNOSUPPORT: the socket cannot send to an
 * address of this family; -EINVAL: the address has the port number 0; -EDQUOT: too many sources,
 * see `onramp_flow_from`; -EDEADLK: it would have to wait in a callback of a device.
 *
 * # Safety
 *
 * `sender` comes from `onramp_sender_new`; `n` messages at `msgs` may be read and written, and all
 * they point to may be read. */
int onramp_sendmmsg(struct onramp_sender *sender, struct mmsghdr *msgs, unsigned int n, int flags);

/* Waits until a message of `bytes` is likely to be accepted on `flow`, or never will be (the link
 * is closed, or the port dead), but for at most `timeout_ns`.
 *
 * Returns 0. -ETIMEDOUT: there is still no room. -EDEADLK: the call came from a callback of a
 * device.
 *
 * # Safety
 *
 * `sender` comes from `onramp_sender_new`, and `flow` may be read. */
int onramp_sender_wait(struct onramp_sender *sender,
                       const struct onramp_flow *flow,
                       size_t bytes,
                       uint64_t timeout_ns);

/* Returns the descriptor of the sender for epoll, poll or an event library: an eventfd, which is
 * the library's and is closed when the sender is freed. It becomes readable after
 * `onramp_sender_arm`. Watch it edge-triggered (EPOLLET), or read its 8 bytes when it is readable.
 *
 * # Safety
 *
 * `sender` comes from `onramp_sender_new`. */
int onramp_sender_fd(struct onramp_sender *sender);

/* Asks for room for a message of `bytes` on `flow`, without waiting. Call it after -EAGAIN, and
 * last before the event loop waits: other calls with the sender may cancel the request. May send
 * packets of the link, to make room.
 *
 * Returns 1 if there is room now, or never will be: try again. Returns 0 if not: the descriptor of
 * `onramp_sender_fd` becomes readable when there may be. Then try again, and ask again if there
 * still is none. -EDEADLK: the call came from a callback of a device.
 *
 * # Safety
 *
 * `sender` comes from `onramp_sender_new`, and `flow` may be read. */
int onramp_sender_arm(struct onramp_sender *sender, const struct onramp_flow *flow, size_t bytes);

/* Waits until all packets that this sender submitted have left or were dropped, but for at most
 * `timeout_ns`.
 *
 * Returns 0. -ETIMEDOUT: some are still in the link. -EDEADLK: the call came from a callback of a
 * device.
 *
 * # Safety
 *
 * `sender` comes from `onramp_sender_new`. */
int onramp_sender_flush(struct onramp_sender *sender, uint64_t timeout_ns);

/* Returns how many packets of the sender are in flight: accepted, and neither sent nor dropped
 * yet. Looks which have left since the last call, and never waits; may send packets that had not
 * fitted into their port. A program with one thread and a loop around epoll learns by it that all
 * have left: it calls `onramp_link_run` when the descriptor of `onramp_link_fd` is readable, and
 * then this function, until it returns 0.
 *
 * # Safety
 *
 * `sender` comes from `onramp_sender_new`. */
int onramp_sender_in_flight(struct onramp_sender *sender);

/* Takes what became of packets of the sender, which was made with `ONRAMP_COMPLETIONS`, `n` at
 * most, in no particular order, and writes it to `completions`. A sender of which 65,536
 * completions wait accepts no messages.
 *
 * Returns how many it took.
 *
 * # Safety
 *
 * `sender` comes from `onramp_sender_new`, and `n` completions may be written. */
int onramp_sender_completions(struct onramp_sender *sender,
                              struct onramp_completion *completions,
                              size_t n);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ONRAMP_H */
