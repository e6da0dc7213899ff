/* Receiving from a socket until a buffer is full or a moment has come. */
#ifndef FASTSHARD_RECEIVE_H
#define FASTSHARD_RECEIVE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)

#define FS_CAN_RECEIVE 0

static inline int64_t fs_receive(int fd, uint8_t *to, size_t size, int wait_ms)
{
    (void)fd, (void)to, (void)size, (void)wait_ms;
    errno = ENOSYS;
    return -1;
}

#else

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#define FS_CAN_RECEIVE 1

/* Receive once: bytes; 0 at the end of the stream; -1, with EAGAIN if nothing
   came for `wait_ms`. */
static inline int64_t fs_receive(int fd, uint8_t *to, size_t size, int wait_ms)
{
    struct pollfd asked = {.fd = fd, .events = POLLIN, .revents = 0};
    int64_t got;
    int ready;

    got = (int64_t)recv(fd, to, size, MSG_DONTWAIT);
    if (got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        return got;
    ready = poll(&asked, 1, wait_ms);
    if (ready <= 0) {
        errno = EAGAIN; /* also after a signal: Python looks at it */
        return -1;
    }
    got = (int64_t)recv(fd, to, size, MSG_DONTWAIT);
    if (got < 0 && (errno == EWOULDBLOCK || errno == EINTR))
        errno = EAGAIN;
    return got;
}

#endif

#endif
