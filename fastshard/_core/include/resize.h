/* Resize of 8-bit pictures by a triangle filter that is widened when it shrinks.
 *
 * Weights are those of Pillow's BILINEAR. A target row is made in two steps: the source
 * rows below the filter are summed into one row of int16, 7 bits of which are fraction;
 * the pixels of that row are summed into the target's. Weights are int16 of at least
 * 14 bits that sum up to a power of two. All arithmetic is exact but for the two final
 * shifts, so every instruction set gives the same bytes.
 *
 * Scratch memory is one strip of the row and the strip's weights, below 1 MB.
 */
#ifndef FASTSHARD_RESIZE_H
#define FASTSHARD_RESIZE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FS_MAX_SCALE 256.0     /* source pixels a target pixel; direct sums above */
#define FS_MAX_TAPS 512        /* 2 * FS_MAX_SCALE */
#define FS_STRIP_SOURCE 8192   /* pixels */
#define FS_STRIP_TARGET 2048   /* pixels */
#define FS_ROW_SLACK 64        /* bytes read behind a row by vectors */
#define FS_FRACTION 7          /* bits: 255 << 7 fits int16 */
#define FS_WEIGHT_BITS 14      /* 1.0 fits int16 */
#define FS_MAX_ROW_BITS 22     /* sums of uint8 fit int32 */
#define FS_MAX_COLUMN_BITS 16  /* sums of uint8 << 7 fit int32 */
#define FS_BLOCK 512           /* bytes of source rows summed at a time */

enum { FS_PLAIN, FS_SSE41, FS_AVX2 };
enum { FS_RESIZED, FS_NO_MEMORY };

/* One axis of a resize. */
typedef struct {
    double origin;   /* source coordinate of the box */
    double scale;    /* source pixels a target pixel */
    double support;  /* half of the filter's width, source pixels, at least 1 */
    double slope;    /* 1 / support */
    int64_t size;    /* source pixels; those outside of the box count too */
    int bits;        /* weights sum up to 1 << bits */
} fs_filter_t;

/* Weights of a target pixel. */
typedef struct {
    int64_t start;  /* first source pixel */
    int count;      /* at least 1 */
    int16_t weights[FS_MAX_TAPS + 2];  /* a zero behind an odd number */
} fs_taps_t;

/* Weights of target pixels that are neighbours in a row. */
typedef struct {
    int count;         /* target pixels */
    int taps;          /* source pixels a target pixel; see fs_taps_of */
    int shift;         /* of the sums */
    int32_t *starts;   /* [count]: first source pixel, from the row's */
    int16_t *weights;  /* [count, taps]: zeros behind the last */
} fs_columns_t;

typedef struct {
    const uint8_t *base;
    ptrdiff_t stride;  /* bytes a row */
    int64_t height, width;
    int channels;
} fs_picture_t;

static int fs_filter_init(
    fs_filter_t *filter, float start, float end, int64_t source, int64_t target,
    int max_bits)
{
    int bits = FS_WEIGHT_BITS;
    double widest;

    filter->origin = start;
    filter->scale = (double)(end - start) / (double)target;
    filter->support = filter->scale < 1.0 ? 1.0 : filter->scale;
    filter->slope = 1.0 / filter->support;
    filter->size = source;
    /* No weight is above 2 / support. */
    for (widest = 4.0; widest <= filter->support && bits < max_bits; widest *= 2.0)
        bits++;
    filter->bits = bits;
    return filter->scale <= FS_MAX_SCALE;
}

static inline double fs_filter_center(const fs_filter_t *filter, int64_t target)
{
    return filter->origin + ((double)target + 0.5) * filter->scale;
}

/* Set the source pixels below the filter of a target pixel, at least one. */
static inline void fs_filter_span(
    const fs_filter_t *filter, double center, int64_t *start, int64_t *end)
{
    double low = center - filter->support + 0.5;
    double high = center + filter->support + 0.5;

    *start = low > 0.0 ? (int64_t)low : 0;
    *end = high < (double)filter->size ? (int64_t)high : filter->size;
    if (*start >= *end)
        *start = *end - 1;
}

static inline double fs_triangle(double x)
{
    x = x < 0.0 ? -x : x;
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Write the weights of a target pixel, at most FS_MAX_TAPS.
 *
 * Running sums are rounded, not the weights: the sum is exact, and so are flat areas.
 */
static void fs_filter_weights(
    const fs_filter_t *filter, int64_t target, fs_taps_t *taps)
{
    int16_t *weights = taps->weights;
    double sums[FS_MAX_TAPS + 2], center = fs_filter_center(filter, target);
    double sum = 0.0, unit;
    int64_t first, end;
    int32_t rounded, before = 0;
    int count, i, skip = 0;

    fs_filter_span(filter, center, &first, &end);
    count = (int)(end - first);
    if (count > FS_MAX_TAPS + 1)
        count = FS_MAX_TAPS + 1;
    for (i = 0; i < count; i++) {
        sum += fs_triangle(((double)(first + i) - center + 0.5) * filter->slope);
        sums[i] = sum;
    }
    unit = (double)((int32_t)1 << filter->bits) / sum;
    for (i = 0; i < count; i++) {
        rounded = (int32_t)(sums[i] * unit + 0.5);
        if (rounded == 0) {
            skip++;
            continue;
        }
        weights[i - skip] = (int16_t)(rounded - before);
        before = rounded;
    }
    count -= skip;
    while (count > 1 && weights[count - 1] == 0)
        count--;
    taps->start = first + skip;
    taps->count = count < FS_MAX_TAPS ? count : FS_MAX_TAPS;
    weights[taps->count] = 0;
}

/* Plain C */

static void fs_sum_rows_plain(
    int16_t *row, size_t n, const uint8_t *at, ptrdiff_t stride,
    const fs_taps_t *taps, int shift)
{
    const int16_t *weights = taps->weights;
    const int count = taps->count;
    const int32_t half = (int32_t)1 << (shift - 1);
    int32_t sums[FS_BLOCK];
    size_t begin, i, size;
    int k;

    for (begin = 0; begin < n; begin += size) {
        size = n - begin < FS_BLOCK ? n - begin : FS_BLOCK;
        for (i = 0; i < size; i++)
            sums[i] = half;
        for (k = 0; k + 4 <= count; k += 4) {
            const uint8_t *one = at + begin + k * stride, *two = one + stride;
            const uint8_t *three = two + stride, *four = three + stride;
            const int16_t *by = weights + k;

            for (i = 0; i < size; i++)
                sums[i] += one[i] * by[0] + two[i] * by[1] + three[i] * by[2] +
                           four[i] * by[3];
        }
        for (; k < count; k++) {
            const uint8_t *one = at + begin + k * stride;
            const int16_t by = weights[k];

            for (i = 0; i < size; i++)
                sums[i] += one[i] * by;
        }
        for (i = 0; i < size; i++)
            row[begin + i] = (int16_t)(sums[i] >> shift);
    }
}

/* `channels` and `taps` are constants where it is called, so that loops unroll. */
static inline void fs_sum_columns_by(
    uint8_t *out, const int16_t *row, const fs_columns_t *columns, int first,
    int channels, int taps)
{
    const int shift = columns->shift;
    const int16_t *weights = columns->weights + (size_t)first * taps;
    int32_t sums[4];
    int x, k, c;

    out += (size_t)first * channels;
    for (x = first; x < columns->count; x++, weights += taps, out += channels) {
        const int16_t *at = row + (size_t)columns->starts[x] * channels;

        for (c = 0; c < channels; c++)
            sums[c] = (int32_t)1 << (shift - 1);
        for (k = 0; k < taps; k++)
            for (c = 0; c < channels; c++)
                sums[c] += at[k * channels + c] * weights[k];
        for (c = 0; c < channels; c++)
            out[c] = (uint8_t)(sums[c] >> shift);
    }
}

/* Pixels from `first` on. */
static void fs_sum_columns_plain(
    uint8_t *out, const int16_t *row, const fs_columns_t *columns, int first,
    int channels)
{
    if (channels == 3 && columns->taps == 4)
        fs_sum_columns_by(out, row, columns, first, 3, 4);
    else if (channels == 3 && columns->taps == 2)
        fs_sum_columns_by(out, row, columns, first, 3, 2);
    else if (channels == 3)
        fs_sum_columns_by(out, row, columns, first, 3, columns->taps);
    else if (channels == 1)
        fs_sum_columns_by(out, row, columns, first, 1, columns->taps);
    else
        fs_sum_columns_by(out, row, columns, first, 4, columns->taps);
}

/* The instructions of this processor */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(FS_NO_SIMD)
#include "resize_x86.h"

static inline int fs_best_level(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        return FS_AVX2;
    return __builtin_cpu_supports("sse4.1") ? FS_SSE41 : FS_PLAIN;
}

static inline void fs_sum_rows(
    int level, int16_t *row, size_t n, const uint8_t *at, ptrdiff_t stride,
    const fs_taps_t *taps, int shift)
{
    if (level == FS_AVX2 && n >= 32)
        fs_sum_rows_avx2(row, n, at, stride, taps, shift);
    else if (level != FS_PLAIN && n >= 16)
        fs_sum_rows_sse41(row, n, at, stride, taps, shift);
    else
        fs_sum_rows_plain(row, n, at, stride, taps, shift);
}

static inline void fs_sum_columns(
    int level, uint8_t *out, const int16_t *row, const fs_columns_t *columns,
    int channels)
{
    int first = 0;

    if (level == FS_AVX2)
        first = fs_sum_columns_avx2(out, row, columns, channels);
    else if (level == FS_SSE41)
        first = fs_sum_columns_sse41(out, row, columns, channels);
    fs_sum_columns_plain(out, row, columns, first, channels);
}

#else

static inline int fs_best_level(void)
{
    return FS_PLAIN;
}

static inline void fs_sum_rows(
    int level, int16_t *row, size_t n, const uint8_t *at, ptrdiff_t stride,
    const fs_taps_t *taps, int shift)
{
    (void)level;
    fs_sum_rows_plain(row, n, at, stride, taps, shift);
}

static inline void fs_sum_columns(
    int level, uint8_t *out, const int16_t *row, const fs_columns_t *columns,
    int channels)
{
    (void)level;
    fs_sum_columns_plain(out, row, columns, 0, channels);
}

#endif

/* Resize */

/* Resize by sums over the source without tables: filters of any width. */
static void fs_resize_directly(
    const fs_picture_t *source, const fs_filter_t *across, const fs_filter_t *down,
    const fs_picture_t *target, uint8_t *out, int flip)
{
    const int channels = source->channels;
    int64_t x, y, i, j, left, right, top, bottom;
    int c;

    for (y = 0; y < target->height; y++, out += target->stride) {
        double middle = fs_filter_center(down, y);

        fs_filter_span(down, middle, &top, &bottom);
        for (x = 0; x < target->width; x++) {
            double center = fs_filter_center(across, x);
            double sums[4] = {0.0, 0.0, 0.0, 0.0}, total = 0.0;
            uint8_t *to = out + (flip ? target->width - 1 - x : x) * channels;

            fs_filter_span(across, center, &left, &right);
            for (j = top; j < bottom; j++) {
                const uint8_t *at = source->base + j * source->stride + left * channels;
                double weight =
                    fs_triangle(((double)j - middle + 0.5) * down->slope);

                if (weight == 0.0)
                    continue;
                for (i = left; i < right; i++, at += channels) {
                    double part = weight *
                        fs_triangle(((double)i - center + 0.5) * across->slope);

                    total += part;
                    for (c = 0; c < channels; c++)
                        sums[c] += part * at[c];
                }
            }
            for (c = 0; c < channels; c++)
                to[c] = (uint8_t)(sums[c] / total + 0.5);
        }
    }
}

/* Write the weights of target pixels from `first` on; return the first source pixel
 * and set *width to the number of source pixels. */
static int64_t fs_columns_fill(
    fs_columns_t *columns, const fs_filter_t *filter, int64_t first, int flip,
    int64_t *width)
{
    int64_t end, low, high = 0;
    fs_taps_t taps;
    int16_t *weights;
    int x, place;

    fs_filter_span(filter, fs_filter_center(filter, first), &low, &end);
    for (x = 0; x < columns->count; x++) {
        place = flip ? columns->count - 1 - x : x;
        fs_filter_weights(filter, first + x, &taps);
        if (taps.count > columns->taps)
            taps.count = columns->taps;
        if (taps.start + taps.count > high)
            high = taps.start + taps.count;
        weights = columns->weights + (size_t)place * columns->taps;
        memcpy(weights, taps.weights, taps.count * sizeof *weights);
        memset(weights + taps.count, 0,
               (columns->taps - taps.count) * sizeof *weights);
        columns->starts[place] = (int32_t)(taps.start - low);
    }
    *width = high - low;
    return low;
}

static inline size_t fs_rounded_up(size_t size)
{
    return (size + 63) & ~(size_t)63;
}

/* An upper bound of the taps of a target pixel, rounded up as vectors need it. */
static inline int fs_taps_of(const fs_filter_t *filter, int channels)
{
    const int several = channels == 1 ? 4 : 2;

    return ((int)ceil(2.0 * filter->support) + several - 1) / several * several;
}

/* Resize in strips of target columns. */
static int fs_resize_strips(
    const fs_picture_t *source, const fs_filter_t *across, const fs_filter_t *down,
    const fs_picture_t *target, uint8_t *out, int flip, int level)
{
    const int channels = source->channels;
    const int taps = fs_taps_of(across, channels);
    double widest = (FS_STRIP_SOURCE - 2.0 * across->support - 2.0) / across->scale;
    int strip = widest < FS_STRIP_TARGET ? (int)widest : FS_STRIP_TARGET;
    size_t row_size, starts_size, weights_size;
    int64_t x, y, low, width, place;
    fs_columns_t columns;
    fs_taps_t above;
    uint8_t *memory;
    int16_t *row;

    if (strip > target->width)
        strip = (int)target->width;
    width = (int64_t)(strip * across->scale + 2.0 * across->support) + 2;
    row_size = fs_rounded_up((size_t)(width + taps) * channels * sizeof *row);
    row_size += FS_ROW_SLACK;
    starts_size = fs_rounded_up(strip * sizeof *columns.starts);
    weights_size = (size_t)strip * taps * sizeof *columns.weights;
    memory = calloc(1, row_size + starts_size + weights_size + FS_ROW_SLACK);
    if (memory == NULL)
        return FS_NO_MEMORY;
    row = (int16_t *)memory;
    columns.starts = (int32_t *)(memory + row_size);
    columns.weights = (int16_t *)(memory + row_size + starts_size);
    columns.taps = taps;
    columns.shift = across->bits + FS_FRACTION;
    for (x = 0; x < target->width; x += columns.count) {
        columns.count = (int)(target->width - x < strip ? target->width - x : strip);
        low = fs_columns_fill(&columns, across, x, flip, &width);
        place = (flip ? target->width - x - columns.count : x) * channels;
        for (y = 0; y < target->height; y++) {
            fs_filter_weights(down, y, &above);
            fs_sum_rows(
                level, row, (size_t)(width * channels),
                source->base + above.start * source->stride + low * channels,
                source->stride, &above, down->bits - FS_FRACTION);
            fs_sum_columns(
                level, out + y * target->stride + place, row, &columns, channels);
        }
    }
    free(memory);
    return FS_RESIZED;
}

/* Resize a box of a picture, `x0, y0, x1, y1`, into another; `out` is its memory.
 *
 * The box lies in the source, and is not empty. Pictures have 1, 3 or 4 channels.
 */
static int fs_resize(
    const fs_picture_t *source, const float box[4], const fs_picture_t *target,
    uint8_t *out, int flip, int level)
{
    fs_filter_t across, down;
    const uint8_t *at;
    int64_t y;
    int near;

    if (!flip && box[0] == floorf(box[0]) && box[1] == floorf(box[1]) &&
        (double)box[2] <= (double)source->width && /* float32 above 1 << 24 */
        (double)box[3] <= (double)source->height &&
        (double)box[2] - box[0] == (double)target->width &&
        (double)box[3] - box[1] == (double)target->height) {
        at = source->base + (int64_t)box[1] * source->stride +
             (int64_t)box[0] * source->channels;
        for (y = 0; y < target->height; y++)
            memcpy(out + y * target->stride, at + y * source->stride,
                   (size_t)target->width * source->channels);
        return FS_RESIZED;
    }
    near = fs_filter_init(
        &across, box[0], box[2], source->width, target->width, FS_MAX_COLUMN_BITS);
    near &= fs_filter_init(
        &down, box[1], box[3], source->height, target->height, FS_MAX_ROW_BITS);
    if (near)
        return fs_resize_strips(source, &across, &down, target, out, flip, level);
    fs_resize_directly(source, &across, &down, target, out, flip);
    return FS_RESIZED;
}

/* Copy pixels by steps of bytes a row and a pixel of the source, in tiles. */
static void fs_copy_pixels(
    const uint8_t *at, ptrdiff_t down, ptrdiff_t across, const fs_picture_t *target,
    uint8_t *out)
{
    const int channels = target->channels;
    int64_t top, left, x, y, bottom, right;
    int c;

    for (top = 0; top < target->height; top += 32) {
        bottom = target->height - top < 32 ? target->height : top + 32;
        for (left = 0; left < target->width; left += 32) {
            right = target->width - left < 32 ? target->width : left + 32;
            for (y = top; y < bottom; y++) {
                const uint8_t *from = at + y * down + left * across;
                uint8_t *to = out + y * target->stride + left * channels;

                for (x = left; x < right; x++, from += across, to += channels)
                    for (c = 0; c < channels; c++)
                        to[c] = from[c];
            }
        }
    }
}

/* Copy a picture turned as an EXIF orientation of 1 to 8 says, then mirrored. */
static void fs_orient(
    const fs_picture_t *source, const fs_picture_t *target, uint8_t *out,
    int orientation, int flip)
{
    const int swapped = orientation > 4;
    /* From the last column of the source, from its last row. */
    int from_right = orientation == 2 || orientation == 3 || orientation == 7 ||
                     orientation == 8;
    int from_bottom = orientation == 3 || orientation == 4 || orientation == 6 ||
                      orientation == 7;
    ptrdiff_t across = source->channels, down = source->stride;
    const uint8_t *at = source->base;

    if (flip && swapped)
        from_bottom = !from_bottom;
    else if (flip)
        from_right = !from_right;
    if (from_right) {
        at += (source->width - 1) * across;
        across = -across;
    }
    if (from_bottom) {
        at += (source->height - 1) * down;
        down = -down;
    }
    if (swapped)
        fs_copy_pixels(at, across, down, target, out);
    else
        fs_copy_pixels(at, down, across, target, out);
}

/* Copy an RGB picture as luma (ITU-R BT.601), rounded as Pillow does. */
static void fs_gray(
    const fs_picture_t *source, const fs_picture_t *target, uint8_t *out)
{
    int64_t x, y;

    for (y = 0; y < target->height; y++) {
        const uint8_t *at = source->base + y * source->stride;
        uint8_t *to = out + y * target->stride;

        for (x = 0; x < target->width; x++, at += 3)
            to[x] = (uint8_t)(
                (at[0] * 19595u + at[1] * 38470u + at[2] * 7471u + 0x8000u) >> 16);
    }
}

#endif
