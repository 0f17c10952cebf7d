/* Loaded with LD_PRELOAD: from a chosen one on, or once, writing and flushing of files below a folder fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[4096];
static int code, once;
static long at, seen;

/* Set by Python: operations below `folder` count from 1; that number `first`, and all later ones unless `only`, fail. */
void io_errors(const char *folder, int number, long first, int only) {
    snprintf(root, sizeof root, "%s/", folder);
    code = number, at = first, once = only, seen = 0;
}

long io_operations(void) { return seen; }

static int fails(int descriptor) {
    char link[64], path[4096];
    if (!root[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (strncmp(path, root, strlen(root))) return 0;
    long number = __sync_add_and_fetch(&seen, 1);
    if (!at || number < at || (once && number > at)) return 0;
    errno = code;
    return 1;
}

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t count) { NEXT(write); return fails(fd) ? -1 : next(fd, data, count); }
ssize_t pwrite(int fd, const void *data, size_t count, off_t to) { NEXT(pwrite); return fails(fd) ? -1 : next(fd, data, count, to); }
ssize_t pwrite64(int fd, const void *data, size_t count, off64_t to) { NEXT(pwrite64); return fails(fd) ? -1 : next(fd, data, count, to); }
ssize_t writev(int fd, const struct iovec *data, int count) { NEXT(writev); return fails(fd) ? -1 : next(fd, data, count); }
ssize_t sendfile(int, int, off_t *, size_t);
ssize_t sendfile(int fd, int from, off_t *start, size_t count) { NEXT(sendfile); return fails(fd) ? -1 : next(fd, from, start, count); }
ssize_t sendfile64(int, int, off64_t *, size_t);
ssize_t sendfile64(int fd, int from, off64_t *start, size_t count) { NEXT(sendfile64); return fails(fd) ? -1 : next(fd, from, start, count); }
int fsync(int fd) { NEXT(fsync); return fails(fd) ? -1 : next(fd); }
int fdatasync(int fd) { NEXT(fdatasync); return fails(fd) ? -1 : next(fd); }
int ftruncate(int fd, off_t length) { NEXT(ftruncate); return fails(fd) ? -1 : next(fd, length); }
int ftruncate64(int fd, off64_t length) { NEXT(ftruncate64); return fails(fd) ? -1 : next(fd, length); }
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    NEXT(fwrite);
    return fails(fileno(file)) ? 0 : next(data, size, count, file);
}
