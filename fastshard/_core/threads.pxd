"""Declarations of include/threads.h."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "threads.h" nogil:
    ctypedef struct fs_thread_t:
        pass
    ctypedef struct fs_lock_t:
        pass
    ctypedef struct fs_cond_t:
        pass
    ctypedef void *(*fs_work_t)(void *) noexcept nogil
    int fs_thread_start(fs_thread_t *thread, fs_work_t work, void *argument)
    void fs_thread_join(fs_thread_t thread)
    int fs_lock_init(fs_lock_t *lock)
    void fs_lock(fs_lock_t *lock)
    void fs_unlock(fs_lock_t *lock)
    void fs_lock_free(fs_lock_t *lock)
    int fs_cond_init(fs_cond_t *bell)
    void fs_cond_broadcast(fs_cond_t *bell)
    void fs_cond_wait(fs_cond_t *bell, fs_lock_t *lock)
    void fs_cond_free(fs_cond_t *bell)
    unsigned fs_generation()
    int fs_watch_forks()
    uint64_t fs_atomic_load(uint64_t *at)
    void fs_atomic_store(uint64_t *at, uint64_t value)
    void fs_atomic_publish(uint64_t *at, uint64_t value)
    uint64_t fs_atomic_next(uint64_t *at)
    void fs_pin(uint32_t *count)
    void fs_unpin(uint32_t *count)
    bint fs_is_pinned(uint32_t *count)
