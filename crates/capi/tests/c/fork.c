/* Threads share descriptors; children after fork go on with what was open while the parent does too. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <tabane.h>
#include <unistd.h>

#include "check.h"

#define RECORD 3901
#define THREADS 6
#define CHILDREN 4
#define ROUNDS 100

static int shared, gone;

static void write_records(int writer) {
    char record[RECORD];
    for (int round = 0; round < ROUNDS; round++) {
        memset(record, 1 + writer * 31 + round, RECORD);
        off_t offset = ((off_t)round * (THREADS + CHILDREN + 1) + writer) * RECORD;
        CHECK(tabane_pwrite(shared, record, RECORD, offset) == RECORD);
        CHECK(tabane_pread(shared, record, RECORD, offset) == RECORD && record[RECORD - 1] == (char)(1 + writer * 31 + round));
    }
}

static void *thread(void *argument) {
    write_records((int)(long)argument);
    return NULL;
}

/* Each record is read by one thread only, whole. */
static void *take_records(void *argument) {
    char record[RECORD];
    long *taken = argument;
    ssize_t count;
    while ((count = tabane_read(shared, record, RECORD)) > 0) {
        CHECK(count == RECORD && record[0] == record[RECORD - 1]);
        ++*taken;
    }
    CHECK(count == 0);
    return NULL;
}

static volatile int is_over;
static int position;

/* Within the tables of descriptors, of the process and of files, at nearly any moment. */
static void *use_tables(void *argument) {
    (void)argument;
    while (!is_over) {
        CHECK(tabane_close(1 << 29) == -1 && errno == EBADF);
        CHECK(tabane_initialized() == 1);
    }
    return NULL;
}

/* Within the lock of a position. */
static void *use_position(void *argument) {
    (void)argument;
    char byte;
    while (!is_over)
        CHECK(tabane_read(position, &byte, 1) == 0);
    return NULL;
}

/* Children never wait for what threads of their parent held. */
static void forked_at_any_moment(void) {
    pthread_t threads[3];
    position = tabane_open("/position", O_RDWR | O_CREAT, 0600);
    CHECK(position >= 0 && tabane_write(position, "12345", 5) == 5);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, i < 2 ? use_tables : use_position, NULL) == 0);
    for (int round = 0; round < 400; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            int is_right = tabane_close(1 << 30) == -1 && errno == EBADF;
            /* With a server only now and then: that is a connection for each child. */
            if (round % 20 == 0) {
                char bytes[2];
                is_right &= tabane_lseek(position, 0, SEEK_CUR) == 5 && tabane_lseek(position, 3, SEEK_SET) == 3;
                is_right &= tabane_read(position, bytes, 2) == 2 && memcmp(bytes, "45", 2) == 0;
            }
            _exit(!is_right);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    is_over = 1;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(tabane_lseek(position, 0, SEEK_CUR) == 5 && tabane_close(position) == 0);
}

int main(void) {
    pthread_t threads[THREADS];
    CHECK(tabane_init(NULL) == 0);
    shared = tabane_open("/shared", O_RDWR | O_CREAT, 0644);
    CHECK(shared >= 0);
    /* The connection is in use when the children are made. */
    CHECK(tabane_pwrite(shared, "x", 1, 0) == 1);
    gone = tabane_open("/gone", O_RDWR | O_CREAT, 0600);
    CHECK(gone >= 0 && tabane_pwrite(gone, "gone", 4, 0) == 4 && tabane_unlink("/gone") == 0);
    pid_t children[CHILDREN];
    for (int child = 0; child < CHILDREN; child++) {
        children[child] = fork();
        CHECK(children[child] >= 0);
        if (children[child] == 0) {
            char name[32];
            /* A file without a name is open in the child too. */
            CHECK(tabane_pread(gone, name, 4, 0) == 4 && tabane_close(gone) == 0);
            write_records(THREADS + child);
            snprintf(name, sizeof(name), "/child%d", child);
            int own = tabane_creat(name, 0600);
            CHECK(own >= 0 && tabane_write(own, name, 6) == 6 && tabane_close(own) == 0);
            _exit(0);
        }
    }
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, thread, (void *)i) == 0);
    write_records(THREADS + CHILDREN);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int child = 0; child < CHILDREN; child++) {
        int status;
        CHECK(waitpid(children[child], &status, 0) == children[child] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    struct stat st;
    CHECK(tabane_fstat(gone, &st) == 0 && st.st_nlink == 0 && st.st_size == 4 && tabane_close(gone) == 0);
    CHECK(tabane_fstat(shared, &st) == 0 && st.st_size == (off_t)ROUNDS * (THREADS + CHILDREN + 1) * RECORD);
    char record[RECORD];
    for (int round = 0; round < ROUNDS; round++)
        for (int writer = 0; writer <= THREADS + CHILDREN; writer++) {
            off_t offset = ((off_t)round * (THREADS + CHILDREN + 1) + writer) * RECORD;
            CHECK(tabane_pread(shared, record, RECORD, offset) == RECORD);
            for (int i = 0; i < RECORD; i++)
                CHECK(record[i] == (char)(1 + writer * 31 + round));
        }
    for (int child = 0; child < CHILDREN; child++) {
        char name[32];
        snprintf(name, sizeof(name), "/child%d", child);
        CHECK(tabane_stat(name, &st) == 0 && st.st_size == 6);
    }
    long taken[THREADS] = {0}, total = 0;
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, take_records, &taken[i]) == 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        total += taken[i];
    }
    CHECK(total == (long)ROUNDS * (THREADS + CHILDREN + 1));
    forked_at_any_moment();
    CHECK(tabane_term() == 0);
    return 0;
}
