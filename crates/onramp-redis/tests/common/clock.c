/* Loaded before the C library, this sets the clock of a program ahead by as many seconds as the file
   named by CLOCK_AHEAD says, which may change at any time. */

#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    static int file = -1;
    char text[16] = "";
    struct timespec now;

    (void)zone;
    if (file < 0)
        file = open(getenv("CLOCK_AHEAD"), O_RDONLY | O_CLOEXEC);
    if (pread(file, text, sizeof text - 1, 0) < 0)
        abort();
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec + atol(text);
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
