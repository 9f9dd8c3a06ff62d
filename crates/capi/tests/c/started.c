// Calls that are started and go on: many at once, tested and waited for in any order and by several threads, short
// reads, failures, bounds, closing with calls under way, and what a child has of its parent's.
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <tabane.h>
#include <unistd.h>

#define COUNT 100
#define SIZE 10000

static char written[COUNT][SIZE], got[COUNT][SIZE];
static int calls[COUNT];

static int start(int is_write, int descriptor, char *memory, off_t offset, size_t size) {
    // Ranges and vector are the library's no more once the call is started.
    struct tabane_range ranges[2] = {{offset, size / 2}, {offset + size / 2, size - size / 2}};
    struct iovec vector[2] = {{memory, size / 3}, {memory + size / 3, size - size / 3}};
    int call = is_write ? tabane_start_pwritev_list(descriptor, ranges, 2, vector, 2)
                        : tabane_start_preadv_list(descriptor, ranges, 2, vector, 2);
    memset(ranges, 0xff, sizeof ranges);
    memset(vector, 0xff, sizeof vector);
    return call;
}

static ssize_t poll_until_done(int call) {
    ssize_t moved = -1;
    int result;
    while ((result = tabane_test(call, &moved)) == 0)
        usleep(100);
    CHECK(result == 1);
    return moved;
}

static void *wait_for_odd(void *unused) {
    for (int i = 1; i < COUNT; i += 2)
        CHECK(tabane_wait(calls[i]) == SIZE);
    return unused;
}

static void many(int descriptor) {
    for (int i = 0; i < COUNT; i++) {
        memset(written[i], 'a' + i % 26, SIZE);
        calls[i] = start(1, descriptor, written[i], (off_t)i * SIZE, SIZE);
        CHECK(calls[i] > 0);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_odd, NULL) == 0);
    for (int i = COUNT - 2; i >= 0; i -= 2)
        CHECK(poll_until_done(calls[i]) == SIZE);
    CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < COUNT; i++)
        FAILS(tabane_wait(calls[i]), EINVAL);
    for (int i = 0; i < COUNT; i++)
        CHECK((calls[i] = start(0, descriptor, got[i], (off_t)i * SIZE, SIZE)) > 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(i % 2 ? tabane_wait(calls[i]) == SIZE : poll_until_done(calls[i]) == SIZE);
    CHECK(memcmp(written, got, sizeof got) == 0);
}

static void ends_and_failures(int descriptor) {
    int call = start(0, descriptor, got[0], (off_t)COUNT * SIZE - 100, SIZE);
    CHECK(call > 0 && tabane_wait(call) == 100);
    int reader = tabane_open("/started", O_RDONLY, 0);
    CHECK(reader >= 0);
    call = start(1, reader, written[0], 0, SIZE);
    CHECK(call > 0);
    errno = 0;
    CHECK(tabane_wait(call) == -1 && errno == EBADF);
    CHECK(tabane_close(reader) == 0);
    FAILS(start(0, reader, got[0], 0, SIZE), EBADF);
    FAILS(start(0, descriptor, got[0], -1, SIZE), EINVAL);
    FAILS(tabane_test(12345678, NULL), EINVAL);
    FAILS(tabane_wait(-1), EINVAL);
    struct tabane_range range = {0, 10};
    struct iovec place = {got[0], 9};
    call = tabane_start_preadv_list(descriptor, &range, 1, &place, 1);
    CHECK(call > 0);
    FAILS(tabane_wait(call), EINVAL);
}

static void bounds(int descriptor) {
    static int started[4096];
    for (int i = 0; i < 4096; i++)
        CHECK((started[i] = start(0, descriptor, got[i % COUNT], 0, 1)) > 0);
    FAILS(start(0, descriptor, got[0], 0, 1), EBUSY);
    CHECK(strstr(tabane_error_message(), "tabane_wait") != NULL);
    for (int i = 0; i < 4096; i++)
        CHECK(tabane_wait(started[i]) == 1);
    int call = start(0, descriptor, got[0], 0, 1);
    CHECK(call > 0 && tabane_wait(call) == 1);
}

static void closed_and_forked(void) {
    int descriptor = tabane_open("/closed", O_RDWR | O_CREAT, 0644);
    CHECK(descriptor >= 0);
    for (int i = 0; i < COUNT; i++)
        CHECK((calls[i] = start(1, descriptor, written[i], (off_t)i * SIZE, SIZE)) > 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(tabane_wait(calls[0]), EINVAL);
        int own = start(0, descriptor, got[0], 0, 0);
        CHECK(own > 0 && tabane_wait(own) == 0);
        exit(0);
    }
    CHECK(tabane_close(descriptor) == 0);
    // They are done: their memory is ours again.
    memset(written, 0, sizeof written);
    for (int i = 0; i < COUNT; i++)
        CHECK(tabane_wait(calls[i]) == SIZE);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    descriptor = tabane_open("/closed", O_RDONLY, 0);
    CHECK(tabane_pread(descriptor, got, sizeof got, 0) == (ssize_t)sizeof got);
    for (int i = 0; i < COUNT; i++)
        CHECK(got[i][0] == 'a' + i % 26 && got[i][SIZE - 1] == 'a' + i % 26);
    for (int i = 0; i < COUNT; i++)
        CHECK(start(0, descriptor, got[i], 0, SIZE) > 0);
    CHECK(tabane_term() == 0);
    FAILS(tabane_test(calls[0], NULL), EINVAL);
}

static atomic_int is_over;

static void *ask_all_the_time(void *unused) {
    while (!is_over)
        FAILS(tabane_test(1 << 30, NULL), EINVAL);
    return unused;
}

// What another thread holds at the moment of a fork, nobody ever gives back in the child.
static void forked_while_others_ask(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, ask_all_the_time, NULL) == 0);
    for (int i = 0; i < 400; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            _exit(tabane_wait(1 << 30) != -1 || errno != EINVAL);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    is_over = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(void) {
    CHECK(tabane_init(NULL) == 0);
    int descriptor = tabane_open("/started", O_RDWR | O_CREAT, 0644);
    CHECK(descriptor >= 0);
    many(descriptor);
    ends_and_failures(descriptor);
    bounds(descriptor);
    forked_while_others_ask();
    closed_and_forked();
    return 0;
}
