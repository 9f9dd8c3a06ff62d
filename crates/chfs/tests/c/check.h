/* Checks for the test programs: the first that fails ends the program with its line and errno. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                             \
    do {                                                                                                             \
        if (!(condition)) {                                                                                          \
            fprintf(stderr, "%s:%d: %s does not hold (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno,       \
                    strerror(errno));                                                                                \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

/* The call fails with -1 and this errno. */
#define FAILS(call, number)                                                                                          \
    do {                                                                                                             \
        errno = 0;                                                                                                   \
        CHECK((call) == -1);                                                                                         \
        CHECK(errno == (number));                                                                                    \
    } while (0)

#endif
