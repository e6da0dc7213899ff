"""JPEGs decoded, cropped and resized into rows of a batch, in one thread and in two.

pytest bench/bench_loader_decode.py
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from fastshard._core.table.checksums import crc32c
from fastshard.loader.crops import center_box
from fastshard.loader.images import ImageOptions, ImageReader
from harness import SCALE, contenders, expect, limit
from harness.pictures import HEIGHT, WIDTH, jpegs

ROWS = 64  # of a batch
COUNT = max(int(512 * SCALE), 16)  # pictures a round
NAP = 0.5e-3  # seconds
SECONDS = max(3 * SCALE, 0.1)  # of the sleeper

Decode = Callable[[memoryview, Any], None]


@pytest.fixture(scope="session")
def pictures() -> list[memoryview]:
    return [memoryview(jpeg) for jpeg in jpegs(COUNT)]


def whole_fastshard(side: int | None) -> Decode:
    reader = ImageReader(
        ImageOptions.checked(side, crop=None if side is None else "center")
    )

    def decode(view: memoryview, row: Any) -> None:
        reader.read(view, None, row)

    return decode


def whole_simplejpeg(side: int | None) -> Decode:
    def decode(view: memoryview, row: Any) -> None:
        simplejpeg.decode_jpeg(view, buffer=row)

    return decode


def whole_pillow(side: int | None) -> Decode:
    """Decode as Pillow does, at the whole size, then resize the centre."""

    def decode(view: memoryview, row: Any) -> None:
        image = Image.open(io.BytesIO(view)).convert("RGB")
        if side is not None:
            box = center_box(image.width, image.height, (side, side))
            image = image.resize((side, side), Image.Resampling.BILINEAR, box=box)
        row[...] = np.asarray(image)

    return decode


def decode_all(decode: Decode, pictures: Sequence[memoryview], batch: Any) -> None:
    for i, view in enumerate(pictures):
        decode(view, batch[i % ROWS])


@contenders(
    "decode",
    fastshard=whole_fastshard,
    simplejpeg=whole_simplejpeg,
    Pillow=whole_pillow,
)
def bench_decode_whole(
    benchmark: Any, pictures: list[memoryview], read: Any, turn: int
) -> None:
    decode = read(None)
    batch = np.zeros((ROWS, HEIGHT, WIDTH, 3), np.uint8)
    want = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    whole_pillow(None)(pictures[0], want)
    decode(pictures[0], batch[0])
    assert (batch[0] == want).all()
    benchmark.group = f"decode JPEG of {WIDTH} x {HEIGHT} into a row, one thread"
    benchmark.extra_info["operations"] = len(pictures)
    expect(benchmark, "fastshard", "Pillow", 2.2)
    expect(benchmark, "fastshard", "simplejpeg", 0.95)
    benchmark.pedantic(decode_all, (decode, pictures, batch), rounds=3)


@pytest.mark.parametrize(("side", "times"), [(224, 2.0), (112, 2.7)])
@contenders("decode centre", fastshard=whole_fastshard, Pillow=whole_pillow)
def bench_decode_centre(
    benchmark: Any,
    pictures: list[memoryview],
    side: int,
    times: float,
    read: Any,
    turn: int,
) -> None:
    decode = read(side)
    batch = np.zeros((ROWS, side, side, 3), np.uint8)
    want = np.zeros((side, side, 3), np.uint8)
    whole_pillow(side)(pictures[0], want)
    decode(pictures[0], batch[0])
    off = np.abs(batch[0].astype(int) - want)
    # 112 is made of a half, decoded by DCT.
    assert off.max() <= 1 if side == 224 else off.mean() < 4
    benchmark.group = f"decode JPEG of {WIDTH} x {HEIGHT}, centre {side}, one thread"
    benchmark.extra_info["operations"] = len(pictures)
    expect(benchmark, "fastshard", "Pillow", times)
    benchmark.pedantic(decode_all, (decode, pictures, batch), rounds=3)


def one_thread(pictures: Sequence[memoryview]) -> None:
    decode = whole_fastshard(224)
    decode_all(decode, pictures, np.zeros((ROWS, 224, 224, 3), np.uint8))


def two_threads(pictures: Sequence[memoryview]) -> None:
    halves = pictures[::2], pictures[1::2]
    threads = [threading.Thread(target=one_thread, args=(half,)) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contenders("decode in threads", two_threads=two_threads, one_thread=one_thread)
def bench_decode_threads(
    benchmark: Any, pictures: list[memoryview], read: Any, turn: int
) -> None:
    read(pictures[:4])
    benchmark.group = "decode JPEG, centre 224, threads of this process"
    benchmark.extra_info["operations"] = len(pictures)
    expect(benchmark, "two_threads", "one_thread", 1.8)
    benchmark.pedantic(read, (pictures,), rounds=3)


def decode_forever(pictures: Sequence[memoryview], stop: threading.Event) -> None:
    decode = whole_fastshard(224)
    row = np.zeros((224, 224, 3), np.uint8)
    for view in chain.from_iterable(repeat(pictures)):
        if stop.is_set():
            return
        decode(view, row)


def compute_forever(pictures: Sequence[memoryview], stop: threading.Event) -> None:
    """Occupy a core in C without the GIL."""
    data = bytes(1 << 27)
    while not stop.is_set():
        crc32c(data)


@contenders("lateness", decoding=decode_forever, C_threads=compute_forever)
def bench_lateness_of_a_sleeper(
    benchmark: Any, pictures: list[memoryview], read: Any, turn: int
) -> None:
    """Sleep 0.5 ms beside two threads; how late the thread has the GIL again."""
    stop = threading.Event()
    threads = [threading.Thread(target=read, args=(pictures, stop)) for _ in range(2)]
    late: list[float] = []

    def sleep_and_look() -> None:
        end = time.perf_counter() + SECONDS
        while (start := time.perf_counter()) < end:
            time.sleep(NAP)
            late.append(time.perf_counter() - start - NAP)

    for thread in threads:
        thread.start()
    benchmark.group = "sleeps of 0.5 ms beside two busy threads"
    try:
        benchmark.pedantic(sleep_and_look, rounds=1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    late.sort()
    p99 = late[len(late) * 99 // 100] * 1e3
    benchmark.extra_info["ms late, p99"] = round(p99, 3)
    limit(benchmark, "decoding", "ms late, p99", 1, "C_threads", plus=1)
