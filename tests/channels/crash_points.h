/* CRASH_POINT of the test builds: RINGCAST_CRASH_AT="name:count" kills this process when it comes to that point for the
 * count-th time; "name:count:stop" stops it instead (SIGSTOP), and SIGCONT lets it go on. */
#ifndef RINGCAST_CRASH_POINTS_H
#define RINGCAST_CRASH_POINTS_H

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CRASH_POINT(name) crash_point(name)

static inline void crash_point(const char *name)
{
    static __thread long passed;
    const char *wanted = getenv("RINGCAST_CRASH_AT");
    size_t length = strlen(name);
    if (!wanted || strncmp(wanted, name, length) != 0 || wanted[length] != ':')
        return;
    char *end;
    if (++passed == strtol(wanted + length + 1, &end, 10))
        kill(getpid(), strcmp(end, ":stop") == 0 ? SIGSTOP : SIGKILL);
}

#endif
