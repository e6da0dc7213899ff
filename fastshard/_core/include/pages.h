/* Pages of mapped files: residency, prefetch and release; clocks.
 *
 * Addresses need not be page-aligned. No function takes or needs the GIL. No function
 * sets lasting advice (MADV_RANDOM and such) on a mapping: its users share it.
 */
#ifndef FASTSHARD_PAGES_H
#define FASTSHARD_PAGES_H

#include "platform.h"

#include <time.h>

/* FS_PORTABLE builds the code of other systems on Linux, for tests. */
#if defined(__linux__) && !defined(FS_PORTABLE)
#define FS_ASKS_LINUX
#endif

/* Bytes of one request. The kernel may cut a longer one to the device's readahead
 * without an error. */
#define FS_ADVICE ((uint64_t)128 << 10)

#if !defined(_WIN32)

static inline uint64_t fs_page_size(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Widen an extent to whole pages. */
static inline uint8_t *fs_whole_pages(const uint8_t *at, uint64_t *size)
{
    uint64_t page = fs_page_size();
    uint64_t over = (uint64_t)((uintptr_t)at % page);

    *size = (*size + over + page - 1) / page * page;
    return (uint8_t *)(uintptr_t)at - over;
}

/* Start to read pages; do not wait for the device. */
static inline void fs_advise_pages(const uint8_t *at, uint64_t size)
{
    uint8_t *start = fs_whole_pages(at, &size);
    uint64_t done, piece;

    for (done = 0; done < size; done += piece) {
        piece = size - done < FS_ADVICE ? size - done : FS_ADVICE;
        (void)madvise(start + done, (size_t)piece, MADV_WILLNEED);
    }
}

/* Unmap pages from this process's page tables; they stay in the page cache.
 * Shared mappings only; fs_drop_clean_pages is for private ones. */
static inline void fs_drop_pages(const uint8_t *at, uint64_t size)
{
    uint8_t *start = fs_whole_pages(at, &size);

    (void)madvise(start, (size_t)size, MADV_DONTNEED);
}

#else

static inline uint64_t fs_page_size(void)
{
    return 4096;
}

static inline void fs_advise_pages(const uint8_t *at, uint64_t size)
{
    WIN32_MEMORY_RANGE_ENTRY range;

    range.VirtualAddress = (void *)(uintptr_t)at;
    range.NumberOfBytes = (SIZE_T)size;
    (void)PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0);
}

static inline void fs_drop_pages(const uint8_t *at, uint64_t size)
{
    (void)at; (void)size;
}

#endif

/* Read a byte of each page, the fallback of fs_populate_pages. */
static inline void fs_touch_pages(const uint8_t *at, uint64_t size)
{
    uint64_t page = fs_page_size();
    uint64_t done;

    for (done = 0; done < size; done += page)
        (void)*(const volatile uint8_t *)(at + done);
    if (size > 0)
        (void)*(const volatile uint8_t *)(at + size - 1);
}

/* Read and map pages; wait for the device. Returns 0 or an errno: EFAULT if the file
 * now ends before one of them or the device failed. */
#if defined(FS_ASKS_LINUX)
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
static inline int fs_populate_pages(const uint8_t *at, uint64_t size)
{
    uint64_t whole = size;
    uint8_t *start = fs_whole_pages(at, &whole);
    int tries = 0;

    while (madvise(start, (size_t)whole, MADV_POPULATE_READ) != 0) {
        if (errno == EINVAL || errno == ENOSYS) { /* before Linux 5.14 */
            fs_touch_pages(at, size);
            return 0;
        }
        if ((errno != EAGAIN && errno != EINTR) || ++tries == 100)
            return errno;
    }
    return 0;
}
#else
static inline int fs_populate_pages(const uint8_t *at, uint64_t size)
{
    fs_touch_pages(at, size);
    return 0;
}
#endif

/* Allocate the whole pages of a buffer that is soon written to; each page that is not
 * populated costs a fault when it is. Ignores failures. */
#if defined(FS_ASKS_LINUX)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
static inline void fs_populate_buffer(uint8_t *at, uint64_t size)
{
    uint64_t page = fs_page_size();
    uint64_t before = (page - (uintptr_t)at % page) % page;

    if (size > before && size - before >= page)
        (void)madvise(at + before, (size_t)((size - before) / page * page),
                      MADV_POPULATE_WRITE); /* EINVAL before Linux 5.14 */
}
#else
static inline void fs_populate_buffer(uint8_t *at, uint64_t size)
{
    (void)at, (void)size;
}
#endif

/* Map the page of a byte; wait for the device. Ignores failures: the later access to
 * the byte meets them. */
static inline void fs_map_page(const uint8_t *at)
{
#if defined(FS_ASKS_LINUX)
    uint64_t size = 1;
    uint8_t *start = fs_whole_pages(at, &size);

    (void)madvise(start, (size_t)size, MADV_POPULATE_READ);
#else
    (void)at;
#endif
}

/* Open /proc/self/pagemap, which identifies the modified pages of a private mapping.
 * Those exist nowhere else and must never be dropped. Returns -1 without a pagemap. The
 * descriptor shows the process that opened it: do not use it in a child of fork. */
#if defined(FS_ASKS_LINUX)
static inline int fs_open_pagemap(void)
{
    return open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
}

static inline void fs_close_pagemap(int pagemap)
{
    (void)close(pagemap);
}

/* Drop the unmodified pages of an extent. The caller must prevent writes to the extent
 * during the call. */
static inline void fs_drop_clean_pages(int pagemap, const uint8_t *at, uint64_t size)
{
    const uint64_t present = (uint64_t)1 << 63, swapped = (uint64_t)1 << 62;
    const uint64_t of_file = (uint64_t)1 << 61; /* clear for a private copy */
    uint64_t entries[256];
    uint64_t page = fs_page_size();
    uint8_t *start = fs_whole_pages(at, &size);
    uint64_t done, count, first, i;

    for (done = 0; done < size; done += count * page) {
        count = (size - done) / page;
        if (count > sizeof entries / sizeof entries[0])
            count = sizeof entries / sizeof entries[0];
        if (pread(pagemap, entries, (size_t)(count * sizeof entries[0]),
                  (off_t)((uintptr_t)(start + done) / page * sizeof entries[0])) !=
            (ssize_t)(count * sizeof entries[0]))
            return;
        for (first = 0, i = 0; i <= count; i++) {
            if (i < count && !(entries[i] & swapped) &&
                (!(entries[i] & present) || (entries[i] & of_file)))
                continue;
            if (i > first)
                (void)madvise(start + done + first * page, (size_t)((i - first) * page),
                              MADV_DONTNEED);
            first = i + 1;
        }
    }
}
#else
static inline int fs_open_pagemap(void) { return -1; }
static inline void fs_close_pagemap(int pagemap) { (void)pagemap; }
static inline void fs_drop_clean_pages(int pagemap, const uint8_t *at, uint64_t size)
{
    (void)pagemap; (void)at; (void)size;
}
#endif

/* Return 1 if all pages of an extent are in the page cache, 0 if not, -1 if unknown.
 * For files that the caller neither owns nor can write, the kernel always says yes. */
#if defined(FS_ASKS_LINUX)
static inline int fs_pages_cached(const uint8_t *at, uint64_t size)
{
    unsigned char present[256];
    uint64_t page = fs_page_size();
    uint8_t *start = fs_whole_pages(at, &size);
    uint64_t most = sizeof present * page;
    uint64_t done, piece, i;

    for (done = 0; done < size; done += piece) {
        piece = size - done < most ? size - done : most;
        if (mincore(start + done, (size_t)piece, present) != 0)
            return -1;
        for (i = 0; i < piece / page; i++)
            if (!(present[i] & 1))
                return 0;
    }
    return 1;
}

/* Set a bit for each of at most 64 pages from a page's start that is in the page cache;
 * return 0, or -1 if that is unknown. */
static inline int fs_window_cached(const uint8_t *at, uint64_t size, uint64_t *pages)
{
    unsigned char present[64];
    uint64_t page = fs_page_size();
    uint64_t i, count = size / page + (size % page != 0);

    *pages = 0;
    if (count > sizeof present || mincore((void *)at, (size_t)size, present) != 0)
        return -1;
    for (i = 0; i < count; i++)
        *pages |= (uint64_t)(present[i] & 1) << i;
    return 0;
}
#else
static inline int fs_pages_cached(const uint8_t *at, uint64_t size)
{
    (void)at; (void)size;
    return -1;
}
static inline int fs_window_cached(const uint8_t *at, uint64_t size, uint64_t *pages)
{
    (void)at; (void)size;
    *pages = 0;
    return -1;
}
#endif

/* Return 1 if a range of a file is in the page cache or being read into it, 0 if not,
 * -1 if unknown. */
#if defined(FS_ASKS_LINUX) && defined(__LP64__)
#ifndef SYS_cachestat
#define SYS_cachestat 451 /* the same on all architectures; Linux 6.5 */
#endif
static inline int fs_file_cached(int fd, uint64_t offset, uint64_t size)
{
    struct { uint64_t offset, size; } range = {offset, size};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently;
    } found = {0, 0, 0, 0, 0};
    uint64_t page = fs_page_size();

    if (syscall(SYS_cachestat, fd, &range, &found, 0) != 0)
        return -1;
    return found.cached >= (offset % page + size + page - 1) / page;
}
#else
static inline int fs_file_cached(int fd, uint64_t offset, uint64_t size)
{
    (void)fd; (void)offset; (void)size;
    return -1;
}
#endif

/* Evict a range of a file from the page cache, except pages that a process maps. */
static inline void fs_evict_cached(int fd, uint64_t offset, uint64_t size)
{
#if defined(POSIX_FADV_DONTNEED)
    (void)posix_fadvise(fd, (off_t)offset, (off_t)size, POSIX_FADV_DONTNEED);
#else
    (void)fd; (void)offset; (void)size;
#endif
}

/* Monotonic clock in nanoseconds, with a resolution of some milliseconds. */
static inline uint64_t fs_now(void)
{
#if defined(_WIN32)
    return (uint64_t)GetTickCount64() * 1000000u;
#else
    struct timespec now;
#if defined(CLOCK_MONOTONIC_COARSE)
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

/* Monotonic clock in nanoseconds, of full resolution: five times the cost of fs_now. */
static inline uint64_t fs_exact_now(void)
{
#if defined(_WIN32)
    LARGE_INTEGER ticks, each;

    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&each);
    return (uint64_t)(ticks.QuadPart / each.QuadPart) * 1000000000u +
           (uint64_t)(ticks.QuadPart % each.QuadPart) * 1000000000u /
               (uint64_t)each.QuadPart;
#else
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

/* Sleep for the shortest time of the system, so that another thread may wake up. */
static inline void fs_pause(void)
{
#if defined(_WIN32)
    Sleep(0);
#else
    struct timespec moment = {0, 1000};

    (void)nanosleep(&moment, NULL);
#endif
}

#endif
