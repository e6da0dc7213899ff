"""Fuzzer of the parser of JSON indexes, compared with the oracle of its tests.

Not part of the suite. With atheris (``pip install atheris``), from the root::

    python tests/fuzz/fuzz_json.py [FOLDER OF EXAMPLES] [-max_total_time=3600]

Without atheris, or with ``--seeds FIRST LAST``, generated and damaged indexes are
parsed instead; a seed reproduces its indexes::

    python tests/fuzz/fuzz_json.py --seeds 0 100000

A build with sanitizers (see ``tests/sanitize.sh``) finds more. It stops at
the first difference and writes that text to ``wrong.json``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fastshard import FormatError
from fastshard._core.parse.json import parse_index
from fastshard.index.jsonfile import parse_info
from support.index.json_oracle import Maker, parse_by_oracle

SIZES = (None, 1 << 22)  # of the shard, bytes


def answer_of_parser(text: bytes, nbytes: int | None) -> object:
    """Return the parser's answer in the form of the oracle's."""
    try:
        table, filesize = parse_index(text, "fuzz.json", nbytes)
    except FormatError as error:
        assert 0 <= error.offset <= len(text)
        return None
    members = [
        (table.name_of(i), *table.extent(i), parse_info(table.info(i)))
        for i in range(len(table))
    ]
    return members, filesize


def has_long_number(text: bytes) -> bool:
    """Return whether `parse_info` may meet an integer too long for Python."""
    digits = 0
    for byte in text:
        digits = digits + 1 if 0x30 <= byte <= 0x39 else 0
        if digits > 4000:
            return True
    return False


def try_one(text: bytes) -> None:
    if has_long_number(text):
        return
    for nbytes in SIZES:
        if answer_of_parser(text, nbytes) != parse_by_oracle(text, nbytes):
            Path("wrong.json").write_bytes(text)
            raise AssertionError(f"wrong with {nbytes=}: {text!r}")


def try_seeds(first: int, last: int) -> None:
    for seed in range(first, last):
        maker = Maker(seed)
        for _ in range(20):
            text = maker.index()
            try_one(text)
            try_one(maker.damaged(text))
    print(f"seeds {first:,} to {last:,}: no wrong answer")


def main() -> None:
    if sys.argv[1:2] == ["--seeds"]:
        try_seeds(int(sys.argv[2]), int(sys.argv[3]))
    elif importlib.util.find_spec("atheris") is None:
        try_seeds(0, 1000)
    else:
        import atheris

        atheris.instrument_all()  # coverage comes from the oracle
        atheris.Setup(sys.argv, try_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
