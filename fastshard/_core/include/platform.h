/* Differences between operating systems, compilers and builds of CPython.
 *
 * Include after Python.h. File functions set errno on failure; they never take or
 * need the GIL.
 */
#ifndef FASTSHARD_PLATFORM_H
#define FASTSHARD_PLATFORM_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)

#include <intrin.h>
#include <io.h>
#include <windows.h>

#define FS_HAVE_MMAP 0 /* MappedFile holds a standard-library mmap instead */

static inline void *fs_map(int fd, size_t nbytes, int writable)
{
    (void)fd; (void)nbytes; (void)writable;
    errno = ENOSYS;
    return NULL;
}

static inline void *fs_map_small_pages(int fd, size_t nbytes, int writable)
{
    return fs_map(fd, nbytes, writable);
}

static inline void fs_unmap(void *base, size_t nbytes)
{
    (void)base; (void)nbytes;
}

/* Read at an offset. The OVERLAPPED offset leaves the shared file position alone. */
static inline int64_t fs_pread(int fd, void *to, size_t size, uint64_t offset)
{
    HANDLE file = (HANDLE)_get_osfhandle(fd);
    OVERLAPPED position = {0};
    DWORD got = 0;
    DWORD want = size > 0x40000000u ? 0x40000000u : (DWORD)size;

    if (file == INVALID_HANDLE_VALUE) {
        errno = EBADF;
        return -1;
    }
    position.Offset = (DWORD)(offset & 0xffffffffu);
    position.OffsetHigh = (DWORD)(offset >> 32);
    if (!ReadFile(file, to, want, &got, &position)) {
        if (GetLastError() == ERROR_HANDLE_EOF)
            return 0;
        errno = EIO;
        return -1;
    }
    return (int64_t)got;
}

#else /* POSIX */

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define FS_HAVE_MMAP 1

#ifndef MAP_NORESERVE /* removed from FreeBSD, where it was the default */
#define MAP_NORESERVE 0
#endif

/* Map a file, at `at` if `flags` has MAP_FIXED; returns NULL on failure. Some file
 * systems (FUSE with direct_io) refuse shared mappings: a private one that is never
 * written to has the same pages, those of the page cache. Sets `flags` to those
 * used. */
static inline void *fs_map_file(
    int fd, void *at, size_t nbytes, int writable, int *flags)
{
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(at, nbytes, protection, *flags, fd, 0);

    if (base == MAP_FAILED && errno != ENOMEM && (*flags & MAP_SHARED)) {
        *flags = (*flags & ~MAP_SHARED) | MAP_PRIVATE;
        base = mmap(at, nbytes, protection, *flags, fd, 0);
    }
    return base == MAP_FAILED ? NULL : base;
}

static inline int fs_map_flags(int writable)
{
    return writable ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
}

/* Map a whole file: read-only, or copy-on-write and writable. */
static inline void *fs_map(int fd, size_t nbytes, int writable)
{
    int flags = fs_map_flags(writable);

    return fs_map_file(fd, NULL, nbytes, writable, &flags);
}

/* Map a whole file at an address that differs from its offsets modulo the size of a
 * huge page, so that none fits. A first access then maps 64 KiB at most, not 2 MiB. */
static inline void *fs_map_small_pages(int fd, size_t nbytes, int writable)
{
#if defined(__linux__)
    const size_t huge = (size_t)2 << 20, skew = (size_t)64 << 10;
    int flags = fs_map_flags(writable);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t head, tail, whole;
    uint8_t *room, *base;
    int code;

    if (nbytes > SIZE_MAX - 2 * huge || page > skew)
        return fs_map(fd, nbytes, writable);
    /* Refusal is met here: a refused MAP_FIXED leaves a hole in the room, which another
     * thread may map. */
    base = fs_map_file(fd, NULL, page, writable, &flags);
    if (base == NULL)
        return NULL;
    munmap(base, page);
    nbytes = (nbytes + page - 1) / page * page;
    whole = nbytes + huge;
    room = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    if (room == MAP_FAILED)
        return fs_map(fd, nbytes, writable);
    head = (huge + skew - (uintptr_t)room % huge) % huge;
    tail = whole - head - nbytes;
    flags |= MAP_FIXED;
    base = fs_map_file(fd, room + head, nbytes, writable, &flags);
    if (base == NULL) {
        code = errno;
        munmap(room, whole);
        errno = code;
        return NULL;
    }
    if (head > 0)
        munmap(room, head);
    if (tail > 0)
        munmap(base + nbytes, tail);
    return base;
#else
    return fs_map(fd, nbytes, writable);
#endif
}

static inline void fs_unmap(void *base, size_t nbytes)
{
    munmap(base, nbytes);
}

/* Read at an offset, at most 1 GiB a call: from 2 GiB on Linux cuts reads short and
 * macOS refuses them. */
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

typedef struct {
    uint64_t nbytes, device, inode, owner;
    int64_t mtime_ns, ctime_ns;
    uint32_t mode;
} fs_file_t;

/* fs_stat: os.fstat of a descriptor; returns 0 or -1. Always fails on Windows, where
 * Python finds the numbers of the device and the file.
 * fs_stat_size: only the size and the time of the last write.
 * fs_effective_user: the effective user id, or -1 if unknown. */
#if defined(_WIN32)
static inline int fs_stat(int fd, fs_file_t *file)
{
    (void)fd; (void)file;
    errno = ENOSYS;
    return -1;
}

static inline int fs_stat_size(int fd, uint64_t *nbytes, int64_t *mtime_ns)
{
    BY_HANDLE_FILE_INFORMATION found;
    int64_t ticks; /* of 100 ns, since 1601 */

    if (!GetFileInformationByHandle((HANDLE)_get_osfhandle(fd), &found)) {
        errno = EIO;
        return -1;
    }
    *nbytes = (uint64_t)found.nFileSizeHigh << 32 | found.nFileSizeLow;
    ticks = (int64_t)((uint64_t)found.ftLastWriteTime.dwHighDateTime << 32 |
                      found.ftLastWriteTime.dwLowDateTime);
    *mtime_ns = (ticks - 116444736000000000) * 100;
    return 0;
}

static inline int64_t fs_effective_user(void)
{
    return -1;
}
#else
static inline int fs_stat(int fd, fs_file_t *file)
{
    struct stat found;

    if (fstat(fd, &found) != 0)
        return -1;
    file->nbytes = (uint64_t)found.st_size;
    file->device = (uint64_t)found.st_dev;
    file->inode = (uint64_t)found.st_ino;
    file->owner = (uint64_t)found.st_uid;
    file->mode = (uint32_t)found.st_mode;
#if defined(__APPLE__)
    file->mtime_ns = (int64_t)found.st_mtimespec.tv_sec * 1000000000 +
                     found.st_mtimespec.tv_nsec;
    file->ctime_ns = (int64_t)found.st_ctimespec.tv_sec * 1000000000 +
                     found.st_ctimespec.tv_nsec;
#else
    file->mtime_ns =
        (int64_t)found.st_mtim.tv_sec * 1000000000 + found.st_mtim.tv_nsec;
    file->ctime_ns =
        (int64_t)found.st_ctim.tv_sec * 1000000000 + found.st_ctim.tv_nsec;
#endif
    return 0;
}

static inline int fs_stat_size(int fd, uint64_t *nbytes, int64_t *mtime_ns)
{
    fs_file_t file;

    if (fs_stat(fd, &file) != 0)
        return -1;
    *nbytes = file.nbytes;
    *mtime_ns = file.mtime_ns;
    return 0;
}

static inline int64_t fs_effective_user(void)
{
    return (int64_t)geteuid();
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

/* Read from the page cache only. Returns the number of bytes, or -1 with errno EAGAIN
 * (not cached) or EOPNOTSUPP (not supported by the file system or the kernel). */
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
    struct iovec target;

    target.iov_base = to;
    target.iov_len = size;
    return (int64_t)syscall(SYS_preadv2, fd, &target, 1L, (long)offset, 0L, RWF_NOWAIT);
}
#else
static inline int64_t fs_pread_cached(int fd, void *to, size_t size, uint64_t offset)
{
    (void)fd; (void)to; (void)size; (void)offset;
    errno = EOPNOTSUPP;
    return -1;
}
#endif

/* Start to read a range of a file into the page cache: a hint, failures are ignored. */
static inline void fs_advise_file(int fd, uint64_t offset, uint64_t size)
{
#if defined(POSIX_FADV_WILLNEED)
    (void)posix_fadvise(fd, (off_t)offset, (off_t)size, POSIX_FADV_WILLNEED);
#else
    (void)fd; (void)offset; (void)size;
#endif
}

/* Prefetch the cache line of an address. Never faults. */
static inline void fs_prefetch_line(const void *at)
{
#if defined(__GNUC__)
    __builtin_prefetch(at);
#else
    (void)at;
#endif
}

/* Prefetch the cache lines of 1 KiB from an address. Never faults. */
static inline void fs_prefetch(const uint8_t *at)
{
#if defined(__GNUC__)
    int line;

    for (line = 0; line < 1024; line += 64)
        __builtin_prefetch(at + line);
#else
    (void)at;
#endif
}

/* A number that threads may race on, where any of the values is valid. */
static inline Py_ssize_t fs_load_relaxed(Py_ssize_t *at)
{
#if defined(Py_GIL_DISABLED) && !defined(_MSC_VER)
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#else
    return *at;
#endif
}

static inline void fs_store_relaxed(Py_ssize_t *at, Py_ssize_t value)
{
#if defined(Py_GIL_DISABLED) && !defined(_MSC_VER)
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
#else
    *at = value;
#endif
}

/* A flag that is set once, after the data that it guards is written. */
static inline int fs_is_set(const int *flag)
{
#if defined(_MSC_VER)
    return *(const volatile int *)flag;
#else
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
#endif
}

static inline void fs_set(int *flag)
{
#if defined(_MSC_VER)
    *(volatile int *)flag = 1;
#else
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
#endif
}

/* Set a byte of 0 or 1 to 1. Returns 1 if this call changed it. */
static inline int fs_claim(uint8_t *at)
{
#if defined(_MSC_VER)
    return _InterlockedExchange8((volatile char *)at, 1) == 0;
#else
    return __atomic_exchange_n(at, (uint8_t)1, __ATOMIC_ACQ_REL) == 0;
#endif
}

/* Bits that threads set, each independently, and never clear. */
static inline int fs_has_bit(const uint8_t *bits, size_t i)
{
    return *(const volatile uint8_t *)(bits + i / 8) >> (i % 8) & 1;
}

static inline void fs_set_bit(uint8_t *bits, size_t i)
{
#if defined(_MSC_VER)
    _InterlockedOr8((volatile char *)(bits + i / 8), (char)(1 << i % 8));
#else
    __atomic_fetch_or(bits + i / 8, (uint8_t)(1 << i % 8), __ATOMIC_RELAXED);
#endif
}

/* Load a pointer that another thread may set to NULL. The compiler loads it once. */
static inline void *fs_load_pointer(void *const *at)
{
    return *(void *const volatile *)at;
}

/* Load a number that another thread may change. The compiler loads it once. */
static inline uint64_t fs_load(const uint64_t *at)
{
    return *(const volatile uint64_t *)at;
}

static inline uint32_t fs_load32(const uint32_t *at)
{
    return *(const volatile uint32_t *)at;
}

/* Count the leading bytes that are ASCII from the space on, except '"' and '\\': the
 * bytes of a JSON string that need no further check. */
#if (defined(__SSE2__) || defined(_M_X64)) && !defined(FS_NO_SIMD)
#include <emmintrin.h>
#if defined(_MSC_VER)
#include <intrin.h>
#endif

static inline size_t fs_count_plain(const uint8_t *at, size_t left)
{
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i backslash = _mm_set1_epi8('\\');
    const __m128i space = _mm_set1_epi8(' ');
    size_t done = 0;

    for (; left - done >= 16; done += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)(const void *)(at + done));
        /* Signed comparison: bytes from 0x80 on are negative, thus below a space. */
        __m128i special = _mm_or_si128(
            _mm_cmplt_epi8(block, space),
            _mm_or_si128(_mm_cmpeq_epi8(block, quote),
                         _mm_cmpeq_epi8(block, backslash)));
        unsigned mask = (unsigned)_mm_movemask_epi8(special);
        if (mask != 0) {
#if defined(_MSC_VER)
            unsigned long first;
            _BitScanForward(&first, mask);
            return done + first;
#else
            return done + (size_t)__builtin_ctz(mask);
#endif
        }
    }
    while (done < left && at[done] >= ' ' && at[done] < 0x80 && at[done] != '"' &&
           at[done] != '\\')
        done++;
    return done;
}
#else
static inline size_t fs_count_plain(const uint8_t *at, size_t left)
{
    const uint64_t ones = 0x0101010101010101u;
    const uint64_t tops = 0x8080808080808080u;
    size_t done = 0;

    for (; left - done >= 8; done += 8) {
        uint64_t block, quote, backslash;
        memcpy(&block, at + done, 8);
        quote = block ^ ones * '"';
        backslash = block ^ ones * '\\';
        /* Subtracting n (up to 0x80) from a smaller byte sets its top bit. */
        if (((block | (block - ones * ' ') | (quote - ones) | (backslash - ones)) &
             tops) != 0)
            break;
    }
    while (done < left && at[done] >= ' ' && at[done] < 0x80 && at[done] != '"' &&
           at[done] != '\\')
        done++;
    return done;
}
#endif

/* Count the leading decimal digits, at most 16, and set their value. */
static inline size_t fs_parse_digits_slowly(const uint8_t *at, size_t left,
                                            uint64_t *value)
{
    size_t count = 0;

    for (*value = 0; count < left && count < 16; count++) {
        if (at[count] < '0' || at[count] > '9')
            break;
        *value = *value * 10 + (uint64_t)(at[count] - '0');
    }
    return count;
}

#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && \
    !defined(FS_NO_SIMD)
/* Count and parse at most 8 leading digits of 8 readable bytes. They are one word with
 * the first digit in the lowest byte; digits are combined to pairs, then to fours, then
 * to eights. */
static inline size_t fs_parse_digits8(const uint8_t *at, uint64_t *value)
{
    const uint64_t pairs = 0x000000ff000000ffu;
    uint64_t word, others;
    size_t count;

    memcpy(&word, at, 8);
    word ^= 0x3030303030303030u; /* ASCII digits to values */
    others = ((word + 0x7676767676767676u) | word) & 0x8080808080808080u;
    count = others == 0 ? 8 : (size_t)__builtin_ctzll(others) / 8;
    *value = 0;
    if (count == 0)
        return 0;
    word <<= 64 - 8 * count; /* leading zeros */
    word = word * 10 + (word >> 8);
    *value = ((word & pairs) * (100 + (1000000ull << 32)) +
              (word >> 16 & pairs) * (1 + (10000ull << 32))) >> 32;
    return count;
}

static inline size_t fs_parse_digits(const uint8_t *at, size_t left, uint64_t *value)
{
    static const uint64_t powers[9] = {1,      10,      100,      1000,     10000,
                                       100000, 1000000, 10000000, 100000000};
    uint64_t low;
    size_t count, more;

    if (left < 16)
        return fs_parse_digits_slowly(at, left, value);
    count = fs_parse_digits8(at, value);
    if (count < 8)
        return count;
    more = fs_parse_digits8(at + 8, &low);
    *value = *value * powers[more] + low;
    return 8 + more;
}
#else
#define fs_parse_digits fs_parse_digits_slowly
#endif

/* Add to a counter that threads share: plain under the GIL, atomic without it. */
static inline void fs_add(Py_ssize_t *counter, Py_ssize_t change)
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
