"""Publishing of lenses, and of their verifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.publishing.record import publish_record
from fastshard.atmosphere.records.checksum import CodeHash
from fastshard.atmosphere.records.lens import CodeReference, LensRecord
from fastshard.atmosphere.records.lens_verification import (
    METHODS,
    LensVerificationRecord,
)

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.typed.lenses.lens import Lens

__all__ = ["LensPublisher", "VerificationPublisher"]


class LensPublisher:
    """Publishes lenses: two schemas, and where the code is.

    Parameters
    ----------
    client : Atmosphere
        Logged in.

    Examples
    --------
    >>> from fastshard import typed
    >>> uri = typed.LensPublisher(client).publish(
    ...     name="to_label",
    ...     source_schema_uri=schema_uri,
    ...     target_schema_uri=schema_uri,
    ...     code_repository="https://git.example/lenses",
    ...     code_commit="0" * 40,
    ...     getter_path="lenses:to_label",
    ...     putter_path="lenses:with_label",
    ... )
    >>> typed.LensLoader(client).get_typed(uri).getter_code.path
    'lenses:to_label'
    """

    def __init__(self, client: Atmosphere) -> None:
        self.client = client

    def publish(
        self,
        *,
        name: str,
        source_schema_uri: str | AtUri,
        target_schema_uri: str | AtUri,
        code_repository: str,
        code_commit: str,
        getter_path: str,
        putter_path: str,
        description: str | None = None,
        language: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        source_schema_version: str | None = None,
        target_schema_version: str | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish a lens.

        Parameters
        ----------
        name : str
        source_schema_uri, target_schema_uri : str or AtUri
            Addresses of the schemas' records.
        code_repository : str
            URL of a git repository.
        code_commit : str
            Its commit.
        getter_path, putter_path : str
            Such as ``module:function``.
        description : str, optional
        language : str, optional
            That of both functions.
        metadata : dict, optional
            Without floats.
        source_schema_version, target_schema_version : str, optional
            A version, or a range.
        rkey : str, optional
            The record's key; by default the server makes one.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            The client is not logged in, or a value is too long, or no address.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> uri = typed.LensPublisher(client).publish(
        ...     name="upper",
        ...     source_schema_uri=schema_uri,
        ...     target_schema_uri=schema_uri,
        ...     code_repository="https://git.example/lenses",
        ...     code_commit="0" * 40,
        ...     getter_path="lenses:upper",
        ...     putter_path="lenses:lower",
        ...     language="python",
        ... )
        >>> typed.LensLoader(client).get(uri)["language"]
        'python'
        """
        getter, putter = (
            CodeReference(code_repository, code_commit, path, language=language)
            for path in (getter_path, putter_path)
        )
        record = LensRecord(
            name,
            str(source_schema_uri),
            str(target_schema_uri),
            getter,
            putter,
            description=description,
            language=language,
            metadata=None if metadata is None else dict(metadata),
            source_schema_version=source_schema_version,
            target_schema_version=target_schema_version,
        )
        return publish_record(self.client, record, rkey)

    def publish_from_lens(
        self,
        lens_obj: Lens[Any, Any],
        *,
        name: str,
        source_schema_uri: str | AtUri,
        target_schema_uri: str | AtUri,
        code_repository: str,
        code_commit: str,
        description: str | None = None,
        language: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        source_schema_version: str | None = None,
        target_schema_version: str | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish a lens whose functions say where their code is.

        Parameters
        ----------
        lens_obj : Lens
            Its functions are named ``module:function``.
        name, source_schema_uri, target_schema_uri, code_repository, code_commit
        description, language, metadata, source_schema_version, target_schema_version
        rkey
            As for `publish`.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            As of `publish`; or the lens has no putter.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> uri = typed.LensPublisher(client).publish_from_lens(
        ...     caption_of,
        ...     name="caption_of",
        ...     source_schema_uri=schema_uri,
        ...     target_schema_uri=schema_uri,
        ...     code_repository="https://git.example/lenses",
        ...     code_commit="0" * 40,
        ... )
        >>> typed.LensLoader(client).get(uri)["name"]
        'caption_of'
        """
        getter_path, putter_path = _paths_of(lens_obj)
        return self.publish(
            name=name,
            source_schema_uri=source_schema_uri,
            target_schema_uri=target_schema_uri,
            code_repository=code_repository,
            code_commit=code_commit,
            getter_path=getter_path,
            putter_path=putter_path,
            description=description,
            language=language,
            metadata=metadata,
            source_schema_version=source_schema_version,
            target_schema_version=target_schema_version,
            rkey=rkey,
        )


class VerificationPublisher:
    """Publishes verifications of lenses.

    Parameters
    ----------
    client : Atmosphere
        Logged in.

    Examples
    --------
    >>> from fastshard import typed
    >>> commit = "bafyreicycyuouul3k3mffkfriy3srpzkgx3rxhyxmmfnpn2nybcxoto6xq"
    >>> uri = typed.VerificationPublisher(client).publish(
    ...     lens_uri="at://did:plc:abc/science.alt.dataset.lens/3n2uxbohbgs2e",
    ...     lens_commit=commit,
    ...     verification_method="codeReview",
    ... )
    >>> typed.VerificationLoader(client).get_typed(uri).verification_method
    'codeReview'
    """

    def __init__(self, client: Atmosphere) -> None:
        self.client = client

    def publish(
        self,
        *,
        lens_uri: str | AtUri,
        lens_commit: str,
        verification_method: str,
        code_hash: CodeHash | None = None,
        proof_ref: CodeReference | None = None,
        description: str | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish the verification of a lens.

        Parameters
        ----------
        lens_uri : str or AtUri
            Address of the lens's record.
        lens_commit : str
            CID of the record that was verified.
        verification_method : str
            ``"codeReview"``, ``"formalProof"``, ``"signedHash"`` or
            ``"automatedTest"``.
        code_hash : CodeHash, optional
            Of the code; ``"signedHash"`` requires it.
        proof_ref : CodeReference, optional
        description : str, optional
        rkey : str, optional
            The record's key; by default the server makes one.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            The client is not logged in, the method is not known, or lacks its hash, or
            a value is too long, or no address.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> commit = "bafyreicycyuouul3k3mffkfriy3srpzkgx3rxhyxmmfnpn2nybcxoto6xq"
        >>> uri = typed.VerificationPublisher(client).publish(
        ...     lens_uri="at://did:plc:abc/science.alt.dataset.lens/3n2uxbohbgs2e",
        ...     lens_commit=commit,
        ...     verification_method="signedHash",
        ...     code_hash=typed.atmosphere.CodeHash("sha256", "ab" * 32),
        ... )
        >>> typed.VerificationLoader(client).get(uri)["codeHash"]["algorithm"]
        'sha256'
        """
        if verification_method not in METHODS:
            known = ", ".join(METHODS)
            raise ValueError(
                f"verification_method must be one of {known}, got "
                f"{str(verification_method)[:100]!r}"
            )
        if verification_method == "signedHash" and code_hash is None:
            raise ValueError("verification_method 'signedHash' requires code_hash")
        record = LensVerificationRecord(
            str(lens_uri),
            lens_commit,
            verification_method,
            code_hash=code_hash,
            proof_ref=proof_ref,
            description=description,
        )
        return publish_record(self.client, record, rkey)


def _paths_of(lens: Lens[Any, Any]) -> tuple[str, str]:
    """Return ``module:function`` of both functions."""
    if lens._putter is None:
        raise ValueError("a lens to publish needs a putter")
    found = []
    for function in (lens._getter, lens._putter):
        name = getattr(function, "__qualname__", "<lambda>")
        if "<" in name:  # of a lambda, or inside a function
            name = getattr(function, "__name__", name)
        if "<" in name:
            raise ValueError("a lens to publish needs functions with names")
        module = getattr(function, "__module__", None)
        found.append(f"{module}:{name}" if module else name)
    return found[0], found[1]
