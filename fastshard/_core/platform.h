/* Everything that differs between operating systems and builds of CPython.
 *
 * Include after Python.h. File functions set errno on failure and never take
 * or need the GIL.
 */
#ifndef FASTSHARD_PLATFORM_H
#define FASTSHARD_PLATFORM_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)

#include <io.h>
#include <windows.h>

#define FS_HAVE_MMAP 0 /* MappedFile holds a standard-library mmap instead */

static inline void *fs_map(int fd, size_t nbytes, int writable)
{
    (void)fd; (void)nbytes; (void)writable;
    errno = ENOSYS;
    return NULL;
}

static inline void fs_unmap(void *base, size_t nbytes)
{
    (void)base; (void)nbytes;
}

/* A positioned read: an OVERLAPPED offset leaves no shared file position. */
static inline int64_t fs_pread(int fd, void *to, size_t size, uint64_t offset)
{
    HANDLE file = (HANDLE)_get_osfhandle(fd);
    OVERLAPPED place = {0};
    DWORD got = 0;
    DWORD want = size > 0x40000000u ? 0x40000000u : (DWORD)size;

    if (file == INVALID_HANDLE_VALUE) {
        errno = EBADF;
        return -1;
    }
    place.Offset = (DWORD)(offset & 0xffffffffu);
    place.OffsetHigh = (DWORD)(offset >> 32);
    if (!ReadFile(file, to, want, &got, &place)) {
        if (GetLastError() == ERROR_HANDLE_EOF)
            return 0;
        errno = EIO;
        return -1;
    }
    return (int64_t)got;
}

#else /* POSIX */

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#define FS_HAVE_MMAP 1

#ifndef MAP_NORESERVE /* FreeBSD took it away; there it was the default */
#define MAP_NORESERVE 0
#endif

/* Map a whole file: shared and read-only, or copy-on-write and writable. */
static inline void *fs_map(int fd, size_t nbytes, int writable)
{
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    int flags = writable ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
    void *base = mmap(NULL, nbytes, protection, flags, fd, 0);

    return base == MAP_FAILED ? NULL : base;
}

static inline void fs_unmap(void *base, size_t nbytes)
{
    munmap(base, nbytes);
}

/* At most 1 GiB a call: Linux cuts reads at 2 GiB, macOS refuses them. */
static inline int64_t fs_pread(int fd, void *to, size_t size, uint64_t offset)
{
    int64_t got;

    if (size > ((size_t)1 << 30))
        size = (size_t)1 << 30;
    do {
        got = (int64_t)pread(fd, to, size, (off_t)offset);
    } while (got < 0 && errno == EINTR);
    return got;
}

#endif

static inline void fs_close(int fd)
{
#if defined(_WIN32)
    (void)_close(fd);
#else
    (void)close(fd);
#endif
}

/* Read only what the page cache holds. Returns the bytes read, or -1 with
 * errno EAGAIN (nothing cached) or EOPNOTSUPP (the answer cannot be had). */
#if defined(__linux__)
#include <sys/syscall.h>
#include <sys/uio.h>
#endif
#if defined(__linux__) && defined(SYS_preadv2) && defined(__LP64__)
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008
#endif
static inline int64_t fs_pread_cached(int fd, void *to, size_t size, uint64_t offset)
{
    struct iovec place;

    place.iov_base = to;
    place.iov_len = size;
    return (int64_t)syscall(SYS_preadv2, fd, &place, 1L, (long)offset, 0L, RWF_NOWAIT);
}
#else
static inline int64_t fs_pread_cached(int fd, void *to, size_t size, uint64_t offset)
{
    (void)fd; (void)to; (void)size; (void)offset;
    errno = EOPNOTSUPP;
    return -1;
}
#endif

/* Ask for pages that will be read soon; a hint, so failures do not matter. */
static inline void fs_will_need(int fd, uint64_t offset, uint64_t size)
{
#if defined(POSIX_FADV_WILLNEED)
    (void)posix_fadvise(fd, (off_t)offset, (off_t)size, POSIX_FADV_WILLNEED);
#else
    (void)fd; (void)offset; (void)size;
#endif
}

/* Load a number that others may change: once, whatever the compiler thinks. */
static inline uint64_t fs_load(const uint64_t *at)
{
    return *(const volatile uint64_t *)at;
}

static inline uint32_t fs_load32(const uint32_t *at)
{
    return *(const volatile uint32_t *)at;
}

/* A counter that threads share: plain under the GIL, atomic without one. */
static inline void fs_count(Py_ssize_t *counter, Py_ssize_t change)
{
#if defined(Py_GIL_DISABLED) && defined(_MSC_VER)
    _InterlockedExchangeAdd64((volatile __int64 *)counter, change);
#elif defined(Py_GIL_DISABLED)
    __atomic_fetch_add(counter, change, __ATOMIC_RELAXED);
#else
    *counter += change;
#endif
}

#endif
