"""Fixture of tars made of raw blocks."""

from __future__ import annotations

import pytest

import fastshard


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a tar of blocks."""

    def open_blocks(*blocks, **options):
        path = tmp_path / "hand.tar"
        path.write_bytes(b"".join(blocks))
        return fastshard.open_shard(path, **options)

    return open_blocks
