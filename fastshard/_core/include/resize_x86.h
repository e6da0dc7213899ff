/* The two sums of resize.h with SSE4.1 and AVX2.
 *
 * Products are those of pmaddwd: two int16 by two weights into an int32. Source rows
 * are read to their last byte: a short rest is summed again with the bytes before it.
 */
#ifndef FASTSHARD_RESIZE_X86_H
#define FASTSHARD_RESIZE_X86_H

#include <immintrin.h>

#define FS_SSE41_CODE __attribute__((target("sse4.1")))
#define FS_AVX2_CODE __attribute__((target("avx2")))

static inline int32_t fs_weight_pair(const int16_t *weights)
{
    int32_t pair;

    memcpy(&pair, weights, sizeof pair);
    return pair;
}

/* SSE4.1 */

/* Sum 16 bytes of some rows. */
FS_SSE41_CODE static inline void fs_sum_16(
    int16_t *row, const uint8_t *at, ptrdiff_t stride, const fs_taps_t *taps,
    __m128i half, __m128i shift)
{
    const __m128i zero = _mm_setzero_si128();
    __m128i a = half, b = half, c = half, d = half;
    const int count = taps->count;
    int k;

    for (k = 0; k < count; k += 2, at += 2 * stride) {
        const __m128i weights = _mm_set1_epi32(fs_weight_pair(taps->weights + k));
        const __m128i one = _mm_loadu_si128((const __m128i *)at);
        const __m128i two =
            k + 1 < count ? _mm_loadu_si128((const __m128i *)(at + stride)) : zero;
        const __m128i low = _mm_unpacklo_epi8(one, two);
        const __m128i high = _mm_unpackhi_epi8(one, two);

        a = _mm_add_epi32(a, _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), weights));
        b = _mm_add_epi32(b, _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), weights));
        c = _mm_add_epi32(c, _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), weights));
        d = _mm_add_epi32(d, _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), weights));
    }
    a = _mm_packs_epi32(_mm_sra_epi32(a, shift), _mm_sra_epi32(b, shift));
    c = _mm_packs_epi32(_mm_sra_epi32(c, shift), _mm_sra_epi32(d, shift));
    _mm_storeu_si128((__m128i *)row, a);
    _mm_storeu_si128((__m128i *)(row + 8), c);
}

FS_SSE41_CODE static void fs_sum_rows_sse41(
    int16_t *row, size_t n, const uint8_t *at, ptrdiff_t stride,
    const fs_taps_t *taps, int shift)
{
    const __m128i half = _mm_set1_epi32((int32_t)1 << (shift - 1));
    const __m128i by = _mm_cvtsi32_si128(shift);
    size_t i;

    for (i = 0; i + 16 <= n; i += 16)
        fs_sum_16(row + i, at + i, stride, taps, half, by);
    if (i < n)
        fs_sum_16(row + n - 16, at + n - 16, stride, taps, half, by);
}

/* For two pixels of a row: the order of their channels by pairs. */
FS_SSE41_CODE static inline __m128i fs_pair_order(int channels)
{
    if (channels == 3)
        return _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
    return _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
}

/* Four pixels of three channels without the gaps of a fourth. */
FS_SSE41_CODE static inline __m128i fs_packed_order(void)
{
    return _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
}

FS_SSE41_CODE static inline void fs_store_12(uint8_t *out, __m128i pixels)
{
    const int32_t last = _mm_extract_epi32(pixels, 2);

    _mm_storel_epi64((__m128i *)out, pixels);
    memcpy(out + 8, &last, sizeof last);
}

/* Pixels of 3 or 4 channels; return how many were made. */
FS_SSE41_CODE static inline int fs_sum_colours_sse41(
    uint8_t *out, const int16_t *row, const fs_columns_t *columns, int channels)
{
    const __m128i order = fs_pair_order(channels), packed = fs_packed_order();
    const __m128i half = _mm_set1_epi32((int32_t)1 << (columns->shift - 1));
    const __m128i shift = _mm_cvtsi32_si128(columns->shift);
    const int taps = columns->taps;
    const int16_t *weights = columns->weights;
    int x, k, p;

    for (x = 0; x + 4 <= columns->count; x += 4, weights += 4 * taps) {
        __m128i sums[4];

        for (p = 0; p < 4; p++) {
            const int16_t *at = row + (size_t)columns->starts[x + p] * channels;
            __m128i sum = half;

            for (k = 0; k < taps; k += 2, at += 2 * channels)
                sum = _mm_add_epi32(sum, _mm_madd_epi16(
                    _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)at), order),
                    _mm_set1_epi32(fs_weight_pair(weights + p * taps + k))));
            sums[p] = _mm_sra_epi32(sum, shift);
        }
        sums[0] = _mm_packus_epi16(_mm_packs_epi32(sums[0], sums[1]),
                                   _mm_packs_epi32(sums[2], sums[3]));
        if (channels == 4)
            _mm_storeu_si128((__m128i *)(out + 4 * x), sums[0]);
        else
            fs_store_12(out + 3 * x, _mm_shuffle_epi8(sums[0], packed));
    }
    return x;
}

/* Pixels of one channel, whose taps are a multiple of 4; return how many were made. */
FS_SSE41_CODE static int fs_sum_grays_sse41(
    uint8_t *out, const int16_t *row, const fs_columns_t *columns)
{
    const __m128i half = _mm_set1_epi32((int32_t)1 << (columns->shift - 1));
    const __m128i shift = _mm_cvtsi32_si128(columns->shift);
    const int taps = columns->taps;
    const int16_t *weights = columns->weights;
    int x, k, p;

    for (x = 0; x + 4 <= columns->count; x += 4, weights += 4 * taps) {
        __m128i sums[2];
        int32_t bytes;

        for (p = 0; p < 2; p++) {
            const int16_t *one = row + columns->starts[x + 2 * p];
            const int16_t *two = row + columns->starts[x + 2 * p + 1];
            const int16_t *by = weights + 2 * p * taps;

            sums[p] = _mm_setzero_si128();
            for (k = 0; k < taps; k += 4)
                sums[p] = _mm_add_epi32(sums[p], _mm_madd_epi16(
                    _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(one + k)),
                                       _mm_loadl_epi64((const __m128i *)(two + k))),
                    _mm_unpacklo_epi64(
                        _mm_loadl_epi64((const __m128i *)(by + k)),
                        _mm_loadl_epi64((const __m128i *)(by + taps + k)))));
        }
        sums[0] = _mm_add_epi32(_mm_hadd_epi32(sums[0], sums[1]), half);
        sums[0] = _mm_sra_epi32(sums[0], shift);
        sums[0] = _mm_packs_epi32(sums[0], sums[0]);
        bytes = _mm_cvtsi128_si32(_mm_packus_epi16(sums[0], sums[0]));
        memcpy(out + x, &bytes, sizeof bytes);
    }
    return x;
}

FS_SSE41_CODE static int fs_sum_columns_sse41(
    uint8_t *out, const int16_t *row, const fs_columns_t *columns, int channels)
{
    if (channels == 3)
        return fs_sum_colours_sse41(out, row, columns, 3);
    if (channels == 4)
        return fs_sum_colours_sse41(out, row, columns, 4);
    return fs_sum_grays_sse41(out, row, columns);
}

/* AVX2 */

/* Sum 32 bytes of some rows. */
FS_AVX2_CODE static inline void fs_sum_32(
    int16_t *row, const uint8_t *at, ptrdiff_t stride, const fs_taps_t *taps,
    __m256i half, __m128i shift)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i a = half, b = half, c = half, d = half;
    const int count = taps->count;
    int k;

    for (k = 0; k < count; k += 2, at += 2 * stride) {
        const __m256i weights = _mm256_set1_epi32(fs_weight_pair(taps->weights + k));
        const __m256i one = _mm256_loadu_si256((const __m256i *)at);
        const __m256i two =
            k + 1 < count ? _mm256_loadu_si256((const __m256i *)(at + stride)) : zero;
        const __m256i low = _mm256_unpacklo_epi8(one, two);
        const __m256i high = _mm256_unpackhi_epi8(one, two);

        a = _mm256_add_epi32(
            a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weights));
        b = _mm256_add_epi32(
            b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weights));
        c = _mm256_add_epi32(
            c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weights));
        d = _mm256_add_epi32(
            d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weights));
    }
    a = _mm256_packs_epi32(_mm256_sra_epi32(a, shift), _mm256_sra_epi32(b, shift));
    c = _mm256_packs_epi32(_mm256_sra_epi32(c, shift), _mm256_sra_epi32(d, shift));
    _mm256_storeu_si256((__m256i *)row, _mm256_permute2x128_si256(a, c, 0x20));
    _mm256_storeu_si256((__m256i *)(row + 16), _mm256_permute2x128_si256(a, c, 0x31));
}

FS_AVX2_CODE static void fs_sum_rows_avx2(
    int16_t *row, size_t n, const uint8_t *at, ptrdiff_t stride,
    const fs_taps_t *taps, int shift)
{
    const __m256i half = _mm256_set1_epi32((int32_t)1 << (shift - 1));
    const __m128i by = _mm_cvtsi32_si128(shift);
    size_t i;

    for (i = 0; i + 32 <= n; i += 32)
        fs_sum_32(row + i, at + i, stride, taps, half, by);
    if (i < n)
        fs_sum_32(row + n - 32, at + n - 32, stride, taps, half, by);
}

FS_AVX2_CODE static inline __m256i fs_load_two(const int16_t *low, const int16_t *high)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
        _mm_loadu_si128((const __m128i *)high), 1);
}

/* Pixels of 3 or 4 channels, eight at a time: pixel p and p + 4 in the two halves of a
 * vector; return how many were made. */
FS_AVX2_CODE static inline int fs_sum_colours_avx2(
    uint8_t *out, const int16_t *row, const fs_columns_t *columns, int channels)
{
    const __m256i order = _mm256_broadcastsi128_si256(fs_pair_order(channels));
    const __m256i packed = _mm256_broadcastsi128_si256(fs_packed_order());
    const __m256i half = _mm256_set1_epi32((int32_t)1 << (columns->shift - 1));
    const __m128i shift = _mm_cvtsi32_si128(columns->shift);
    const int taps = columns->taps;
    const int16_t *weights = columns->weights;
    int x, k, p;

    for (x = 0; x + 8 <= columns->count; x += 8, weights += 8 * taps) {
        __m256i sums[4];

        for (p = 0; p < 4; p++) {
            const int16_t *one = row + (size_t)columns->starts[x + p] * channels;
            const int16_t *two = row + (size_t)columns->starts[x + p + 4] * channels;
            __m256i sum = half;

            for (k = 0; k < taps; k += 2) {
                const __m256i by = _mm256_blend_epi32(
                    _mm256_set1_epi32(fs_weight_pair(weights + p * taps + k)),
                    _mm256_set1_epi32(fs_weight_pair(weights + (p + 4) * taps + k)),
                    0xf0);

                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(
                    _mm256_shuffle_epi8(
                        fs_load_two(one + k * channels, two + k * channels), order),
                    by));
            }
            sums[p] = _mm256_sra_epi32(sum, shift);
        }
        sums[0] = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]),
                                      _mm256_packs_epi32(sums[2], sums[3]));
        if (channels == 4) {
            _mm256_storeu_si256((__m256i *)(out + 4 * x), sums[0]);
            continue;
        }
        sums[0] = _mm256_shuffle_epi8(sums[0], packed);
        fs_store_12(out + 3 * x, _mm256_castsi256_si128(sums[0]));
        fs_store_12(out + 3 * x + 12, _mm256_extracti128_si256(sums[0], 1));
    }
    return x;
}

FS_AVX2_CODE static int fs_sum_columns_avx2(
    uint8_t *out, const int16_t *row, const fs_columns_t *columns, int channels)
{
    if (channels == 3)
        return fs_sum_colours_avx2(out, row, columns, 3);
    if (channels == 4)
        return fs_sum_colours_avx2(out, row, columns, 4);
    return fs_sum_grays_sse41(out, row, columns);
}

#endif
