"""A directory of DIDs: the documents of accounts, as plc.directory answers them."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from typing import Any

from support.servers.atproto.xrpc import Call, Reply, XrpcServer

__all__ = ["FakePlc", "make_did", "make_document"]


def make_did(seed: str) -> str:
    """Return a DID as the directory makes them: 24 characters of a hash."""
    digest = hashlib.sha256(seed.encode()).digest()
    return "did:plc:" + b32encode(digest).decode().lower()[:24]


def make_document(did: str, handle: str, endpoint: str) -> dict[str, Any]:
    """Return the document of an account, with the fields that a PDS registers."""
    return {
        "@context": ["https://www.w3.org/ns/did/v1"],
        "id": did,
        "alsoKnownAs": [f"at://{handle}"],
        "verificationMethod": [
            {
                "id": "#atproto",
                "type": "EcdsaSecp256k1VerificationKey2019",
                "controller": did,
                "publicKeyMultibase": "zSApy5dytA2bFdyUjpSA2TPskCLFSGVt7Z6cnPkHYVjsrBW",
            }
        ],
        "service": [
            {
                "id": "#atproto_pds",
                "type": "AtprotoPersonalDataServer",
                "serviceEndpoint": endpoint,
            }
        ],
    }


class FakePlc(XrpcServer):
    """Directory of DIDs; a test may change `documents`, by DID."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: dict[str, Any] = {}

    def respond(self, call: Call) -> Reply:
        did = call.path.removeprefix("/")
        document = self.documents.get(did)
        if document is None:
            return Reply({"message": f"DID not registered: {did}"}, 404)
        return Reply(document)
