/*
 * Requests of nonblocking calls. What was started goes on whenever a process is in a call of ours, and ends when MPI is
 * asked for its request: where MPI has polled generalized requests (MPICH's extension) it asks us then; else, with
 * MPI_THREAD_MULTIPLE, a thread of ours waits for what is under way. Without either, calls are done at once.
 */
#include "requests.h"

#include "transfer.h"

#include <dlfcn.h>
#include <stdlib.h>

struct request {
    struct file *file;
    struct started *started; /* NULL: done */
    int64_t moved;
    struct problem problem;
    MPI_Request handle;
    struct request *next;
};

/* Latham, Gropp, Ross, Thakur: Extending the MPI-2 generalized request interface (EuroPVM/MPI 2007). */
typedef int poll_function(void *, MPI_Status *);
typedef int wait_function(int, void **, double, MPI_Status *);
typedef int start_function(MPI_Grequest_query_function *, MPI_Grequest_free_function *, MPI_Grequest_cancel_function *,
                           poll_function *, wait_function *, void *, MPI_Request *);

static start_function *start_polled(void) {
    static start_function *known;
    static int is_known;
    if (!__atomic_load_n(&is_known, __ATOMIC_ACQUIRE)) {
        *(void **)&known = dlsym(RTLD_DEFAULT, "MPIX_Grequest_start");
        __atomic_store_n(&is_known, 1, __ATOMIC_RELEASE);
    }
    return known;
}

static int may_have_thread(void) {
    int level = MPI_THREAD_SINGLE;
    return PMPI_Query_thread(&level) == MPI_SUCCESS && level == MPI_THREAD_MULTIPLE;
}

int requests_overlap(void) {
    return start_polled() || may_have_thread();
}

void fill_status(MPI_Status *status, int64_t size) {
    if (status == MPI_STATUS_IGNORE)
        return;
    PMPI_Status_set_elements_x(status, MPI_BYTE, size);
    PMPI_Status_set_cancelled(status, 0);
}

static int query(void *state, MPI_Status *status) {
    struct request *request = state;
    fill_status(status, request->moved);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return raise_problem(request->file->handle, &request->problem);
}

static int release(void *state) {
    free(state);
    return MPI_SUCCESS;
}

static int cancel(void *state, int is_complete) {
    (void)state, (void)is_complete;
    return MPI_SUCCESS;
}

static int end(struct request *request, int waits) {
    if (!request->started)
        return MPI_SUCCESS;
    if (!transfer_end(request->started, waits, &request->moved, &request->problem))
        return MPI_SUCCESS;
    request->started = NULL;
    return PMPI_Grequest_complete(request->handle);
}

static int poll_one(void *state, MPI_Status *status) {
    (void)status;
    return end(state, 0);
}

static int wait_all(int count, void **states, double timeout, MPI_Status *status) {
    (void)timeout, (void)status;
    int result = MPI_SUCCESS;
    for (int i = 0; i < count; i++) {
        int one = end(states[i], 1);
        result = one != MPI_SUCCESS ? one : result;
    }
    return result;
}

/* Requests that the thread waits for, oldest first; it ends with the last of them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct request *first, **last = &first;
static int is_waiting;

static void *wait_for_requests(void *unused) {
    pthread_mutex_lock(&lock);
    while (first) {
        struct request *request = first;
        first = request->next;
        last = first ? last : &first;
        pthread_mutex_unlock(&lock);
        end(request, 1);
        pthread_mutex_lock(&lock);
    }
    is_waiting = 0;
    pthread_mutex_unlock(&lock);
    return unused;
}

static void hand_to_thread(struct request *request) {
    pthread_t thread;
    pthread_mutex_lock(&lock);
    *last = request;
    last = &request->next;
    int is_first = !is_waiting;
    is_waiting = 1;
    pthread_mutex_unlock(&lock);
    if (!is_first)
        return;
    if (pthread_create(&thread, NULL, wait_for_requests, NULL) == 0)
        pthread_detach(thread);
    else
        wait_for_requests(NULL);
}

int request_make(struct file *file, struct started *started, int64_t moved, const struct problem *problem,
                 MPI_Request *handle) {
    struct request *request = calloc(1, sizeof *request);
    if (!request)
        abort();
    *request = (struct request){.file = file, .started = started, .moved = moved, .problem = *problem};
    start_function *polled = started ? start_polled() : NULL;
    int result = polled ? polled(query, release, cancel, poll_one, wait_all, request, &request->handle)
                        : PMPI_Grequest_start(query, release, cancel, request, &request->handle);
    if (result != MPI_SUCCESS) {
        struct problem none = {0};
        fail(&none, MPI_ERR_OTHER, "tabane: MPI makes no request");
        if (started)
            transfer_end(started, 1, &request->moved, &request->problem);
        free(request);
        return raise_problem(file->handle, &none);
    }
    *handle = request->handle;
    if (!started)
        return PMPI_Grequest_complete(request->handle);
    if (!polled)
        hand_to_thread(request);
    return MPI_SUCCESS;
}
