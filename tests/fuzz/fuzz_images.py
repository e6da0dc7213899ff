"""Fuzzer of the reader of images: a picture or a `FormatError`, and nothing else.

Not part of the suite, except for a share of its seeds. With atheris
(``pip install atheris``), from the root::

    python tests/fuzz/fuzz_images.py [-max_total_time=3600]

Without atheris, or with ``--seeds FIRST LAST``, damaged JPEG, PNG, GIF and WebP are
read instead; a seed reproduces its file::

    python tests/fuzz/fuzz_images.py --seeds 0 100000

Memory of the process is limited, so that an allocation above `max_pixels` fails.
"""

from __future__ import annotations

import importlib.util
import resource
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.images.damage import iterate_damaged
from support.images.use import ImageUse

MEMORY = 3 << 30  # bytes of address space


def main() -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    use = ImageUse()
    if "--seeds" in sys.argv or importlib.util.find_spec("atheris") is None:
        numbers = [int(text) for text in sys.argv[2:4]] or [0, 1000]
        for number, raw in iterate_damaged(*numbers):
            try:
                use.try_one(raw)
            except BaseException:
                print(f"wrong with seed {number}")
                raise
        print(f"{use.pictures:,} pictures, {use.refused:,} errors")
        return
    import atheris

    atheris.Setup(sys.argv, use.try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
