/*
 * The shared file pointer: eight bytes in a hidden file beside the file itself, which the process that first needs it
 * makes. Who moves it holds a lock on them meanwhile; servers take locks away from who dies.
 */

#include "file.h"

#include <tabane.h>

#include <errno.h>

static int open_hidden(struct file *file, int is_made, struct problem *problem) {
    if (file->shared_descriptor >= 0)
        return 1;
    int descriptor = tabane_open(file->shared_path, O_RDWR | (is_made ? O_CREAT : 0), 0600);
    if (descriptor < 0) {
        if (is_made || errno != ENOENT)
            fail_errno(problem, "the shared file pointer");
        return 0;
    }
    file->shared_descriptor = descriptor;
    return 1;
}

static int hold_lock(struct file *file, short kind, struct problem *problem) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = 0, .l_len = sizeof(int64_t)};
    if (tabane_fcntl_lock(file->shared_descriptor, F_OFD_SETLKW, &lock) == 0)
        return 1;
    fail_errno(problem, "the shared file pointer");
    return 0;
}

static int64_t load(struct file *file, struct problem *problem) {
    int64_t position = file->shared_start;
    ssize_t size = tabane_pread(file->shared_descriptor, &position, sizeof position, 0);
    if (size < 0)
        fail_errno(problem, "the shared file pointer");
    return size == sizeof position ? position : file->shared_start;
}

static void store(struct file *file, int64_t position, struct problem *problem) {
    if (tabane_pwrite(file->shared_descriptor, &position, sizeof position, 0) != sizeof position)
        fail_errno(problem, "the shared file pointer");
}

int64_t shared_move(struct file *file, int64_t amount, struct problem *problem) {
    int64_t position = file->shared_start;
    pthread_mutex_lock(&file->shared_lock);
    if (open_hidden(file, 1, problem) && hold_lock(file, F_WRLCK, problem)) {
        position = load(file, problem);
        if (problem->class == MPI_SUCCESS)
            store(file, position + amount, problem);
        hold_lock(file, F_UNLCK, problem);
    }
    pthread_mutex_unlock(&file->shared_lock);
    return position;
}

int64_t shared_get(struct file *file, struct problem *problem) {
    int64_t position = file->shared_start;
    pthread_mutex_lock(&file->shared_lock);
    if (open_hidden(file, 0, problem))
        position = load(file, problem);
    pthread_mutex_unlock(&file->shared_lock);
    return position;
}

void shared_set(struct file *file, int64_t position, struct problem *problem) {
    pthread_mutex_lock(&file->shared_lock);
    if (open_hidden(file, 1, problem) && hold_lock(file, F_WRLCK, problem)) {
        store(file, position, problem);
        hold_lock(file, F_UNLCK, problem);
    }
    pthread_mutex_unlock(&file->shared_lock);
}

int shared_is_used(struct file *file) {
    pthread_mutex_lock(&file->shared_lock);
    int is_used = file->shared_descriptor >= 0;
    pthread_mutex_unlock(&file->shared_lock);
    return is_used;
}

void shared_close(struct file *file) {
    if (file->shared_descriptor >= 0)
        tabane_close(file->shared_descriptor);
    file->shared_descriptor = -1;
}

void shared_remove(const char *path) {
    tabane_unlink(path);
}
