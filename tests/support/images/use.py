"""Reading of hostile images, with checks of the written pixels."""

from __future__ import annotations

import numpy as np

from fastshard import FormatError
from fastshard.loader.images import ImageOptions, ImageReader

MAX_PIXELS = 1 << 20
GUARD = 16  # bytes around each row


class ImageUse:
    """Readers of several options, all given the same bytes."""

    def __init__(self) -> None:
        natural = ImageOptions.checked(max_pixels=MAX_PIXELS)
        self._natural = [
            natural,
            natural._replace(truncated="fill", mode="L"),
            natural._replace(decoder="pillow", flip=True, orient=False),
        ]
        self._sized = [
            ImageOptions.checked(
                (9, 7), crop="random", flip=True, max_pixels=MAX_PIXELS
            ),
            ImageOptions.checked(
                5, crop="center", mode="L", truncated="fill", max_pixels=MAX_PIXELS
            ),
        ]
        self.pictures = 0
        self.refused = 0

    def try_one(self, raw: bytes) -> None:
        """Read a file with all options: each gives a picture or a `FormatError`."""
        view = memoryview(raw)
        for options in self._natural:
            found = self._read(ImageReader(options), view, None)
            if found is not None:
                assert found.dtype == np.uint8
                assert found.size <= MAX_PIXELS * 3
        for options in self._sized:
            reader = ImageReader(options)
            assert reader.row_shape is not None
            height, width, channels = reader.row_shape
            memory = np.full((height, width * channels + 2 * GUARD), 85, np.uint8)
            row = memory[:, GUARD:-GUARD].reshape(height, width, channels)
            assert np.shares_memory(row, memory)
            self._read(reader, view, row)
            assert (memory[:, :GUARD] == 85).all()
            assert (memory[:, -GUARD:] == 85).all()

    def _read(
        self, reader: ImageReader, view: memoryview, out: np.ndarray | None
    ) -> np.ndarray | None:
        try:
            found = reader.read(view, (0, 1), out)
        except FormatError as error:
            assert 0 <= error.offset <= len(view)
            self.refused += 1
            return None
        self.pictures += 1
        return found
