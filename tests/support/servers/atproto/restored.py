"""The repositories that atdata wrote, on a server of this process."""

from __future__ import annotations

from support.servers.atproto.pds import Account, FakePds
from support.typed.index_data import COLLECTIONS, IndexData

__all__ = ["restore"]


def restore(pds: FakePds, data: IndexData, handle: str) -> Account:
    """Put an account of ``tests/data/typed_index.tar.xz`` on a server.

    It has its DID, its keys and its blobs; its password is "password". The document in
    the directory names the server.
    """
    document = data.did_document(handle)
    account = Account(document["id"], handle, "password")
    document["service"][0]["serviceEndpoint"] = pds.url
    pds.plc.documents[account.did] = document
    pds.accounts[account.did] = account
    for name in COLLECTIONS:
        for record in data.records(handle, name):
            collection, key = record["uri"].split("/")[3:]
            kept = account.records.setdefault(collection, {})
            kept[key] = record["cid"], record["value"]
    for cid in account.referred():
        account.blobs[cid] = data.blob(cid), "application/x-tar"
    return account
