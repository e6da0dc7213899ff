"""Photographs as JPEG, made from pictures that scikit-image ships.

Each is another crop of one of them, so that sizes and edges are those of photographs.
"""

from __future__ import annotations

import io
import random
import tarfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness import SCALE

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = max(int(2_000 * SCALE), 16)
WIDTH, HEIGHT = 500, 375
QUALITY = 85
NAMES = "astronaut chelsea coffee hubble_deep_field motorcycle_left motorcycle_right"
NAMES += " rocket"


@cache
def photographs() -> list[Image]:
    """Return the pictures in RGB; none is downloaded."""
    import skimage.data
    from PIL import Image

    folder = Path(skimage.data.__file__).parent
    found = sorted(p for p in folder.iterdir() if p.stem in NAMES.split())
    assert found, f"no pictures in {folder}"
    return [Image.open(path).convert("RGB") for path in found]


@cache
def jpegs(
    count: int = PICTURES, width: int = WIDTH, height: int = HEIGHT
) -> tuple[bytes, ...]:
    """Return JPEGs of a size, of quality 85 and the usual 4:2:0."""
    numbers = random.Random(0)
    return tuple(_encode(_crop(numbers, width, height)) for _ in range(count))


def _crop(numbers: random.Random, width: int, height: int) -> Image:
    """Return a random crop of the target's shape, at least half of a photograph."""
    from PIL import Image

    photo = numbers.choice(photographs())
    largest = min(photo.width / width, photo.height / height)
    scale = largest * numbers.uniform(0.5, 1.0)
    left = numbers.uniform(0, photo.width - scale * width)
    top = numbers.uniform(0, photo.height - scale * height)
    box = left, top, left + scale * width, top + scale * height
    crop = photo.resize((width, height), Image.Resampling.BICUBIC, box=box)
    if numbers.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return crop


def _encode(picture: Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def write_tar(path: Path, pictures: tuple[bytes, ...]) -> None:
    """Write samples of two members: ``jpg``, and a class as digits in ``cls``."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i, picture in enumerate(pictures):
            for suffix, data in (("jpg", picture), ("cls", b"%d" % (i % 1000))):
                member = tarfile.TarInfo(f"{i:06d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
