/* Watch what a process does to the files below one directory.
 *
 * Preloaded (LD_PRELOAD), it stands between the process and the kernel for calls that
 * change files. Until watched_start() it only passes them on. Then each call on a path
 * below the root is a step: it is counted, it may be made to fail, and where there is
 * a journal it is written there in order: what was written where, and what was synced.
 * With a journal nothing is really synced, for the journal says what a power loss keeps.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum how { ONCE, FROM_THEN_ON, SHORT, KILL_BEFORE, KILL_AFTER };

/* What a step is, as the journal calls it. */
enum kind {
    OPEN = 'o', CREATE = 'c', WRITE = 'w', TRUNCATE = 't', SYNC = 's', UNSYNCED = 'e',
    RENAME = 'r', LINK = 'l', UNLINK = 'u', MKDIR = 'd', NOTE = 'n', MAPPED = 'm'
};

struct record { /* then `paths` bytes of names, then `size` bytes of data if a write */
    uint32_t kind, paths;
    uint64_t inode;
    int64_t offset;
    uint64_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int journal = -1;
static long steps, fails_at, failed;
static int error, how;

static long sys(long result) { return result; } /* syscall() sets errno itself */

/* ---- control, called through ctypes ---- */

void watched_stop(void) { root_length = 0; }

void watched_start(const char *path, int journal_fd, long at, int code, int mode)
{
    pthread_mutex_init(&lock, NULL); /* a child's own */
    snprintf(root, sizeof root, "%s", path);
    journal = journal_fd;
    steps = failed = 0;
    fails_at = at, error = code, how = mode;
    root_length = strlen(root);
}

long watched_steps(void) { return steps; }
long watched_failed(void) { return failed; }

/* ---- the journal; the lock is held ---- */

static void put(const void *data, size_t left)
{
    const char *at = data;
    while (left) {
        ssize_t n = syscall(SYS_write, journal, at, left);
        if (n <= 0) abort();
        at += n, left -= n;
    }
}

static void note(enum kind kind, const char *from, const char *to, uint64_t inode,
                 int64_t offset, const void *data, uint64_t size)
{
    if (journal < 0) return;
    struct record record = {kind, 0, inode, offset, size};
    record.paths = strlen(from) + (to ? strlen(to) + 1 : 0);
    put(&record, sizeof record);
    put(from, strlen(from));
    if (to) put("", 1), put(to, strlen(to));
    if (data) put(data, size);
}

void watched_note(const char *text, long size)
{
    pthread_mutex_lock(&lock);
    note(NOTE, "", NULL, 0, 0, text, size);
    pthread_mutex_unlock(&lock);
}

/* ---- names ---- */

static int below(const char *path)
{
    return !strncmp(path, root, root_length) &&
           (path[root_length] == '/' || !path[root_length]);
}

static int of_fd(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return 1;
}

/* The absolute path of a name; no symbolic links, the tests make none. */
static int absolute(int folder, const char *name, char *path)
{
    char start[PATH_MAX] = "";
    if (name[0] != '/' &&
        !(folder == AT_FDCWD ? syscall(SYS_getcwd, start, PATH_MAX) > 0
                             : of_fd(folder, start)))
        return 0;
    int n = snprintf(path, PATH_MAX, "%s%s%s", start, start[0] ? "/" : "", name);
    while (n > 1 && path[n - 1] == '/') path[--n] = 0;
    return n < PATH_MAX;
}

static int watched_name(int folder, const char *name, char *path)
{
    int saved = errno;
    int found = root_length && name && absolute(folder, name, path) && below(path);
    errno = saved;
    return found;
}

static int watched_fd(int fd, char *path)
{
    int saved = errno;
    int found = root_length && fd >= 0 && fd != journal && of_fd(fd, path) && below(path);
    errno = saved;
    return found;
}

static uint64_t inode_of(int fd)
{
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

/* SQLite's shared memory is lost in any crash. */
static int is_memory(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && !strcmp(path + n - 4, "-shm");
}

/* ---- steps; begin() takes the lock, end() lets it go ---- */

/* Return what the step shall do: 0 go on, -1 write half of it, else fail with this. */
static int begin(int takes_space)
{
    pthread_mutex_lock(&lock);
    steps++;
    if (!fails_at || steps < fails_at) return 0;
    if (how >= KILL_BEFORE) {
        if (how == KILL_BEFORE && steps == fails_at) raise(SIGKILL);
        return 0;
    }
    if (how == SHORT && steps == fails_at && takes_space) return failed++, -1;
    if (steps > fails_at ? how != ONCE && takes_space : how == ONCE || takes_space)
        return failed++, error;
    return 0;
}

static long end(long result)
{
    if (fails_at && how == KILL_AFTER && steps == fails_at) raise(SIGKILL);
    pthread_mutex_unlock(&lock);
    return result;
}

static long fail(int code)
{
    pthread_mutex_unlock(&lock);
    errno = code;
    return -1;
}

static int open_at(int folder, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    if (!watched_name(folder, name, path) || (flags & O_TMPFILE) == O_TMPFILE)
        return sys(syscall(SYS_openat, folder, name, flags, mode));
    int absent = (flags & O_CREAT) && syscall(SYS_faccessat, folder, name, F_OK);
    int verdict = begin(absent);
    if (verdict > 0) return fail(verdict);
    int fd = syscall(SYS_openat, folder, name, flags, mode);
    if (fd >= 0 && !is_memory(path)) {
        if (absent) note(CREATE, path, NULL, inode_of(fd), 0, NULL, 0);
        else if (flags & O_TRUNC) note(TRUNCATE, path, NULL, inode_of(fd), 0, NULL, 0);
    }
    return end(fd);
}

#define OPEN_BODY(folder)                                                        \
    mode_t mode = 0;                                                             \
    if (flags & O_CREAT) {                                                       \
        va_list rest;                                                            \
        va_start(rest, flags);                                                   \
        mode = va_arg(rest, mode_t);                                             \
        va_end(rest);                                                            \
    }                                                                            \
    return open_at(folder, name, flags, mode);

int open(const char *name, int flags, ...) { OPEN_BODY(AT_FDCWD) }
int open64(const char *name, int flags, ...) { OPEN_BODY(AT_FDCWD) }
int openat(int folder, const char *name, int flags, ...) { OPEN_BODY(folder) }
int openat64(int folder, const char *name, int flags, ...) { OPEN_BODY(folder) }
int __open_2(const char *name, int flags) { return open_at(AT_FDCWD, name, flags, 0); }
int __open64_2(const char *name, int flags) { return open_at(AT_FDCWD, name, flags, 0); }

/* Write at `offset`, or where the descriptor stands if that is negative. */
static ssize_t write_at(int fd, const void *data, size_t size, off_t offset)
{
    char path[PATH_MAX];
    int moves = offset < 0;
    if (!watched_fd(fd, path))
        return moves ? sys(syscall(SYS_write, fd, data, size))
                     : sys(syscall(SYS_pwrite64, fd, data, size, offset));
    int verdict = begin(1);
    if (verdict > 0) return fail(verdict);
    if (verdict < 0) size = (size + 1) / 2;
    if (moves) {
        int appends = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND;
        offset = syscall(SYS_lseek, fd, 0, appends ? SEEK_END : SEEK_CUR);
    }
    ssize_t n = moves ? syscall(SYS_write, fd, data, size)
                      : syscall(SYS_pwrite64, fd, data, size, offset);
    if (n > 0 && !is_memory(path)) note(WRITE, path, NULL, inode_of(fd), offset, data, n);
    return end(n);
}

ssize_t write(int fd, const void *data, size_t n) { return write_at(fd, data, n, -1); }

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    return write_at(fd, data, n, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t offset)
{
    return write_at(fd, data, n, offset);
}

/* Several buffers are several steps: so they are torn between any two. */
static ssize_t write_all(int fd, const struct iovec *items, int count, off_t offset)
{
    ssize_t done = 0;
    for (int i = 0; i < count; i++) {
        off_t at = offset < 0 ? offset : offset + done;
        ssize_t n = write_at(fd, items[i].iov_base, items[i].iov_len, at);
        if (n < 0) return done ? done : -1;
        done += n;
        if ((size_t) n < items[i].iov_len) break;
    }
    return done;
}

ssize_t writev(int fd, const struct iovec *items, int count)
{
    return write_all(fd, items, count, -1);
}

ssize_t pwritev(int fd, const struct iovec *items, int count, off_t offset)
{
    return write_all(fd, items, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *items, int count, off64_t offset)
{
    return write_all(fd, items, count, offset);
}

ssize_t pwritev2(int fd, const struct iovec *items, int count, off_t offset, int flags)
{
    (void) flags;
    return write_all(fd, items, count, offset);
}

ssize_t pwritev64v2(int fd, const struct iovec *items, int count, off64_t offset, int f)
{
    (void) f;
    return write_all(fd, items, count, offset);
}

/* Copies in the kernel: by hand, so that the bytes pass here. */
static ssize_t copy_by_hand(int from, off_t *from_at, int to, off_t *to_at, size_t size)
{
    char data[1 << 16];
    if (size > sizeof data) size = sizeof data;
    ssize_t n = from_at ? syscall(SYS_pread64, from, data, size, *from_at)
                        : syscall(SYS_read, from, data, size);
    if (n <= 0) return n;
    n = write_at(to, data, n, to_at ? *to_at : -1);
    if (n > 0 && from_at) *from_at += n;
    if (n > 0 && to_at) *to_at += n;
    return n;
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t size,
                        unsigned flags)
{
    char path[PATH_MAX];
    if (watched_fd(to, path)) return copy_by_hand(from, from_at, to, to_at, size);
    return sys(syscall(SYS_copy_file_range, from, from_at, to, to_at, size, flags));
}

ssize_t sendfile(int to, int from, off_t *from_at, size_t size)
{
    char path[PATH_MAX];
    if (watched_fd(to, path)) return copy_by_hand(from, from_at, to, NULL, size);
    return sys(syscall(SYS_sendfile, to, from, from_at, size));
}

ssize_t sendfile64(int to, int from, off64_t *from_at, size_t size)
{
    return sendfile(to, from, from_at, size);
}

static int resize(int fd, off_t size, int only_grows)
{
    char path[PATH_MAX];
    struct stat found;
    if (!watched_fd(fd, path) || fstat(fd, &found))
        return sys(syscall(SYS_ftruncate, fd, size));
    if (only_grows && found.st_size >= size) return 0;
    int verdict = begin(size > found.st_size);
    if (verdict) return fail(verdict > 0 ? verdict : error);
    int result = syscall(SYS_ftruncate, fd, size);
    if (!result && !is_memory(path))
        note(TRUNCATE, path, NULL, found.st_ino, size, NULL, 0);
    return end(result);
}

int ftruncate(int fd, off_t size) { return resize(fd, size, 0); }
int ftruncate64(int fd, off64_t size) { return resize(fd, size, 0); }

int posix_fallocate(int fd, off_t offset, off_t size)
{
    return resize(fd, offset + size, 1) ? errno : 0;
}

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    return posix_fallocate(fd, offset, size);
}

static int sync_fd(int fd, long call)
{
    char path[PATH_MAX];
    if (!watched_fd(fd, path)) return sys(syscall(call, fd));
    int verdict = begin(0);
    if (verdict) {
        note(UNSYNCED, path, NULL, inode_of(fd), 0, NULL, 0);
        return fail(verdict > 0 ? verdict : error);
    }
    note(SYNC, path, NULL, inode_of(fd), 0, NULL, 0);
    return end(journal < 0 ? syscall(call, fd) : 0);
}

int fsync(int fd) { return sync_fd(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_fd(fd, SYS_fdatasync); }

static int move(int from, const char *name, int to, const char *other, unsigned flags)
{
    char path[PATH_MAX], target[PATH_MAX];
    if (!watched_name(from, name, path) || !watched_name(to, other, target))
        return sys(syscall(SYS_renameat2, from, name, to, other, flags));
    int verdict = begin(1);
    if (verdict) return fail(verdict > 0 ? verdict : error);
    int result = syscall(SYS_renameat2, from, name, to, other, flags);
    if (!result) note(RENAME, path, target, 0, 0, NULL, 0);
    return end(result);
}

int rename(const char *a, const char *b) { return move(AT_FDCWD, a, AT_FDCWD, b, 0); }
int renameat(int from, const char *a, int to, const char *b)
{
    return move(from, a, to, b, 0);
}

int renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
    return move(from, a, to, b, flags);
}

int linkat(int from, const char *name, int to, const char *other, int flags)
{
    char path[PATH_MAX], target[PATH_MAX];
    if (!watched_name(from, name, path) || !watched_name(to, other, target))
        return sys(syscall(SYS_linkat, from, name, to, other, flags));
    int verdict = begin(1);
    if (verdict) return fail(verdict > 0 ? verdict : error);
    int result = syscall(SYS_linkat, from, name, to, other, flags);
    if (!result) note(LINK, path, target, 0, 0, NULL, 0);
    return end(result);
}

int link(const char *a, const char *b) { return linkat(AT_FDCWD, a, AT_FDCWD, b, 0); }

int unlinkat(int folder, const char *name, int flags)
{
    char path[PATH_MAX];
    if (!watched_name(folder, name, path))
        return sys(syscall(SYS_unlinkat, folder, name, flags));
    int verdict = begin(0);
    if (verdict) return fail(verdict > 0 ? verdict : error);
    int result = syscall(SYS_unlinkat, folder, name, flags);
    if (!result && !is_memory(path)) note(UNLINK, path, NULL, 0, 0, NULL, 0);
    return end(result);
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    if (!watched_name(folder, name, path))
        return sys(syscall(SYS_mkdirat, folder, name, mode));
    int verdict = begin(1);
    if (verdict) return fail(verdict > 0 ? verdict : error);
    int result = syscall(SYS_mkdirat, folder, name, mode);
    if (!result) note(MKDIR, path, NULL, 0, 0, NULL, 0);
    return end(result);
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* A mapping that can be written is not followed: the journal says that there was one. */
void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    char path[PATH_MAX];
    if (root_length && (flags & MAP_SHARED) && (protection & PROT_WRITE) &&
        watched_fd(fd, path) && !is_memory(path)) {
        pthread_mutex_lock(&lock);
        note(MAPPED, path, NULL, 0, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return (void *) syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset)
{
    return mmap(at, size, protection, flags, fd, offset);
}
