/* Queue of events of sockets, with a bell that other threads ring: epoll or kqueue.
 *
 * Events are level-triggered. Only the bell may be used by several threads. After a
 * fork the child must not use its parent's queue, which it shares with epoll, except to
 * close it by `fs_events_close(events, 1)`.
 */
#ifndef FASTSHARD_EVENTS_H
#define FASTSHARD_EVENTS_H

#include <errno.h>
#include <stdint.h>

#define FS_BELL UINT32_MAX /* tag of the bell's event */

typedef struct {
    int queue;
    int bell;
} fs_events_t;

#if defined(__linux__)

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FS_HAS_EVENTS 1
#define FS_MOST_EVENTS 64

/* Wait for input of a socket, and also for output. Returns 0 or an errno. */
static inline int fs_events_change(fs_events_t *events, int fd, uint32_t tag,
                                   int output, int is_new)
{
    struct epoll_event wanted = {.events = EPOLLIN, .data = {.u32 = tag}};

    if (output)
        wanted.events |= EPOLLOUT;
    return epoll_ctl(events->queue, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd,
                     &wanted) == 0
               ? 0
               : errno;
}

static inline void fs_events_remove(fs_events_t *events, int fd)
{
    struct epoll_event unused = {0};

    (void)epoll_ctl(events->queue, EPOLL_CTL_DEL, fd, &unused);
}

static inline void fs_events_close(fs_events_t *events, int is_child)
{
    (void)is_child;
    if (events->bell >= 0)
        close(events->bell);
    if (events->queue >= 0)
        close(events->queue);
    events->queue = events->bell = -1;
}

/* Returns 0 or an errno. */
static inline int fs_events_open(fs_events_t *events)
{
    int code;

    events->bell = -1;
    events->queue = epoll_create1(EPOLL_CLOEXEC);
    if (events->queue >= 0)
        events->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    code = events->bell < 0
               ? errno
               : fs_events_change(events, events->bell, FS_BELL, 0, 1);
    if (code != 0)
        fs_events_close(events, 0);
    return code;
}

static inline void fs_events_ring(fs_events_t *events)
{
    uint64_t one = 1;
    ssize_t written = write(events->bell, &one, sizeof(one));

    (void)written; /* EAGAIN: it rings */
}

/* Wait at most `wait_ms`; store the tags of sockets with events. Returns their number,
 * 0 also after a signal. */
static inline int fs_events_wait(fs_events_t *events, uint32_t *tags, int wait_ms)
{
    struct epoll_event found[FS_MOST_EVENTS];
    int i, count = epoll_wait(events->queue, found, FS_MOST_EVENTS, wait_ms);

    for (i = 0; i < count; i++) {
        tags[i] = found[i].data.u32;
        if (tags[i] == FS_BELL) {
            uint64_t rung;
            ssize_t got = read(events->bell, &rung, sizeof(rung));

            (void)got;
        }
    }
    return count > 0 ? count : 0;
}

#elif defined(__APPLE__) || defined(__FreeBSD__)

#include <sys/types.h>
#include <sys/event.h>
#include <sys/time.h>
#include <unistd.h>

#define FS_HAS_EVENTS 1
#define FS_MOST_EVENTS 64

static inline int fs_events_change(fs_events_t *events, int fd, uint32_t tag,
                                   int output, int is_new)
{
    struct kevent change;

    if (is_new) {
        EV_SET(&change, fd, EVFILT_READ, EV_ADD, 0, 0, (void *)(uintptr_t)tag);
        if (kevent(events->queue, &change, 1, NULL, 0, NULL) != 0)
            return errno;
    }
    if (is_new && !output)
        return 0;
    EV_SET(&change, fd, EVFILT_WRITE, output ? EV_ADD : EV_DELETE, 0, 0,
           (void *)(uintptr_t)tag);
    if (kevent(events->queue, &change, 1, NULL, 0, NULL) != 0 && errno != ENOENT)
        return errno;
    return 0;
}

static inline void fs_events_remove(fs_events_t *events, int fd)
{
    struct kevent change;

    EV_SET(&change, fd, EVFILT_READ, EV_DELETE, 0, 0, NULL);
    (void)kevent(events->queue, &change, 1, NULL, 0, NULL);
    EV_SET(&change, fd, EVFILT_WRITE, EV_DELETE, 0, 0, NULL);
    (void)kevent(events->queue, &change, 1, NULL, 0, NULL);
}

static inline void fs_events_close(fs_events_t *events, int is_child)
{
    if (events->queue >= 0 && !is_child) /* a child does not inherit it */
        close(events->queue);
    events->queue = events->bell = -1;
}

static inline int fs_events_open(fs_events_t *events)
{
    struct kevent change;
    int code;

    events->bell = -1;
    events->queue = kqueue();
    if (events->queue < 0)
        return errno;
    EV_SET(&change, 0, EVFILT_USER, EV_ADD | EV_CLEAR, 0, 0,
           (void *)(uintptr_t)FS_BELL);
    if (kevent(events->queue, &change, 1, NULL, 0, NULL) == 0)
        return 0;
    code = errno;
    fs_events_close(events, 0);
    return code;
}

static inline void fs_events_ring(fs_events_t *events)
{
    struct kevent change;

    EV_SET(&change, 0, EVFILT_USER, 0, NOTE_TRIGGER, 0, (void *)(uintptr_t)FS_BELL);
    (void)kevent(events->queue, &change, 1, NULL, 0, NULL);
}

static inline int fs_events_wait(fs_events_t *events, uint32_t *tags, int wait_ms)
{
    struct kevent found[FS_MOST_EVENTS];
    struct timespec wait = {wait_ms / 1000, (long)(wait_ms % 1000) * 1000000};
    int i, count = kevent(events->queue, NULL, 0, found, FS_MOST_EVENTS, &wait);

    for (i = 0; i < count; i++)
        tags[i] = (uint32_t)(uintptr_t)found[i].udata;
    return count > 0 ? count : 0;
}

#else /* ranges are read by threads */

#define FS_HAS_EVENTS 0
#define FS_MOST_EVENTS 1

static inline int fs_events_change(fs_events_t *events, int fd, uint32_t tag,
                                   int output, int is_new)
{
    (void)events, (void)fd, (void)tag, (void)output, (void)is_new;
    return ENOSYS;
}

static inline void fs_events_remove(fs_events_t *events, int fd)
{
    (void)events, (void)fd;
}

static inline void fs_events_close(fs_events_t *events, int is_child)
{
    (void)events, (void)is_child;
}

static inline int fs_events_open(fs_events_t *events)
{
    events->queue = events->bell = -1;
    return ENOSYS;
}

static inline void fs_events_ring(fs_events_t *events) { (void)events; }

static inline int fs_events_wait(fs_events_t *events, uint32_t *tags, int wait_ms)
{
    (void)events, (void)tags, (void)wait_ms;
    return 0;
}

#endif

#endif
