/* Counts the calls that change files below one directory, in this process and in its children, and lets one of them
 * fail: SIGKILL before it, half of a write and then SIGKILL, or an errno, once or from there on. Keeps a list of what
 * was written and not synced, for whoever wants to lose it afterwards as a power cut would.
 *
 * The control block is a file at CONTROL (given when this is compiled), shared by mmap. Built and preloaded by sweep.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define UNSYNCED 256

struct unsynced {
    uint64_t dev, ino;
    int64_t cut;     /* the first byte that was written since the last fsync */
    char path[512];
};

struct control {
    int64_t count;   /* calls so far */
    int64_t at;      /* the call that fails, from 1; 0: none */
    int64_t mode;    /* 0 kill, 1 torn write and kill, else an errno */
    int64_t sticky;  /* every later call fails too */
    int64_t main;    /* process that dies with the call */
    char root[4096]; /* only paths below it count */
    char last[256];  /* what the failing call was */
    int64_t busy;    /* somebody is at the list */
    int64_t length;  /* entries of the list; -1: it overflowed */
    struct unsynced list[UNSYNCED];
};

static struct control *control;

__attribute__((constructor)) static void start(void) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int fd = real(CONTROL, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) control = NULL;
    close(fd);
}

static void die(void) {
    kill((pid_t)control->main, SIGKILL);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int below(const char *path) {
    size_t length = strlen(control->root);
    return length && strncmp(path, control->root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* The absolute path of `path` as seen from `dirfd`; 0 where there is none. */
static int absolute(int dirfd, const char *path, char whole[PATH_MAX * 2]) {
    char link[64], base[PATH_MAX];
    if (path[0] == '/') return snprintf(whole, PATH_MAX * 2, "%s", path);
    if (dirfd == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n < 0) return 0;
        base[n] = 0;
    }
    return snprintf(whole, PATH_MAX * 2, "%s/%s", base, path);
}

static int counts_path(int dirfd, const char *path) {
    char whole[PATH_MAX * 2];
    return control && control->main && absolute(dirfd, path, whole) && below(whole);
}

static int counts_fd(int fd) {
    char link[64], path[PATH_MAX];
    struct stat status;
    if (!control || !control->main || fstat(fd, &status) || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return below(path);
}

static void take(void) {
    for (int tries = 0; tries < 1000000; tries++) {
        int64_t free = 0;
        if (__atomic_compare_exchange_n(&control->busy, &free, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return;
    }
}

static void give(void) { __atomic_store_n(&control->busy, 0, __ATOMIC_SEQ_CST); }

/* Before a write: where it will begin. */
static void written(int counted, int fd, int64_t offset) {
    struct stat status;
    char link[64], path[PATH_MAX];
    if (!counted || fstat(fd, &status) || !S_ISREG(status.st_mode)) return;
    if (offset < 0) offset = fcntl(fd, F_GETFL) & O_APPEND ? status.st_size : lseek(fd, 0, SEEK_CUR);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0 || n >= 512) return;
    path[n] = 0;
    take();
    struct unsynced *entry = control->list, *end = entry + control->length;
    while (entry < end && (entry->dev != status.st_dev || entry->ino != status.st_ino)) entry++;
    if (entry == end && control->length < UNSYNCED) {
        control->length++;
        *entry = (struct unsynced){.dev = status.st_dev, .ino = status.st_ino, .cut = offset};
        memcpy(entry->path, path, n + 1);
    } else if (entry < end && offset < entry->cut) {
        entry->cut = offset;
    }
    give();
}

static void synced(int counted, int fd) {
    struct stat status;
    if (!counted || fstat(fd, &status)) return;
    take();
    for (int64_t at = 0; at < control->length; at++)
        if (control->list[at].dev == status.st_dev && control->list[at].ino == status.st_ino)
            control->list[at--] = control->list[--control->length];
    give();
}

static void renamed(int from_dir, const char *from, int to_dir, const char *to) {
    char old[PATH_MAX * 2], new[PATH_MAX * 2];
    if (!control || !control->main || !absolute(from_dir, from, old) || !absolute(to_dir, to, new)) return;
    take();
    for (int64_t at = 0; at < control->length; at++)
        if (strcmp(control->list[at].path, old) == 0) snprintf(control->list[at].path, 512, "%s", new);
    give();
}

/* 0: go on; 1: fail with errno set; 2: write half, then die */
static int reached(int counted, const char *call, const char *what, int writes) {
    if (!counted) return 0;
    int64_t now = __atomic_add_fetch(&control->count, 1, __ATOMIC_SEQ_CST);
    if (!control->at || now < control->at || (now > control->at && !control->sticky)) return 0;
    if (now == control->at) snprintf(control->last, sizeof control->last, "%s %s", call, what ? what : "");
    if (control->mode == 0) die();
    if (control->mode == 1) {
        if (writes) return 2;
        die();
    }
    errno = (int)control->mode;
    return 1;
}

#define REAL(type, name, ...) type (*real)(__VA_ARGS__) = dlsym(RTLD_NEXT, #name)

#define OPENS(name)                                                                                        \
    int name(const char *path, int flags, ...) {                                                           \
        va_list more;                                                                                      \
        va_start(more, flags);                                                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                            \
        va_end(more);                                                                                      \
        REAL(int, name, const char *, int, ...);                                                           \
        if ((flags & (O_CREAT | O_TRUNC)) && reached(counts_path(AT_FDCWD, path), #name, path, 0)) return -1; \
        return real(path, flags, mode);                                                                    \
    }
OPENS(open)
OPENS(open64)

#define OPENATS(name)                                                                                 \
    int name(int dir, const char *path, int flags, ...) {                                             \
        va_list more;                                                                                 \
        va_start(more, flags);                                                                        \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                       \
        va_end(more);                                                                                 \
        REAL(int, name, int, const char *, int, ...);                                                 \
        if ((flags & (O_CREAT | O_TRUNC)) && reached(counts_path(dir, path), #name, path, 0)) return -1; \
        return real(dir, path, flags, mode);                                                          \
    }
OPENATS(openat)
OPENATS(openat64)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    int counted = counts_fd(fd), fate = reached(counted, "write", NULL, 1);
    if (fate != 1) written(counted, fd, -1);
    if (fate == 2) {
        real(fd, data, size / 2);
        die();
    }
    return fate ? -1 : real(fd, data, size);
}

#define PWRITES(name, offset_type)                                                \
    ssize_t name(int fd, const void *data, size_t size, offset_type offset) {      \
        REAL(ssize_t, name, int, const void *, size_t, offset_type);               \
        int counted = counts_fd(fd), fate = reached(counted, #name, NULL, 1);      \
        if (fate != 1) written(counted, fd, offset);                               \
        if (fate == 2) {                                                           \
            real(fd, data, size / 2, offset);                                      \
            die();                                                                 \
        }                                                                          \
        return fate ? -1 : real(fd, data, size, offset);                           \
    }
PWRITES(pwrite, off_t)
PWRITES(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    int counted = counts_fd(fd);
    if (reached(counted, "writev", NULL, 0)) return -1;
    written(counted, fd, -1);
    return real(fd, parts, count);
}

FILE *fopen(const char *path, const char *mode) {
    REAL(FILE *, fopen, const char *, const char *);
    if (strpbrk(mode, "wa+") && reached(counts_path(AT_FDCWD, path), "fopen", path, 0)) return NULL;
    return real(path, mode);
}

#define ON_FD(name)                                                      \
    int name(int fd) {                                                   \
        REAL(int, name, int);                                            \
        int counted = counts_fd(fd);                                     \
        if (reached(counted, #name, NULL, 0)) return -1;                 \
        int done = real(fd);                                             \
        if (done == 0) synced(counted, fd);                              \
        return done;                                                     \
    }
ON_FD(fsync)
ON_FD(fdatasync)

#define TRUNCATES(name, offset_type)                                                  \
    int name(int fd, offset_type size) {                                              \
        REAL(int, name, int, offset_type);                                            \
        return reached(counts_fd(fd), #name, NULL, 0) ? -1 : real(fd, size);          \
    }
TRUNCATES(ftruncate, off_t)
TRUNCATES(ftruncate64, off64_t)

#define ON_PATH(name)                                                                  \
    int name(const char *path) {                                                       \
        REAL(int, name, const char *);                                                 \
        return reached(counts_path(AT_FDCWD, path), #name, path, 0) ? -1 : real(path); \
    }
ON_PATH(unlink)
ON_PATH(rmdir)

int unlinkat(int dir, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    return reached(counts_path(dir, path), "unlinkat", path, 0) ? -1 : real(dir, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    return reached(counts_path(AT_FDCWD, path), "mkdir", path, 0) ? -1 : real(path, mode);
}

int mkdirat(int dir, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    return reached(counts_path(dir, path), "mkdirat", path, 0) ? -1 : real(dir, path, mode);
}

#define TWO_PATHS(name)                                                                        \
    int name(const char *from, const char *to) {                                               \
        REAL(int, name, const char *, const char *);                                           \
        if (reached(counts_path(AT_FDCWD, to), #name, to, 0)) return -1;                       \
        int done = real(from, to);                                                             \
        if (done == 0) renamed(AT_FDCWD, from, AT_FDCWD, to);                                  \
        return done;                                                                           \
    }
TWO_PATHS(rename)
TWO_PATHS(link)

int symlink(const char *target, const char *path) {
    REAL(int, symlink, const char *, const char *);
    return reached(counts_path(AT_FDCWD, path), "symlink", path, 0) ? -1 : real(target, path);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    if (reached(counts_path(to_dir, to), "renameat", to, 0)) return -1;
    int done = real(from_dir, from, to_dir, to);
    if (done == 0) renamed(from_dir, from, to_dir, to);
    return done;
}
