"""Objects of servers that examples of docstrings begin with."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock


@contextmanager
def serve_names(doc: str) -> Iterator[dict[str, Any]]:
    """Yield the objects that an example uses; their servers run meanwhile.

    An example with a client of the AT Protocol has a server with the account
    ``alice.test``, "app-password", and the environment names it. One with `client` has
    that account's client, and a dataset of ``data.tar`` that it published.
    """
    with ExitStack() as servers:
        names = {}
        if "s3_store" in doc:
            names["s3_store"] = servers.enter_context(serve_store())
        if "Atmosphere" in doc or "(client" in doc:
            servers.enter_context(serve_network())
        if "(client" in doc:
            names |= publish_dataset()
        yield names


@contextmanager
def serve_store() -> Iterator[Any]:
    from fastshard import typed
    from support.servers.s3 import Bucket, serve_s3

    with serve_s3() as url:
        bucket = Bucket(url)
        keys = {
            "AWS_ENDPOINT": url,
            "AWS_ACCESS_KEY_ID": bucket.options["access_key"],
            "AWS_SECRET_ACCESS_KEY": bucket.options["secret_key"],
        }
        yield typed.S3DataStore(keys, bucket=bucket.name)


@contextmanager
def serve_network() -> Iterator[None]:
    from support.servers.atproto.pds import FakePds

    with FakePds() as pds:
        pds.create_account("alice.test", "app-password")
        urls = {"ATDATA_PDS_URL": pds.url, "ATDATA_PLC_URL": pds.plc.url}
        with mock.patch.dict(os.environ, urls):
            yield


def publish_dataset() -> dict[str, Any]:
    """Return a client, and the addresses of a schema and of a dataset of blobs."""
    import numpy as np
    from numpy.typing import NDArray

    from fastshard import typed

    class ImageSample(typed.PackableSample):
        image: NDArray[np.float32]
        label: str

    client = typed.Atmosphere.login("alice.test", "app-password")
    schema_uri = typed.SchemaPublisher(client).publish(ImageSample, name="Images")
    if not os.path.exists("data.tar"):
        image = np.zeros(4, "f4")
        samples = [ImageSample(image=image, label=f"label {i}") for i in range(100)]
        typed.write_samples(samples, "data.tar")
    with open("data.tar", "rb") as file:
        entry_uri = typed.DatasetPublisher(client).publish_with_blobs(
            [file.read()], schema_uri, name="images", metadata={"rate": 0.5}
        )
    return {"client": client, "schema_uri": schema_uri, "entry_uri": entry_uri}
