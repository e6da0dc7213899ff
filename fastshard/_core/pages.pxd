"""Declarations of include/pages.h."""

from libc.stdint cimport uint8_t, uint64_t

cdef extern from "pages.h" nogil:
    uint64_t fs_page_size()
    void fs_advise_pages(const uint8_t *at, uint64_t size)
    void fs_drop_pages(const uint8_t *at, uint64_t size)
    void fs_map_page(const uint8_t *at)
    int fs_open_pagemap()
    void fs_close_pagemap(int pagemap)
    void fs_drop_clean_pages(int pagemap, const uint8_t *at, uint64_t size)
    int fs_populate_pages(const uint8_t *at, uint64_t size)
    void fs_populate_buffer(uint8_t *at, uint64_t size)
    int fs_pages_cached(const uint8_t *at, uint64_t size)
    int fs_window_cached(const uint8_t *at, uint64_t size, uint64_t *pages)
    int fs_file_cached(int fd, uint64_t offset, uint64_t size)
    void fs_evict_cached(int fd, uint64_t offset, uint64_t size)
    uint64_t fs_now()
    uint64_t fs_exact_now()
    void fs_pause()
