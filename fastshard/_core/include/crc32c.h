/* CRC-32C (Castagnoli), as iSCSI (RFC 3720) defines it.
 *
 * Uses the processor's CRC-32C instruction where it has one: SSE 4.2 is detected at run
 * time, the CRC32 extension of ARMv8 at run time on Linux, at compile time elsewhere.
 * The fallback is a lookup in tables, eight bytes at a time.
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

/* Assembly where it is known: intrinsics need target attributes, whose names differ
 * between compilers. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(FS_NO_SIMD)
#include <cpuid.h>
#define FS_CRC32C_HARDWARE 1
#define FS_CRC32C_8(crc, word) __asm__("crc32q %1, %0" : "+r"(crc) : "rm"(word))
#define FS_CRC32C_1(crc, byte) __asm__("crc32b %1, %0" : "+r"(crc) : "rm"(byte))

static inline int fs_crc32c_has_hardware(void)
{
    unsigned int eax, ebx, ecx = 0, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx >> 20 & 1);
}
#elif defined(_M_X64) && !defined(FS_NO_SIMD)
#include <intrin.h>
#include <nmmintrin.h>
#define FS_CRC32C_HARDWARE 1
#define FS_CRC32C_8(crc, word) (crc) = _mm_crc32_u64(crc, word)
#define FS_CRC32C_1(crc, byte) (crc) = _mm_crc32_u8((uint32_t)(crc), byte)

static inline int fs_crc32c_has_hardware(void)
{
    int found[4];

    __cpuid(found, 1);
    return found[2] >> 20 & 1;
}
#elif defined(__GNUC__) && defined(__aarch64__) && !defined(FS_NO_SIMD) && \
    (defined(__linux__) || defined(__ARM_FEATURE_CRC32))
#define FS_CRC32C_HARDWARE 1
#define FS_CRC32C_8(crc, word) \
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word))
#define FS_CRC32C_1(crc, byte) \
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte))
#if defined(__linux__)
#include <sys/auxv.h>
#endif

static inline int fs_crc32c_has_hardware(void)
{
#if defined(__linux__)
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0; /* HWCAP_CRC32 */
#else
    return 1;
#endif
}
#endif

#if defined(FS_CRC32C_HARDWARE)
static uint32_t fs_crc32c_by_hardware(uint32_t crc, const uint8_t *at, size_t size)
{
    uint64_t wide = crc, word;

    for (; size >= 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        FS_CRC32C_8(wide, word);
    }
    for (; size > 0; at++, size--)
        FS_CRC32C_1(wide, *at);
    return (uint32_t)wide;
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
