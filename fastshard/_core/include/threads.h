/* Native threads that never take the GIL, locks and atomic numbers.
 *
 * Threads do not survive fork. `fs_generation` counts forks: a thread of an earlier
 * generation must not be joined or waited for.
 */
#ifndef FASTSHARD_THREADS_H
#define FASTSHARD_THREADS_H

#include "platform.h"

#include <stdlib.h>

typedef void *(*fs_work_t)(void *);

#if defined(_WIN32)

#include <process.h>

typedef HANDLE fs_thread_t;
typedef SRWLOCK fs_lock_t;
typedef CONDITION_VARIABLE fs_cond_t;

typedef struct {
    fs_work_t work;
    void *with;
} fs_start_t;

static unsigned __stdcall fs_begin(void *start)
{
    fs_start_t begun = *(fs_start_t *)start;

    free(start);
    begun.work(begun.with);
    return 0;
}

static inline int fs_thread_start(fs_thread_t *thread, fs_work_t work, void *with)
{
    fs_start_t *start = malloc(sizeof *start);

    if (start == NULL)
        return ENOMEM;
    start->work = work;
    start->with = with;
    *thread = (HANDLE)_beginthreadex(NULL, 0, fs_begin, start, 0, NULL);
    if (*thread != NULL)
        return 0;
    free(start);
    return EAGAIN;
}

static inline void fs_thread_join(fs_thread_t thread)
{
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}

static inline int fs_lock_init(fs_lock_t *lock) { InitializeSRWLock(lock); return 0; }
static inline void fs_lock(fs_lock_t *lock) { AcquireSRWLockExclusive(lock); }
static inline void fs_unlock(fs_lock_t *lock) { ReleaseSRWLockExclusive(lock); }
static inline void fs_lock_free(fs_lock_t *lock) { (void)lock; }
static inline int fs_cond_init(fs_cond_t *bell)
{
    InitializeConditionVariable(bell);
    return 0;
}
static inline void fs_cond_broadcast(fs_cond_t *bell)
{
    WakeAllConditionVariable(bell);
}
static inline void fs_cond_free(fs_cond_t *bell) { (void)bell; }
static inline void fs_cond_wait(fs_cond_t *bell, fs_lock_t *lock)
{
    SleepConditionVariableSRW(bell, lock, INFINITE, 0);
}

static inline unsigned fs_generation(void) { return 0; }
static inline int fs_watch_forks(void) { return 0; }

#else /* POSIX */

#include <pthread.h>
#include <signal.h>

typedef pthread_t fs_thread_t;
typedef pthread_mutex_t fs_lock_t;
typedef pthread_cond_t fs_cond_t;

/* Start a thread with all signals blocked: Python's threads handle signals. */
static inline int fs_thread_start(fs_thread_t *thread, fs_work_t work, void *with)
{
    sigset_t all, before;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(thread, NULL, work, with);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

static inline void fs_thread_join(fs_thread_t thread) { pthread_join(thread, NULL); }
static inline int fs_lock_init(fs_lock_t *lock)
{
    return pthread_mutex_init(lock, NULL);
}
static inline void fs_lock(fs_lock_t *lock) { pthread_mutex_lock(lock); }
static inline void fs_unlock(fs_lock_t *lock) { pthread_mutex_unlock(lock); }
static inline void fs_lock_free(fs_lock_t *lock) { pthread_mutex_destroy(lock); }
static inline int fs_cond_init(fs_cond_t *bell)
{
    return pthread_cond_init(bell, NULL);
}
static inline void fs_cond_broadcast(fs_cond_t *bell) { pthread_cond_broadcast(bell); }
static inline void fs_cond_free(fs_cond_t *bell) { pthread_cond_destroy(bell); }
static inline void fs_cond_wait(fs_cond_t *bell, fs_lock_t *lock)
{
    pthread_cond_wait(bell, lock);
}

static unsigned fs_forks;

static inline unsigned fs_generation(void)
{
    return __atomic_load_n(&fs_forks, __ATOMIC_RELAXED);
}

static void fs_forked(void)
{
    __atomic_add_fetch(&fs_forks, 1, __ATOMIC_RELAXED);
}

/* Count forks from now on. Called once, by the module whose threads outlive a call. */
static inline int fs_watch_forks(void)
{
    return pthread_atfork(NULL, NULL, fs_forked);
}

#endif

/* Numbers that threads share; each has one writer, or is only incremented.
 * fs_atomic_publish is a release store without a fence: a reader of the value sees all
 * earlier writes; later reads may be reordered before it. */
#if defined(_MSC_VER)
static inline uint64_t fs_atomic_load(uint64_t *at)
{
    return (uint64_t)_InterlockedCompareExchange64((volatile __int64 *)at, 0, 0);
}
static inline void fs_atomic_store(uint64_t *at, uint64_t value)
{
    _InterlockedExchange64((volatile __int64 *)at, (__int64)value);
}
static inline void fs_atomic_publish(uint64_t *at, uint64_t value)
{
    _InterlockedExchange64((volatile __int64 *)at, (__int64)value);
}
static inline uint64_t fs_atomic_next(uint64_t *at)
{
    return (uint64_t)_InterlockedExchangeAdd64((volatile __int64 *)at, 1);
}
static inline void fs_pin(uint32_t *count)
{
    _InterlockedIncrement((volatile long *)count);
}
static inline void fs_unpin(uint32_t *count)
{
    _InterlockedDecrement((volatile long *)count);
}
static inline int fs_is_pinned(uint32_t *count)
{
    return _InterlockedCompareExchange((volatile long *)count, 0, 0) != 0;
}
#else
static inline uint64_t fs_atomic_load(uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
static inline void fs_atomic_store(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}
static inline void fs_atomic_publish(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
static inline uint64_t fs_atomic_next(uint64_t *at)
{
    return __atomic_fetch_add(at, 1, __ATOMIC_SEQ_CST);
}

/* A count of users. A thread that reads 0 sees all writes of past users. */
static inline void fs_pin(uint32_t *count)
{
    __atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST);
}
static inline void fs_unpin(uint32_t *count)
{
    __atomic_fetch_sub(count, 1, __ATOMIC_SEQ_CST);
}
static inline int fs_is_pinned(uint32_t *count)
{
    return __atomic_load_n(count, __ATOMIC_SEQ_CST) != 0;
}
#endif

#endif
