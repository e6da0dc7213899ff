"""Objects of servers that examples of docstrings begin with."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serve_names(doc: str) -> Iterator[dict[str, Any]]:
    """Yield the objects that an example uses; their servers run meanwhile."""
    if "s3_store" not in doc:
        yield {}
        return
    from fastshard import typed
    from support.servers.s3 import Bucket, serve_s3

    with serve_s3() as url:
        bucket = Bucket(url)
        keys = {
            "AWS_ENDPOINT": url,
            "AWS_ACCESS_KEY_ID": bucket.options["access_key"],
            "AWS_SECRET_ACCESS_KEY": bucket.options["secret_key"],
        }
        yield {"s3_store": typed.S3DataStore(keys, bucket=bucket.name)}
