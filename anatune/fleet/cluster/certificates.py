"""The certificates of a cluster: a folder of which every machine of the cluster has a copy.

``ca.pem`` is the authority that all machines trust. ``cert.pem`` and ``key.pem`` are what scheduler, workers and
clients present. They are the same for all, because Dask lets everybody run any program who presents a certificate of
the authority, whatever its content (`distributed.Security` does not check host names). docs/howto/fleets.md has the
commands that make a set and delete the authority's own key, so that nobody can issue another certificate.
"""

from __future__ import annotations

import datetime
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anatune.arguments import check_path
from anatune.errors import SecurityError
from anatune.files import read_file, reason
from anatune.named import import_optional

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITY, CERTIFICATE, KEY = CERTIFICATE_FILES = ("ca.pem", "cert.pem", "key.pem")
MOST_DAYS = 3650
_SOON = datetime.timedelta(days=14)
_MAKE = "docs/howto/fleets.md has the commands that make a set"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Certificates:
    """A valid set of certificates.

    Attributes
    ----------
    folder : Path
        The folder with ca.pem, cert.pem and key.pem.
    expires : datetime.datetime
        The time (UTC) at which the first of the two certificates expires.
    """

    folder: Path
    expires: datetime.datetime

    @property
    def authority(self) -> Path:
        """The authority's certificate."""
        return self.folder / AUTHORITY

    @property
    def certificate(self) -> Path:
        """The certificate that is presented to others."""
        return self.folder / CERTIFICATE

    @property
    def key(self) -> Path:
        """The private key."""
        return self.folder / KEY


def read_certificates(folder: str | os.PathLike[str], *, now: datetime.datetime | None = None) -> Certificates:
    """Return the set of certificates in a folder if it is valid now.

    A warning is logged if other users of this machine can read the key, or if the set expires within two weeks.

    Raises
    ------
    SecurityError
        A file is missing or damaged, the three files do not belong together, or the set has expired.
    MissingDependencyError
        The package cryptography is not installed.
    """
    base = check_path("tls", folder, SecurityError)
    import_optional("cryptography", "cluster", "reading certificates")
    if not base.is_dir():
        raise SecurityError(f"{base}: no such folder, expected a folder with {', '.join(CERTIFICATE_FILES)}; {_MAKE}")
    missing = [name for name in CERTIFICATE_FILES if not (base / name).exists()]
    if missing:
        raise SecurityError(
            f"{base} has no {' and no '.join(missing)}, expected {', '.join(CERTIFICATE_FILES)}; copy the whole "
            f"folder from the machine where the set was made ({_MAKE})"
        )
    authority, certificate = _certificate(base / AUTHORITY), _certificate(base / CERTIFICATE)
    _check_key(base / KEY, certificate[0], base / CERTIFICATE)
    if len(certificate) == 1 and not any(_is_issued_by(certificate[0], issuer) for issuer in authority):
        raise SecurityError(
            f"{base / CERTIFICATE} was not issued by the authority of {AUTHORITY}: files of two sets are mixed; "
            "copy the whole folder from the machine where the set was made"
        )
    moment = now or datetime.datetime.now(datetime.timezone.utc)
    expires = moment + datetime.timedelta(days=MOST_DAYS * 100)
    for path, first in ((base / AUTHORITY, authority[0]), (base / CERTIFICATE, certificate[0])):
        begin, end = first.not_valid_before_utc, first.not_valid_after_utc
        if moment < begin:
            raise SecurityError(f"{path} is valid from {_date(begin)} on, here it is {_date(moment)}; set the clock")
        if moment > end:
            raise SecurityError(
                f"{path} expired on {_date(end)}; make a new set (docs/howto/fleets.md), copy it to all machines, and "
                "restart the scheduler and the workers with it"
            )
        expires = min(expires, end)
    if expires - moment < _SOON:
        _LOG.warning("%s: these certificates expire on %s; %s", base, _date(expires), _MAKE)
    return Certificates(base, expires)


def _date(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _certificate(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a file: the machine's own first, then those that issued it."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(_content(path))
    except ValueError:
        raise SecurityError(f"{path} is not a certificate in PEM format; copy the whole folder again") from None


def _check_key(path: Path, certificate: x509.Certificate, of: Path) -> None:
    """Raise SecurityError unless the file has the private key of a certificate."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(_content(path), password=None)
    except TypeError:
        raise SecurityError(f"{path}: the key has a password, expected a key without password") from None
    except ValueError:
        raise SecurityError(f"{path} is not a private key in PEM format; copy the whole folder again") from None
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise SecurityError(f"{path} is not the key of {of.name}: two sets are mixed; copy the whole folder")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        _LOG.warning("%s can be read by other users of this machine, who could run programs on the whole cluster; "
                     "chmod 600 %s", path, path)  # fmt: skip


def _content(path: Path) -> bytes:
    try:
        return read_file(path, 1 << 20)
    except OSError as error:
        raise SecurityError(f"{path}: {reason(error)}") from None


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether an authority issued a certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True
