"""Stand-in for ``tests.common`` of mosaicml-streaming: datasets that its tests write.

Its names, arguments and values are those that the tests call for.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

import streaming

BELOW_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen seventeen eighteen nineteen"
)
FROM_TWENTY = "twenty thirty forty fifty sixty seventy eighty ninety"
UNITS, TENS = BELOW_TWENTY.split(), FROM_TWENTY.split()
SCALES = ((1_000_000, "million"), (1_000, "thousand"), (100, "hundred"))


class SequenceDataset:
    """Samples of six digits and three times their number."""

    column_encodings = ("str", "int")
    column_sizes = (None, 8)

    def __init__(self, size=100, column_names=("id", "sample"), offset=0):
        self.size = size
        self.column_names = list(column_names)
        self.column_encodings = list(self.column_encodings)
        self.column_sizes = list(self.column_sizes)
        self.offset = offset
        self._next = 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError(index)
        values = f"{index:06}", 3 * index + self.offset
        return dict(zip(self.column_names, values, strict=True))

    def __iter__(self):
        return self

    def __next__(self):
        if self._next >= self.size:
            raise StopIteration
        self._next += 1
        return self[self._next - 1]

    def get_sample_in_bytes(self, index):
        digits, number = self[index].values()
        values = digits.encode(), np.int64(number).tobytes()
        return dict(zip(self.column_names, values, strict=True))


class NumberAndSayDataset:
    """Random numbers and their words; setting `seed` begins them again."""

    def __init__(self, size=100, column_names=("number", "words"), seed=987):
        self.size = size
        self.column_names = list(column_names)
        self.column_encodings = ["int", "str"]
        self.column_sizes = [8, None]
        self.seed = seed
        self._next = 0

    @property
    def seed(self):
        return self._seed

    @seed.setter
    def seed(self, value):
        self._seed = value
        self._numbers = np.random.default_rng(value)

    def __len__(self):
        return self.size

    def __iter__(self):
        return self

    def __next__(self):
        if self._next >= self.size:
            raise StopIteration
        self._next += 1
        number = int(self._numbers.integers(-(10**8), 10**8))
        return dict(zip(self.column_names, (number, say(number)), strict=True))


def say(number):
    """Return the words of a number below a thousand millions."""
    if number < 0:
        return f"negative {say(-number)}"
    if number < 20:
        return UNITS[number]
    if number < 100:
        tens = TENS[number // 10 - 2]
        return f"{tens} {UNITS[number % 10]}" if number % 10 else tens
    for scale, word in SCALES:
        if number >= scale:
            words = f"{say(number // scale)} {word}"
            return f"{words} {say(number % scale)}" if number % scale else words
    raise AssertionError(number)


DATASETS = {
    "sequencedataset": SequenceDataset,
    "numberandsaydataset": NumberAndSayDataset,
}


def convert_to_mds(
    *, out_root, dataset_name, num_samples=117, offset=0, size_limit=1 << 8, **options
):
    """Write a dataset of `DATASETS`."""
    arguments = {"offset": offset} if offset else {}
    dataset = DATASETS[dataset_name.lower()](num_samples, **arguments)
    columns = dict(zip(dataset.column_names, dataset.column_encodings, strict=True))
    write_mds_dataset(out_root, columns, dataset, size_limit, **options)


def write_mds_dataset(out_root, columns, samples, size_limit, **options):
    """Write samples as MDS."""
    with streaming.MDSWriter(
        out=out_root, columns=columns, size_limit=size_limit, **options
    ) as writer:
        for sample in samples:
            writer.write(sample)


def get_config_in_bytes(
    format,  # noqa: A002
    size_limit,
    column_names,
    column_encodings,
    column_sizes,
    compression=None,
    hashes=None,
):
    """Return the configuration that an MDS shard holds."""
    config = {
        "version": 2,
        "format": format,
        "compression": compression,
        "hashes": hashes or [],
        "size_limit": size_limit,
        "column_names": column_names,
        "column_encodings": column_encodings,
        "column_sizes": column_sizes,
    }
    return json.dumps(config, sort_keys=True).encode()


def copy_all_files(source, destination):
    """Copy the files of a folder, not its folders."""
    Path(destination).mkdir(exist_ok=True)
    for path in Path(source).iterdir():
        if path.is_file():
            shutil.copy2(path, destination)
