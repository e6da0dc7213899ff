"""A dataset of blobs on a server in this process."""

from pathlib import Path

import pytest

from fastshard import typed
from support.servers.atproto.pds import FakePds
from support.typed.blobs import SAMPLES, Caption, Stored, store_blob


@pytest.fixture
def captions() -> list[Caption]:
    return [Caption(text=f"text {i}", number=i) for i in range(SAMPLES)]


@pytest.fixture
def stored(fake_pds: FakePds, tmp_path: Path, captions: list[Caption]) -> Stored:
    """Return a dataset of three blobs of ``alice.test``."""
    paths = typed.write_samples(captions, tmp_path / "x.tar", maxcount=4).list_shards()
    (account,) = fake_pds.accounts.values()
    refs = [store_blob(account, Path(path).read_bytes()) for path in paths]
    return Stored(fake_pds, account, refs, paths, tmp_path / "cache")
