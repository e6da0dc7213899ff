"""Records of verifications of lenses: their method and its version."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastshard.atmosphere.lexicon import LENS_VERIFICATION
from fastshard.atmosphere.records.checked import AtRecord, RecordFields
from fastshard.atmosphere.records.checksum import CodeHash
from fastshard.atmosphere.records.lens import CodeReference

__all__ = ["METHODS", "LensVerificationRecord"]

METHODS = ("codeReview", "formalProof", "signedHash", "automatedTest")


@dataclass
class LensVerificationRecord(AtRecord):
    """Record of the verification of a lens, by the owner of the repository.

    Parameters
    ----------
    lens : str
        Address of the lens's record.
    lens_commit : str
        CID of the record that was verified.
    verification_method : str
        ``"codeReview"``, ``"formalProof"``, ``"signedHash"`` or ``"automatedTest"``;
        others are kept.
    created_at : datetime, optional
        By default now.
    code_hash : CodeHash, optional
    proof_ref : CodeReference, optional
    description : str, optional
        At most 1,000 characters.
    extra : dict, optional
        Fields that this version does not know.
    """

    lens: str
    lens_commit: str
    verification_method: str
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    code_hash: CodeHash | None = None
    proof_ref: CodeReference | None = None
    description: str | None = None

    TYPE = LENS_VERIFICATION

    @classmethod
    def _read_fields(cls, fields: RecordFields) -> LensVerificationRecord:
        digest = fields.mapping_or_none("codeHash")
        proof = fields.mapping_or_none("proofRef")
        return cls(
            lens=fields.uri("lens"),
            lens_commit=fields.text("lensCommit", 128, shortest=1),
            verification_method=fields.text("verificationMethod", 50, shortest=1),
            created_at=fields.time("createdAt"),
            code_hash=None
            if digest is None
            else CodeHash._read(fields.of(digest, "codeHash")),
            proof_ref=None
            if proof is None
            else CodeReference._read(fields.of(proof, "proofRef")),
            description=fields.text_or_none("description", 1000),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "$type": LENS_VERIFICATION,
            "lens": self.lens,
            "lensCommit": self.lens_commit,
            "verificationMethod": self.verification_method,
            "createdAt": self._write_time(self.created_at),
            "codeHash": None if self.code_hash is None else self.code_hash.to_record(),
            "proofRef": None if self.proof_ref is None else self.proof_ref.to_record(),
            "description": self.description,
        }
