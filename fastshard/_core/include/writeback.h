/* Writing dirty pages of files to the disk. */

#ifndef FASTSHARD_WRITEBACK_H
#define FASTSHARD_WRITEBACK_H

#include <stdint.h>

/* Start to write a range of a file to the disk: a hint, failures are ignored. */
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__linux__) && defined(SYS_sync_file_range) && defined(__LP64__)
static inline void fs_start_writeback(int fd, uint64_t offset, uint64_t size)
{
    (void)syscall(SYS_sync_file_range, fd, (long)offset, (long)size, 2L); /* WRITE */
}
#else
static inline void fs_start_writeback(int fd, uint64_t offset, uint64_t size)
{
    (void)fd; (void)offset; (void)size;
}
#endif

#endif
