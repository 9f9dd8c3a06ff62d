/* Calls of several users, on a tmpfs and on the cluster: both do the same. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <tabane.h>
#include <unistd.h>

#include "check.h"

#define STEPS 1200
#define TMPFS_MAGIC 0x01021994

struct user {
    uid_t uid;
    gid_t gid;
    gid_t groups[2];
    int group_count;
};

static const struct user users[] = {
    {0, 0, {0, 0}, 0},
    {7001, 8001, {8002, 8003}, 2},
    {7002, 8002, {8001, 0}, 1},
    {7003, 8003, {0, 0}, 0},
    {7004, 8004, {8002, 0}, 1},
};

enum call { MKDIR, RMDIR, CREATE, OPEN, WRITE, CUT, UNLINK, RENAME, LINK, SYMLINK, CHMOD, CHOWN, TOUCH, SET_TIME, STAT,
            ACCESS, LIST, CALLS };
static const char *const call_names[] = {"mkdir", "rmdir", "create", "open", "write", "truncate", "unlink", "rename",
                                         "link", "symlink", "chmod", "chown", "touch", "utimens", "stat", "access",
                                         "list"};

struct step {
    enum call call;
    int user;
    const char *path, *other;
    int mode, mask, flags;
    uid_t uid;
    gid_t gid;
};

static const char *const directories[] = {"/d0", "/d1", "/d0/s", "/d1/s"};
static const char *const files[] = {"/d0/a", "/d0/b", "/d1/a", "/d1/b", "/d0/s/a", "/l/a", "/l/s/a", "/d1/s/b"};
static const char *const links[] = {"/d0/k", "/d1/k"};
static const char *const symbolic[] = {"/d0/y", "/d1/y"};
static const int directory_modes[] = {0755, 0700, 0777, 01777, 01777, 02775, 03777, 0711, 0733, 0770, 0751, 02755, 0505};
static const int file_modes[] = {0644, 0600, 0666, 0640, 0660, 04755, 02755, 06775, 02644, 0044, 0604, 0111, 01644};

static char base[4000];
static unsigned long long seed = 20;

static unsigned draw(unsigned bound) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(seed >> 33) % bound;
}

#define ONE_OF(list) list[draw(sizeof(list) / sizeof(*list))]

static const char *real(const char *path) {
    static char names[2][5000];
    static int turn;
    turn = !turn;
    snprintf(names[turn], sizeof(names[turn]), "%s%s", base, path);
    return names[turn];
}

/* Does a step on the one side or the other; 0 or errno. */
static int perform(const struct step *s, int here) {
    struct timespec times[2] = {{5, 0}, {6, 0}};
    struct stat st;
    int fd = -1, result = -1;
    errno = 0;
#define BOTH(posix, tabane) result = here ? (tabane) : (posix)
    switch (s->call) {
    case MKDIR: BOTH(mkdir(real(s->path), s->mode), tabane_mkdir(s->path, s->mode)); break;
    case RMDIR: BOTH(rmdir(real(s->path)), tabane_rmdir(s->path)); break;
    case UNLINK: BOTH(unlink(real(s->path)), tabane_unlink(s->path)); break;
    case RENAME: BOTH(rename(real(s->path), real(s->other)), tabane_rename(s->path, s->other)); break;
    case LINK: BOTH(link(real(s->path), real(s->other)), tabane_link(s->path, s->other)); break;
    case SYMLINK: BOTH(symlink("target", real(s->path)), tabane_symlink("target", s->path)); break;
    case CHMOD: BOTH(chmod(real(s->path), s->mode), tabane_chmod(s->path, s->mode)); break;
    case CHOWN: BOTH(lchown(real(s->path), s->uid, s->gid), tabane_lchown(s->path, s->uid, s->gid)); break;
    case TOUCH: BOTH(utimensat(AT_FDCWD, real(s->path), NULL, 0), tabane_utimens(s->path, NULL, 0)); break;
    case SET_TIME: BOTH(utimensat(AT_FDCWD, real(s->path), times, 0), tabane_utimens(s->path, times, 0)); break;
    case CUT: BOTH(truncate(real(s->path), s->mode & 7), tabane_truncate(s->path, s->mode & 7)); break;
    case STAT: BOTH(stat(real(s->path), &st), tabane_stat(s->path, &st)); break;
    case ACCESS: BOTH(access(real(s->path), s->mode & 7), tabane_access(s->path, s->mode & 7)); break;
    case CREATE:
    case OPEN:
    case WRITE:
        BOTH(fd = open(real(s->path), s->flags, s->mode), fd = tabane_open(s->path, s->flags, s->mode));
        if (fd >= 0 && s->call == WRITE)
            BOTH((int)pwrite(fd, "xy", 2, 0), (int)tabane_pwrite(fd, "xy", 2, 0));
        break;
    case LIST:
        if (here) {
            struct tabane_directory *d = tabane_opendir(s->path);
            result = d ? tabane_closedir(d) : -1;
        } else {
            DIR *d = opendir(real(s->path));
            result = d ? closedir(d) : -1;
        }
        break;
    default: abort();
    }
    return result < 0 ? errno : 0;
}

/* Nobody believes another user's cluster file, nor one that others may read: each user has a copy. */
static void hand_out_copies(void) {
    for (size_t i = 0; i < sizeof(users) / sizeof(*users); i++) {
        char command[200];
        snprintf(command, sizeof(command),
                 "install -m 600 -o %1$d \"$TABANE_CLUSTER/cluster\" \"$TABANE_CLUSTER/cluster-%1$d\"", users[i].uid);
        CHECK(system(command) == 0);
    }
}

static void use_copy(const struct user *user) {
    char path[5000];
    snprintf(path, sizeof(path), "%s/cluster-%d", getenv("TABANE_CLUSTER"), user->uid);
    CHECK(setenv("TABANE_CLUSTER", path, 1) == 0);
}

/* In a process of the step's user: what both sides said, in two bytes. */
static void as_user(const struct step *s, unsigned char answers[2]) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const struct user *user = &users[s->user];
        CHECK(setgroups(user->group_count, user->groups) == 0);
        CHECK(setresgid(user->gid, user->gid, user->gid) == 0);
        CHECK(setresuid(user->uid, user->uid, user->uid) == 0);
        umask(s->mask);
        use_copy(user);
        CHECK(tabane_init(NULL) == 0);
        answers[0] = (unsigned char)perform(s, 0);
        answers[1] = (unsigned char)perform(s, 1);
        if (answers[1])
            fprintf(stderr, "%s", answers[0] == answers[1] ? "" : tabane_error_message());
        CHECK(write(ends[1], answers, 2) == 2);
        tabane_term();
        _exit(0);
    }
    int status;
    close(ends[1]);
    CHECK(read(ends[0], answers, 2) == 2);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]);
}

static struct step next_step(void) {
    struct step s = {0};
    s.call = draw(CALLS);
    s.user = draw(sizeof(users) / sizeof(*users));
    s.path = ONE_OF(files);
    s.other = ONE_OF(files);
    s.mode = ONE_OF(file_modes);
    s.mask = draw(4) ? 022 : 077 * (int)draw(2);
    s.flags = ONE_OF(((int[]){O_RDONLY, O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC, O_RDONLY | O_TRUNC}));
    /* An owner, or as it is; not both as they are, which Linux takes for a change and others for none. */
    s.gid = ONE_OF(((gid_t[]){8001, 8002, 8003, 8004}));
    s.uid = draw(2) ? (uid_t)-1 : ONE_OF(((uid_t[]){7001, 7002, 7003}));
    switch (s.call) {
    case CREATE: s.flags = O_RDWR | O_CREAT | (draw(2) ? O_EXCL : 0); break;
    case WRITE: s.flags = O_WRONLY; break;
    case MKDIR:
    case RMDIR:
        s.path = directories[2 + draw(2)];
        s.mode = ONE_OF(directory_modes);
        break;
    case LIST: s.path = ONE_OF(directories); break;
    case SYMLINK: s.path = ONE_OF(symbolic); break;
    case LINK: s.other = ONE_OF(links); break;
    case UNLINK:
        if (draw(2))
            s.path = draw(2) ? ONE_OF(links) : ONE_OF(symbolic);
        break;
    case CHMOD:
    case CHOWN:
    case TOUCH:
    case SET_TIME:
    case STAT:
    case ACCESS:
        if (draw(2)) {
            s.path = ONE_OF(directories);
            s.mode = ONE_OF(directory_modes);
        }
        break;
    default: break;
    }
    return s;
}

/* What Linux refuses on its own account (fs.protected_*): names of others' files and openings in sticky directories. */
static int is_special(const struct step *s) {
    struct stat st, parent;
    char directory[5000];
    if (s->call == LINK)
        return users[s->user].uid != 0 && (stat(real(s->path), &st) != 0 || st.st_uid != users[s->user].uid);
    if (s->call != CREATE || (s->flags & O_EXCL))
        return 0;
    snprintf(directory, sizeof(directory), "%s", real(s->path));
    *strrchr(directory, '/') = 0;
    return stat(directory, &parent) == 0 && (parent.st_mode & S_ISVTX);
}

static void compare(int number, const char *path) {
    struct stat one, other;
    int there = lstat(real(path), &one), here = tabane_lstat(path, &other);
    if (there != here || (!there && (one.st_mode != other.st_mode || one.st_uid != other.st_uid ||
                                     one.st_gid != other.st_gid || (!S_ISDIR(one.st_mode) && one.st_nlink != other.st_nlink)))) {
        fprintf(stderr, "after step %d %s is %o %d:%d (%d), but should be %o %d:%d (%d)\n", number, path, other.st_mode,
                other.st_uid, other.st_gid, here, one.st_mode, one.st_uid, one.st_gid, there);
        exit(1);
    }
}

#define COMPARE_ALL(number, list)                                                                                    \
    for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++)                                                        \
        compare(number, list[i])

static void set_up(void) {
    struct statfs facts;
    snprintf(base, sizeof(base), "/dev/shm/tabane-rights-%d", getpid());
    umask(0);
    CHECK(mkdir(base, 0755) == 0 && tabane_chmod("/", 0755) == 0 && tabane_chown("/", 0, 0) == 0);
    CHECK(statfs(base, &facts) == 0 && facts.f_type == TMPFS_MAGIC);
    for (int i = 0; i < 2; i++) {
        CHECK(mkdir(real(directories[i]), 0777) == 0 && chmod(real(directories[i]), 01777) == 0);
        CHECK(tabane_mkdir(directories[i], 0777) == 0 && tabane_chmod(directories[i], 01777) == 0);
    }
    CHECK(symlink("d0", real("/l")) == 0 && tabane_symlink("d0", "/l") == 0);
    hand_out_copies();
}

static void clean_up(void) {
    char command[5000];
    snprintf(command, sizeof(command), "rm -rf %s", base);
    CHECK(system(command) == 0);
}

int main(void) {
    if (geteuid() != 0) {
        fprintf(stderr, "rights are compared as root only\n");
        return 0;
    }
    umask(0);
    CHECK(tabane_init(NULL) == 0);
    set_up();
    int failed[CALLS] = {0}, done[CALLS] = {0};
    for (int number = 0; number < STEPS; number++) {
        unsigned char answers[2] = {0, 0};
        struct step s = next_step();
        if (is_special(&s))
            continue;
        tabane_term(); /* A child has a connection of its own, as its own user. */
        as_user(&s, answers);
        CHECK(tabane_init(NULL) == 0);
        if (answers[0] != answers[1]) {
            fprintf(stderr, "step %d: %s(%s, %s) by %d, mode %o, flags %x, owner %d:%d: errno %d, but should be %d\n", number,
                    call_names[s.call], s.path, s.other, users[s.user].uid, s.mode, s.flags, s.uid, s.gid, answers[1],
                    answers[0]);
            return 1;
        }
        ++*(answers[0] ? &failed[s.call] : &done[s.call]);
        COMPARE_ALL(number, directories);
        COMPARE_ALL(number, files);
        COMPARE_ALL(number, links);
        COMPARE_ALL(number, symbolic);
    }
    for (int call = 0; call < CALLS; call++) {
        printf("%s: %d done, %d refused\n", call_names[call], done[call], failed[call]);
        CHECK(done[call] > 0 && failed[call] > 0);
    }
    clean_up();
    return 0;
}
