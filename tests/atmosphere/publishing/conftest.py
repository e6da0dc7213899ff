"""A client with a session at a server of this process, and samples."""

import copy

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed


@typed.packable
class Digit:
    """A picture of a digit."""

    image: NDArray[np.uint8]
    label: int
    note: str | None = None


@pytest.fixture
def client(fake_pds):
    client = typed.Atmosphere.login(
        "alice.test", "password", base_url=fake_pds.url, plc_url=fake_pds.plc.url
    )
    fake_pds.forget()
    return client


@pytest.fixture
def index(client):
    return typed.AtmosphereIndex(client)


@pytest.fixture
def records(fake_pds):
    """Return a function: the values of a collection's records, the latest first."""

    def values(collection):
        (account,) = fake_pds.accounts.values()
        kept = account.records.get(f"science.alt.dataset.{collection}", {})
        return [copy.deepcopy(kept[key][1]) for key in sorted(kept, reverse=True)]

    return values


@pytest.fixture
def digits():
    return [Digit(image=np.full((4, 4), i, "u1"), label=i) for i in range(10)]


@pytest.fixture
def digit_type():
    return Digit
