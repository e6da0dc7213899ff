/* CRC-32C (Castagnoli), as iSCSI (RFC 3720) defines it.
 *
 * Uses the processor's CRC-32C instruction where it has one: SSE 4.2 is detected at run
 * time, the CRC32 extension of ARMv8 at compile time. The fallback is a lookup in
 * tables, eight bytes at a time.
 */
#ifndef FASTSHARD_CRC32C_H
#define FASTSHARD_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FS_CRC32C_POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t fs_crc32c_tables[8][256];
static int fs_crc32c_hardware; /* 1 if the instruction is used */

static inline uint32_t fs_crc32c_by_table(uint32_t crc, const uint8_t *at, size_t size)
{
    uint32_t (*tables)[256] = fs_crc32c_tables;

    for (; size >= 8; at += 8, size -= 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
               (uint32_t)at[3] << 24;
        crc = tables[7][crc & 0xff] ^ tables[6][crc >> 8 & 0xff] ^
              tables[5][crc >> 16 & 0xff] ^ tables[4][crc >> 24] ^ tables[3][at[4]] ^
              tables[2][at[5]] ^ tables[1][at[6]] ^ tables[0][at[7]];
    }
    for (; size > 0; at++, size--)
        crc = crc >> 8 ^ tables[0][(crc ^ *at) & 0xff];
    return crc;
}

#if (defined(__GNUC__) && defined(__x86_64__) || defined(_M_X64)) && \
    !defined(FS_NO_SIMD)
#include <nmmintrin.h>
#define FS_CRC32C_HARDWARE 1

#if defined(__GNUC__)
#define FS_SSE42 __attribute__((target("sse4.2")))

static inline int fs_crc32c_has_hardware(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") != 0;
}
#else
#include <intrin.h>
#define FS_SSE42

static inline int fs_crc32c_has_hardware(void)
{
    int found[4];

    __cpuid(found, 1);
    return found[2] >> 20 & 1;
}
#endif

FS_SSE42 static uint32_t
fs_crc32c_by_hardware(uint32_t crc, const uint8_t *at, size_t size)
{
    uint64_t wide = crc, word;

    for (; size >= 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    for (; size > 0; at++, size--)
        crc = _mm_crc32_u8(crc, *at);
    return crc;
}
#elif defined(__ARM_FEATURE_CRC32) && defined(__aarch64__) && !defined(FS_NO_SIMD)
#include <arm_acle.h>
#define FS_CRC32C_HARDWARE 1

static inline int fs_crc32c_has_hardware(void)
{
    return 1;
}

static uint32_t fs_crc32c_by_hardware(uint32_t crc, const uint8_t *at, size_t size)
{
    uint64_t word;

    for (; size >= 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        crc = __crc32cd(crc, word);
    }
    for (; size > 0; at++, size--)
        crc = __crc32cb(crc, *at);
    return crc;
}
#endif

/* Fill the tables and detect the instruction. Call once, before the first use. */
static inline void fs_crc32c_begin(void)
{
    uint32_t i, k, crc;

    for (i = 0; i < 256; i++) {
        crc = i;
        for (k = 0; k < 8; k++)
            crc = crc >> 1 ^ (FS_CRC32C_POLYNOMIAL & (0u - (crc & 1u)));
        fs_crc32c_tables[0][i] = crc;
    }
    for (i = 0; i < 256; i++)
        for (k = 1; k < 8; k++) {
            crc = fs_crc32c_tables[k - 1][i];
            fs_crc32c_tables[k][i] = crc >> 8 ^ fs_crc32c_tables[0][crc & 0xff];
        }
#if defined(FS_CRC32C_HARDWARE)
    fs_crc32c_hardware = fs_crc32c_has_hardware();
#endif
}

/* Continue the checksum `crc` of the preceding bytes; start with 0. */
static inline uint32_t fs_crc32c(uint32_t crc, const uint8_t *at, size_t size)
{
#if defined(FS_CRC32C_HARDWARE)
    if (fs_crc32c_hardware)
        return ~fs_crc32c_by_hardware(~crc, at, size);
#endif
    return ~fs_crc32c_by_table(~crc, at, size);
}

/* fs_crc32c by tables on every processor, for tests. */
static inline uint32_t fs_crc32c_portable(uint32_t crc, const uint8_t *at, size_t size)
{
    return ~fs_crc32c_by_table(~crc, at, size);
}

#endif
