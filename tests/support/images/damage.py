"""Damaged images: mutations and cuts of small pictures, reproduced by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from PIL import Image

from support.images.pictures import encode, make_picture


def make_seeds() -> list[bytes]:
    """Return pictures of all kinds that hostile files are made of."""
    small = make_picture((40, 24))
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [make_picture((20, 12)), make_picture((20, 12), "L").convert("RGB")]
    found = [
        encode(small, "JPEG", exif=exif.tobytes()),
        encode(small, "JPEG", progressive=True),
        encode(small, "JPEG", subsampling=0, restart_marker_blocks=2),
        encode(small.convert("L"), "JPEG"),
        encode(small.convert("CMYK"), "JPEG"),
        encode(small, "PNG", exif=exif.tobytes()),
        encode(small.convert("P"), "PNG", transparency=b"\x00\x80"),
        encode(small.convert("RGBA"), "PNG"),
        encode(small.convert("I;16") if small.mode == "I;16" else small, "PNG"),
        encode(small, "GIF"),
        encode(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        encode(small, "WEBP"),
        encode(small, "WEBP", lossless=True, exif=exif.tobytes()),
        encode(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
    ]
    return [bytes(view) for view in found]


def iterate_damaged(first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and damaged files; a number gives the same file always."""
    seeds = make_seeds()
    for number in range(first, last):
        rng = random.Random(number)
        yield number, damage(rng.choice(seeds), seeds, rng)


def damage(raw: bytes, seeds: list[bytes], rng: random.Random) -> bytes:
    """Return a file with some bytes changed, cut, moved or joined to another."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        # Headers have more structure than pixels.
        at = at if rng.random() < 0.5 else min(at, rng.randrange(200))
        kind = rng.randrange(8)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at : at + 1] = rng.randbytes(1)
        elif kind == 2:
            data[at : at + 1] = rng.choice((b"\xff", b"\0", b"\x7f", b"\x80"))
        elif kind == 3:
            data[at : at + 2] = rng.randbytes(2)
        elif kind == 4:
            data[at : at + 4] = rng.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff" * 2))
        elif kind == 5:
            del data[at : at + rng.randrange(1, 40)]
        elif kind == 6:
            start = rng.randrange(len(data) + 1)
            data[at:at] = data[start : start + rng.randrange(1, 60)]
        else:
            data[at:] = rng.choice(seeds)[at:]
    return bytes(data)
