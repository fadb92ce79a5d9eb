/* Preloaded before libc: the n-th write, fsync or rename below a folder fails, once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static long calls, failing;
static int reason;

/* Calls below `below` are counted from now on; number `number` (from 1; 0: none) fails with errno `error`. */
void faults_arm(const char *below, long number, int error) {
    strncpy(folder, below, sizeof folder - 1);
    calls = 0, failing = number, reason = error;
}

long faults_calls(void) { return calls; }

static int fails(const char *path) {
    if (!folder[0] || strncmp(path, folder, strlen(folder))) return 0;
    if (__sync_add_and_fetch(&calls, 1) != failing) return 0;
    errno = reason;
    return 1;
}

static int fails_fd(int fd) {
    if (!folder[0]) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    return fails_fd(fd) ? -1 : NEXT(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails_fd(fd) ? -1 : NEXT(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails_fd(fd) ? -1 : NEXT(pwrite64)(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return fails_fd(fd) ? -1 : NEXT(writev)(fd, parts, count);
}
int fsync(int fd) { return fails_fd(fd) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return fails_fd(fd) ? -1 : NEXT(fdatasync)(fd); }
int rename(const char *from, const char *to) { return fails(to) ? -1 : NEXT(rename)(from, to); }
