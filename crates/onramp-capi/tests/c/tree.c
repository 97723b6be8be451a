/* Trees of qdiscs in virtual time. */
#include "check.h"

#include <pthread.h>

#define MS 1000000ULL
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static onramp_tree *tree_of(const char *lines)
{
    onramp_tree *tree = NULL;
    GIVES(0, onramp_tree_new(&tree, lines, 0, 1));
    return tree;
}

static onramp_pkt packet(uint64_t cookie, uint32_t len)
{
    onramp_pkt pkt = {0};
    pkt.cookie = cookie;
    pkt.len = len;
    return pkt;
}

static void library(void)
{
    GIVES(ONRAMP_ABI, onramp_abi());
    CHECK(strchr(onramp_version(), '.'));
    CHECK(strcmp(onramp_drop_name(ONRAMP_DROP_OVERLIMIT), "overlimit") == 0);
    CHECK(strcmp(onramp_drop_name(ONRAMP_DROP_CANCELLED), "cancelled") == 0);
    CHECK(strstr(onramp_drop_about(ONRAMP_DROP_OVERLIMIT), "limit"));
    CHECK(!onramp_drop_name(0) && !onramp_drop_name(255) && !onramp_drop_about(0));
}

/* A bucket of 1000 bytes that fills at 8 Mbit/s lets a packet of 1000 bytes go each millisecond. */
static void departures(void)
{
    onramp_tree *tree = tree_of("qdisc add root tbf rate 8mbit burst 1000 limit 2000");
    onramp_pkt in[4], out[4];
    uint64_t next = 0, packets = 0, bytes = 0;
    for (int i = 0; i < 4; i++)
        in[i] = packet((uint64_t)i, 1000);
    GIVES(2, onramp_tree_enqueue(tree, 5 * MS, in, 4));
    GIVES(0, onramp_tree_backlog(tree, &packets, &bytes));
    CHECK(packets == 2 && bytes == 2000);
    GIVES(1, onramp_tree_dequeue(tree, 5 * MS, out, 4, &next));
    CHECK(out[0].cookie == 0 && out[0].enqueued_ns == 5 * MS && next == 6 * MS);
    GIVES(0, onramp_tree_dequeue(tree, 6 * MS - 1, out, 4, &next));
    CHECK(next == 6 * MS);
    GIVES(1, onramp_tree_dequeue(tree, 6 * MS, out, 1, &next));
    CHECK(out[0].cookie == 1 && out[0].drop_reason == 0 && next == 6 * MS);
    GIVES(0, onramp_tree_dequeue(tree, 6 * MS, out, 4, &next));
    CHECK(next == UINT64_MAX);
    GIVES(0, onramp_tree_dequeue(tree, 6 * MS, out, 4, NULL));
    GIVES(1, onramp_tree_drops(tree, out, 1));
    CHECK(out[0].cookie == 2 && out[0].drop_reason == ONRAMP_DROP_OVERLIMIT);
    GIVES(1, onramp_tree_drops(tree, NULL, 9));
    GIVES(0, onramp_tree_drops(tree, out, 4));
    GIVES(0, onramp_tree_enqueue(tree, 6 * MS, in, 1));
    GIVES(0, onramp_tree_reset(tree, 6 * MS));
    GIVES(1, onramp_tree_drops(tree, out, 4));
    CHECK(out[0].drop_reason == ONRAMP_DROP_PURGED);
    GIVES(0, onramp_tree_free(tree));
}

static void marks_and_headers(void)
{
    unsigned char frame[] = {
        0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 8, 0,                            /* Ethernet */
        0x45, 0x12, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, /* IPv4 */
        4, 0, 0, 53, 0, 8, 0, 0};                                            /* UDP to port 53 */
    uint32_t sum = 0;
    onramp_pkt pkt, other, out[2];
    onramp_tree *tree = tree_of("qdisc add root codel ecn ce_threshold 1ms");
    GIVES(0, onramp_pkt_of_frame(&pkt, ONRAMP_LAYER_ETHERNET, frame, sizeof frame, 7));
    CHECK(pkt.ecn == 2 && pkt.len == sizeof frame && pkt.priority == 6 && pkt.flow != 0);
    CHECK(pkt.head == frame && pkt.head_len == sizeof frame && pkt.cookie == 0);
    GIVES(0, onramp_pkt_of_frame(&other, ONRAMP_LAYER_IP, frame + 14, sizeof frame - 14, 7));
    CHECK(other.flow == pkt.flow && other.len == sizeof frame - 14);
    /* A packet that has waited for longer than a millisecond is marked. */
    GIVES(0, onramp_tree_enqueue(tree, 0, &pkt, 1));
    GIVES(1, onramp_tree_dequeue(tree, 2 * MS, out, 2, NULL));
    CHECK(out[0].ecn == 3 && out[0].head == NULL && out[0].layer == ONRAMP_LAYER_ETHERNET);
    GIVES(1, onramp_frame_mark_ce(ONRAMP_LAYER_ETHERNET, frame, sizeof frame));
    CHECK(frame[15] == 0x13);
    /* The checksum was 0 for the sum of the words before, and has followed the change. */
    for (int i = 14; i < 34; i += 2)
        sum += (uint32_t)(frame[i] << 8 | frame[i + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
    frame[15] = 0x10;
    GIVES(0, onramp_frame_mark_ce(ONRAMP_LAYER_ETHERNET, frame, sizeof frame));
    GIVES(0, onramp_frame_mark_ce(ONRAMP_LAYER_IP, frame, 3));
    FAILS(EINVAL, "layer is 0", onramp_frame_mark_ce(ONRAMP_LAYER_NONE, frame, sizeof frame));
    FAILS(EINVAL, "layer is 9", onramp_pkt_of_frame(&pkt, 9, frame, sizeof frame, 0));
    FAILS(EINVAL, "frame is NULL", onramp_pkt_of_frame(&pkt, ONRAMP_LAYER_IP, NULL, 9, 0));
    FAILS(EINVAL, "pkt is NULL", onramp_pkt_of_frame(NULL, ONRAMP_LAYER_IP, frame, 9, 0));
    GIVES(0, onramp_tree_free(tree));
    /* A filter reads the headers that the packet brings. */
    tree = tree_of("qdisc add root handle 1: prio\n"
                   "filter add parent 1: protocol ip u32 match ip dport 53 0xffff action drop\n");
    GIVES(1, onramp_tree_enqueue(tree, 0, &pkt, 1));
    frame[37] = 54;
    GIVES(0, onramp_tree_enqueue(tree, 0, &pkt, 1));
    GIVES(1, onramp_tree_drops(tree, out, 2));
    CHECK(out[0].drop_reason == ONRAMP_DROP_FILTER);
    GIVES(0, onramp_tree_free(tree));
}

static pthread_key_t at_end;

static void marks_again(void *frame)
{
    GIVES(1, onramp_frame_mark_ce(ONRAMP_LAYER_IP, frame, 20));
}

static void *marks(void *frame)
{
    onramp_pkt pkt;
    GIVES(0, onramp_pkt_of_frame(&pkt, ONRAMP_LAYER_IP, frame, 20, 7));
    CHECK(pthread_setspecific(at_end, frame) == 0);
    return NULL;
}

/* A destructor of a thread's value may still use frames. */
static void frames_at_the_end_of_a_thread(void)
{
    uint8_t frame[20] = {0x45, 1, 0, 20};
    pthread_t thread;
    CHECK(pthread_key_create(&at_end, marks_again) == 0);
    CHECK(pthread_create(&thread, NULL, marks, frame) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK((frame[1] & 3) == 3);
}

static void lines_of_tc(void)
{
    char text[4096], small[8];
    onramp_tree *tree = tree_of("# a comment\n"
                                "qdisc add root handle 1: htb default 1\n"
                                "class add parent 1: classid 1:1 htb rate 8mbit # another\n"
                                "qdisc add parent 1:1 handle 2: pfifo limit 3\n");
    onramp_pkt pkts[5];
    int len = onramp_tree_tc(tree, 0, "-s qdisc show", text, sizeof text);
    CHECK(len > 0 && (size_t)len == strlen(text) && strstr(text, "qdisc pfifo 2: parent 1:1"));
    GIVES(len, onramp_tree_tc(tree, 0, "tc -s qdisc show", NULL, 0));
    GIVES(len, onramp_tree_tc(tree, 0, "-s qdisc show", small, sizeof small));
    CHECK(strcmp(small, "qdisc h") == 0);
    for (uint64_t i = 0; i < 5; i++)
        pkts[i] = packet(i, 1000);
    GIVES(2, onramp_tree_enqueue(tree, 0, pkts, 5));
    GIVES(0, onramp_tree_tc(tree, 0, "qdisc change parent 1:1 handle 2: pfifo limit 4", NULL, 0));
    GIVES(1, onramp_tree_enqueue(tree, 0, pkts, 2));
    CHECK(onramp_tree_tc(tree, 0, "-s -j qdisc show", text, sizeof text) > 0);
    CHECK(text[0] == '[' && strstr(text, "\"drops\":3") && strstr(text, "\"qlen\":4"));
    CHECK(onramp_tree_tc(tree, 0, "class show", text, sizeof text) > 0);
    CHECK(strstr(text, "class htb 1:1") && strstr(text, "rate 8Mbit"));
    FAILS(EINVAL, "limt", onramp_tree_tc(tree, 0, "qdisc change parent 1:1 pfifo limt 4", NULL, 0));
    FAILS(EINVAL, "bogus", onramp_tree_tc(tree, 0, "qdisc replace root bogus", NULL, 0));
    FAILS(EINVAL, "line is NULL", onramp_tree_tc(tree, 0, NULL, NULL, 0));
    FAILS(EINVAL, "text is NULL", onramp_tree_tc(tree, 0, "qdisc show", NULL, 9));
    /* A call that cannot print changes nothing. */
    FAILS(EINVAL, "text is NULL", onramp_tree_tc(tree, 0, "qdisc del parent 1:1", NULL, 9));
    CHECK(onramp_tree_tc(tree, 0, "qdisc del parent 1:1", NULL, 0) == 0);
    FAILS(EINVAL, "UTF-8", onramp_tree_tc(tree, 0, "\xff", NULL, 0));
    GIVES(0, onramp_tree_free(tree));
}

static void misuse(void)
{
    onramp_tree *tree = NULL, *good = tree_of("qdisc add root pfifo");
    onramp_pkt pkts[2] = {packet(1, 100), packet(2, 100)};
    uint64_t when[2] = {2, 1};
    FAILS(EINVAL, "line 2: ",
          onramp_tree_new(&tree, "qdisc add root handle 1: htb\nqdisc x", 0, 0));
    FAILS(EINVAL, "rat", onramp_tree_new(&tree, "qdisc add root tbf rat 1mbit", 0, 0));
    FAILS(EINVAL, "root", onramp_tree_new(&tree, "", 0, 0));
    FAILS(EINVAL, "tc is NULL", onramp_tree_new(&tree, NULL, 0, 0));
    FAILS(EINVAL, "tree is NULL", onramp_tree_new(NULL, "qdisc add root fq", 0, 0));
    CHECK(!tree);
    FAILS(EINVAL, "NULL", onramp_tree_enqueue(NULL, 0, pkts, 1));
    FAILS(EINVAL, "NULL", onramp_tree_dequeue(NULL, 0, pkts, 1, NULL));
    FAILS(EINVAL, "NULL", onramp_tree_backlog(NULL, NULL, NULL));
    FAILS(EINVAL, "pkts is NULL", onramp_tree_enqueue(good, 0, NULL, 1));
    FAILS(EINVAL, "pkts is NULL", onramp_tree_dequeue(good, 0, NULL, 1, NULL));
    FAILS(EINVAL, "there is no room", onramp_tree_enqueue(good, 0, pkts, SIZE_MAX));
    GIVES(0, onramp_tree_enqueue(good, 0, NULL, 0));
    pkts[1].ecn = 4;
    FAILS(EINVAL, "packet 1: ecn is 4", onramp_tree_enqueue(good, 0, pkts, 2));
    GIVES(0, onramp_tree_dequeue(good, 0, pkts, 2, NULL));
    GIVES(0, onramp_tree_enqueue(good, 9, pkts, 1));
    FAILS(EINVAL, "time 8", onramp_tree_dequeue(good, 8, pkts, 2, NULL));
    FAILS(EBUSY, "holds", onramp_tree_replay(good, 0, NULL, NULL, NULL, NULL, NULL));
    GIVES(0, onramp_tree_backlog(good, NULL, NULL));
    GIVES(0, onramp_tree_free(good));
    good = tree_of("qdisc add root pfifo");
    FAILS(EINVAL, "out_ns is NULL",
          onramp_tree_replay(good, 1, when, (uint32_t[]){1}, NULL, NULL, NULL));
    FAILS(EINVAL, "in_ns[1]",
          onramp_tree_replay(good, 2, when, (uint32_t[]){1, 1}, NULL, (uint64_t[2]){0}, NULL));
    /* An object of another kind. */
    FAILS(EBADF, "no onramp_link", onramp_link_flush((onramp_link *)(void *)good, 0));
    GIVES(0, onramp_tree_free(good));
    GIVES(0, onramp_tree_free(NULL));
}

/* A replay gives what a loop of enqueue and dequeue gives. */
static void replay(void)
{
    enum { N = 3000 };
    static uint64_t in_ns[N], flow[N], out_ns[N], by_hand[N];
    static uint32_t len[N];
    static uint8_t why[N];
    const char *lines = "qdisc add root handle 1: tbf rate 100mbit burst 3000 limit 200000\n"
                        "qdisc add parent 1: handle 2: fq_codel limit 300 target 1ms interval 5ms";
    onramp_tree *tree = tree_of(lines);
    onramp_pkt pkt, out[64];
    uint64_t next = UINT64_MAX, dropped = 0;
    for (int i = 0; i < N; i++) {
        in_ns[i] = (uint64_t)(i / 3) * 150000;
        flow[i] = (uint64_t)i % 7;
        len[i] = 300 + (uint32_t)i % 5 * 250;
        by_hand[i] = UINT64_MAX;
    }
    GIVES(0, onramp_tree_replay(tree, N, in_ns, len, flow, out_ns, why));
    GIVES(0, onramp_tree_free(tree));
    tree = tree_of(lines);
    for (int i = 0; i < N || next != UINT64_MAX;) {
        uint64_t now = next;
        if (i < N && in_ns[i] < next) {
            now = in_ns[i];
            pkt = packet((uint64_t)i, len[i]);
            pkt.flow = flow[i++];
            CHECK(onramp_tree_enqueue(tree, now, &pkt, 1) >= 0);
        }
        do {
            int left = onramp_tree_dequeue(tree, now, out, 64, &next);
            CHECK(left >= 0);
            for (int at = 0; at < left; at++)
                by_hand[out[at].cookie] = now;
        } while (next == now);
    }
    GIVES(0, onramp_tree_free(tree));
    for (int i = 0; i < N; i++) {
        CHECK(out_ns[i] == by_hand[i] && (out_ns[i] == UINT64_MAX) == (why[i] != 0));
        dropped += why[i] != 0;
    }
    CHECK(dropped > 0 && dropped < N / 2);
    tree = tree_of("qdisc add root pfifo");
    GIVES(0, onramp_tree_replay(tree, 3, in_ns, len, NULL, out_ns, NULL));
    CHECK(out_ns[2] == in_ns[2]);
    GIVES(0, onramp_tree_free(tree));
}

int main(void)
{
    library();
    departures();
    marks_and_headers();
    frames_at_the_end_of_a_thread();
    lines_of_tc();
    misuse();
    replay();
    return 0;
}
