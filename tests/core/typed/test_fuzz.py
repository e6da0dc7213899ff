"""Seeded damage of payloads: a part of `tests/fuzz/fuzz_typed.py`."""

import importlib.util
from pathlib import Path

import pytest

from support.marks import LONG

pytest.importorskip("msgspec")


def test_damaged_payloads_are_refused_or_read_as_msgspec_reads_them(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # a difference is written there
    path = Path(__file__).parents[2] / "fuzz" / "fuzz_typed.py"
    spec = importlib.util.spec_from_file_location("fuzz_typed", path)
    fuzzer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzer)

    fuzzer.main(0, 200_000 if LONG else 4_000)
