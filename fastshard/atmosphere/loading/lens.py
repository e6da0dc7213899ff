"""Loading of lenses and their verifications; code is neither fetched nor run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastshard.atmosphere.lexicon import LENS, LENS_VERIFICATION
from fastshard.atmosphere.loading.listing import list_collection
from fastshard.atmosphere.loading.record import RecordLoader
from fastshard.atmosphere.records.lens import LensRecord
from fastshard.atmosphere.records.lens_verification import LensVerificationRecord

if TYPE_CHECKING:
    from fastshard.atmosphere.stored_record import StoredRecord

__all__ = ["LensLoader", "VerificationLoader"]


class LensLoader(RecordLoader[LensRecord]):
    """Loads lenses.

    Parameters
    ----------
    client : Atmosphere
        Logged in or not.

    Examples
    --------
    >>> from fastshard import typed
    >>> typed.LensLoader(client).list_all()
    []
    """

    RECORD = LensRecord

    def find_by_schemas(
        self,
        source_schema_uri: str,
        target_schema_uri: str | None = None,
        repo: str | None = None,
    ) -> list[StoredRecord]:
        """Return the lenses from a schema, optionally to another one.

        Parameters
        ----------
        source_schema_uri : str
        target_schema_uri : str, optional
        repo : str, optional
            DID or handle of the owner; by default the account of the session.

        Raises
        ------
        SessionError
            There is no `repo`, and no session.
        RemoteError
            A server cannot be asked, or its pages do not end.

        Examples
        --------
        >>> uri = "at://did:plc:abc/science.alt.dataset.schema/3n2uxbnbzzs2e"
        >>> typed.LensLoader(client).find_by_schemas(uri)
        []
        """
        return [
            record
            for record in list_collection(self.client, LENS, repo)
            if record.get("sourceSchema") == str(source_schema_uri)
            and target_schema_uri in (None, record.get("targetSchema"))
        ]


class VerificationLoader(RecordLoader[LensVerificationRecord]):
    """Loads verifications of lenses.

    Parameters
    ----------
    client : Atmosphere
        Logged in or not.

    Examples
    --------
    >>> from fastshard import typed
    >>> typed.VerificationLoader(client).find_by_method("codeReview")
    []
    """

    RECORD = LensVerificationRecord

    def list_for_lens(
        self, lens_uri: str, repo: str | None = None, limit: int | None = None
    ) -> list[StoredRecord]:
        """Return the verifications of a lens.

        Parameters
        ----------
        lens_uri : str
        repo : str, optional
            DID or handle of who verified it; by default the account of the session.
        limit : int, optional
            By default all.

        Raises
        ------
        SessionError
            There is no `repo`, and no session.
        RemoteError
            A server cannot be asked, or its pages do not end.

        Examples
        --------
        >>> uri = "at://did:plc:abc/science.alt.dataset.lens/3n2uxbohbgs2e"
        >>> typed.VerificationLoader(client).list_for_lens(uri)
        []
        """
        return self._select("lens", str(lens_uri), repo, limit)

    def find_by_method(
        self, method: str, repo: str | None = None, limit: int | None = None
    ) -> list[StoredRecord]:
        """Return the verifications by a method.

        Parameters
        ----------
        method : str
            Such as ``"codeReview"``.
        repo : str, optional
            DID or handle of who verified; by default the account of the session.
        limit : int, optional
            By default all.

        Raises
        ------
        SessionError
            There is no `repo`, and no session.
        RemoteError
            A server cannot be asked, or its pages do not end.

        Examples
        --------
        >>> typed.VerificationLoader(client).find_by_method("formalProof")
        []
        """
        return self._select("verificationMethod", method, repo, limit)

    def _select(
        self, field: str, value: str, repo: str | None, limit: int | None
    ) -> list[StoredRecord]:
        found = [
            record
            for record in list_collection(self.client, LENS_VERIFICATION, repo)
            if record.get(field) == value
        ]
        return found if limit is None else found[:limit]
