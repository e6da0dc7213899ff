/* Sockets: sends, and receives into several buffers at once. */
#ifndef FASTSHARD_RECEIVE_H
#define FASTSHARD_RECEIVE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *to; /* NULL: discard the bytes */
    size_t size;
} fs_slice_t;

#if defined(_WIN32)

#define FS_CAN_RECEIVE 0

static inline int64_t fs_send(int fd, const uint8_t *from, size_t size)
{
    (void)fd, (void)from, (void)size;
    errno = ENOSYS;
    return -1;
}

static inline int fs_is_silent(int fd)
{
    (void)fd;
    return 0;
}

static inline int64_t fs_receive(int fd, const fs_slice_t *slices, size_t count,
                                 uint8_t *scratch, size_t room, int wait_ms)
{
    (void)fd, (void)slices, (void)count, (void)scratch, (void)room, (void)wait_ms;
    errno = ENOSYS;
    return -1;
}

static inline int fs_wait_for(int fd, int output, int wait_ms)
{
    (void)fd, (void)output, (void)wait_ms;
    return 0;
}

static inline int fs_connect_error(int fd)
{
    (void)fd;
    return ENOSYS;
}

#else

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#define FS_CAN_RECEIVE 1
#define FS_MOST_SLICES 64
#ifndef MSG_NOSIGNAL /* macOS: Python sets SO_NOSIGPIPE on the socket */
#define MSG_NOSIGNAL 0
#endif

/* Send once, without waiting. Returns the number of bytes, or -1 with errno, EAGAIN if
 * the buffer of the socket is full. */
static inline int64_t fs_send(int fd, const uint8_t *from, size_t size)
{
    int64_t sent = (int64_t)send(fd, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (sent < 0 && (errno == EWOULDBLOCK || errno == EINTR))
        errno = EAGAIN;
    return sent;
}

/* Return 1 if an idle socket has nothing to receive, not even the end of the stream. */
static inline int fs_is_silent(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* Wait for input or output; return whether there is any, or an error to receive. */
static inline int fs_wait_for(int fd, int output, int wait_ms)
{
    struct pollfd asked = {.fd = fd, .revents = 0};

    asked.events = output ? POLLOUT : POLLIN;
    return poll(&asked, 1, wait_ms) > 0;
}

/* Return 0 if a socket has been connected, otherwise an errno. */
static inline int fs_connect_error(int fd)
{
    int error = 0;
    socklen_t size = sizeof(error);

    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 ? errno : error;
}

/* Receive once into slices, in order; wait at most `wait_ms`, or not at all if it is
 * negative. Discarded bytes go to `scratch`, of `room` bytes. Returns the number of
 * bytes, 0 at the end of the stream, or -1 with errno, EAGAIN after the wait. */
static inline int64_t fs_receive(int fd, const fs_slice_t *slices, size_t count,
                                 uint8_t *scratch, size_t room, int wait_ms)
{
    struct iovec parts[FS_MOST_SLICES];
    struct msghdr message;
    size_t i;
    int64_t got;

    for (i = 0; i < count && i < FS_MOST_SLICES; i++) {
        int passed = slices[i].to == NULL;

        parts[i].iov_base = passed ? scratch : slices[i].to;
        parts[i].iov_len = passed && slices[i].size > room ? room : slices[i].size;
        if (parts[i].iov_len < slices[i].size) {
            i++; /* the rest of this slice comes before the next */
            break;
        }
    }
    memset(&message, 0, sizeof(message));
    message.msg_iov = parts;
    message.msg_iovlen = i;
    got = (int64_t)recvmsg(fd, &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        if (wait_ms >= 0 && fs_wait_for(fd, 0, wait_ms))
            got = (int64_t)recvmsg(fd, &message, MSG_DONTWAIT);
        if (got < 0 && (errno == EWOULDBLOCK || errno == EINTR))
            errno = EAGAIN; /* after a signal, return to Python to handle it */
    }
    return got;
}

#endif

#endif
