"""Reasons of skipped tests: a run with FASTSHARD_STRICT_SKIPS=1 refuses others."""

import pytest

from support import marks


@pytest.mark.parametrize(
    ("library", "reason", "allowed"),
    [
        ("no_such_library", "could not import 'no_such_library.part': No module", True),
        ("no_such_library", "no_such_library is not installed", True),
        ("pytest", "pytest is not installed", False),  # it is
        ("torch", "no_such_library is not installed", False),
        ("torch", "torch has no wheel for this Python", False),
        ("torch", "no reason", False),
    ],
)
def test_a_skip_names_a_missing_listed_library(monkeypatch, library, reason, allowed):
    monkeypatch.setattr(marks, "LIBRARIES", library)
    assert marks.is_allowed(f"('test_x.py', 9, 'Skipped: {reason}')") is allowed


def test_a_bare_folder_does_not_count_as_an_installed_library(tmp_path, monkeypatch):
    (tmp_path / "named_like_a_library").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(marks, "LIBRARIES", "named_like_a_library")
    assert marks.is_allowed("Skipped: named_like_a_library is not installed")
