/* Checks of the tests' programs: a check that fails says where and why, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onramp.h"

#define CHECK(so)                                                                                  \
    do {                                                                                           \
        if (!(so)) {                                                                               \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #so,       \
                    onramp_error());                                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The call gives `number`. */
#define GIVES(number, call)                                                                        \
    do {                                                                                           \
        long long gave = (call), right = (number);                                                 \
        if (gave != right) {                                                                       \
            fprintf(stderr, "%s:%d: %s gave %lld, not %lld (last error: %s)\n", __FILE__,          \
                    __LINE__, #call, gave, right, onramp_error());                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The call fails with `errno_`, and the error's text contains `words`. */
#define FAILS(errno_, words, call)                                                                 \
    do {                                                                                           \
        GIVES(-(errno_), call);                                                                    \
        if (!strstr(onramp_error(), words)) {                                                      \
            fprintf(stderr, "%s:%d: the error of %s is \"%s\", without \"%s\"\n", __FILE__,        \
                    __LINE__, #call, onramp_error(), words);                                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
