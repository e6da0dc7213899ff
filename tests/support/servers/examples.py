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
    ``alice.test``, "app-password", and the environment names it.
    """
    with ExitStack() as servers:
        names = {}
        if "s3_store" in doc:
            names["s3_store"] = servers.enter_context(serve_store())
        if "Atmosphere" in doc:
            servers.enter_context(serve_network())
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
