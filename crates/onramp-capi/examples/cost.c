/* What a packet costs in a tree, from C: batches of 64 packets go in and come out. The example
 * cost.rs does the same from Rust. To compare, after `make && make install PREFIX=/tmp/onramp`:
 *
 *   cc -O2 examples/cost.c -o /tmp/cost -I/tmp/onramp/include /tmp/onramp/lib/libonramp.a -lm
 *   /tmp/cost && cargo run --release -p onramp-capi --example cost
 */
#define _GNU_SOURCE
#include <onramp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCH = 64, BATCHES = 20000, ROUNDS = 9 };

static double clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void measure(const char *qdisc, const char *lines)
{
    static onramp_pkt in[BATCH], out[BATCH];
    double rounds[ROUNDS];
    onramp_tree *tree;
    uint64_t now = 1, cookies = 0;
    if (onramp_tree_new(&tree, lines, 1514, 1) < 0) {
        fprintf(stderr, "%s\n", onramp_error());
        exit(1);
    }
    for (int round = 0; round < ROUNDS; round++) {
        double began = clock_ns();
        for (int batch = 0; batch < BATCHES; batch++) {
            for (int i = 0; i < BATCH; i++) {
                in[i].cookie = (uint64_t)i;
                in[i].flow = (uint64_t)i % 16;
                in[i].len = 1000;
            }
            now += 64000;
            if (onramp_tree_enqueue(tree, now, in, BATCH) != 0 ||
                onramp_tree_dequeue(tree, now, out, BATCH, NULL) != BATCH) {
                fprintf(stderr, "a packet is missing: %s\n", onramp_error());
                exit(1);
            }
            for (int i = 0; i < BATCH; i++)
                cookies += out[i].cookie;
        }
        rounds[round] = (clock_ns() - began) / (BATCHES * BATCH);
    }
    onramp_tree_free(tree);
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    printf("C, %s: %.1f ns a packet (%.1f to %.1f), cookies %llu\n", qdisc, rounds[ROUNDS / 2],
           rounds[0], rounds[ROUNDS - 1], (unsigned long long)cookies);
}

int main(void)
{
    measure("fq", "qdisc add root fq");
    measure("pfifo", "qdisc add root pfifo");
    return 0;
}
