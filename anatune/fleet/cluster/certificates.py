"""Certificates of a lab: one folder that every machine of a cluster has a copy of.

``ca.pem`` is the authority that all trust, ``cert.pem`` and ``key.pem`` are what each of them shows: scheduler, workers
and clients alike, because Dask lets everybody run any program who shows a certificate of the authority, whatever is
written in it (`distributed.Security` switches the check of host names off). The authority's own key is thrown away:
nobody can issue a further certificate, and a new set is made where one is lost or expires.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anatune.arguments import checked_integer, checked_path, shown
from anatune.errors import SecurityError
from anatune.files import make_folder, read_file, reason
from anatune.named import import_optional

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["CERTIFICATE", "CERTIFICATE_FILES", "KEY", "Certificates", "make_certificates", "read_certificates"]

AUTHORITY, CERTIFICATE, KEY = CERTIFICATE_FILES = ("ca.pem", "cert.pem", "key.pem")
MOST_DAYS = 3650
_SOON = datetime.timedelta(days=14)
_HERE = ("localhost", "127.0.0.1", "::1")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*\.?")
_MAKE = "`anatune cluster certificates DIR` makes a set"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Certificates:
    """A set of certificates that can be used.

    Attributes
    ----------
    folder : Path
        Holds ca.pem, cert.pem and key.pem.
    hosts : tuple of str
        Names and addresses in the certificate.
    expires : datetime.datetime
        When it, or the authority's, ends, UTC.
    """

    folder: Path
    hosts: tuple[str, ...]
    expires: datetime.datetime

    @property
    def authority(self) -> Path:
        """The authority's certificate."""
        return self.folder / AUTHORITY

    @property
    def certificate(self) -> Path:
        """What is shown to others."""
        return self.folder / CERTIFICATE

    @property
    def key(self) -> Path:
        """The private key."""
        return self.folder / KEY


def make_certificates(
    folder: str | os.PathLike[str], hosts: Iterable[str] = (), days: int = 365, *, now: datetime.datetime | None = None
) -> Certificates:
    """Write the certificates of a lab into a folder, which is made if it is not there.

    Parameters
    ----------
    folder
        Gets ca.pem, cert.pem and key.pem (readable for its owner alone); none of them may be there.
    hosts : iterable of str
        Names and addresses of the machines, beside those of the loopback. Dask does not look at them; others may.
    days : int
        How long the set lasts, at most ten years.
    now : datetime.datetime, optional
        Of which it begins; by default the present.

    Raises
    ------
    SecurityError
        There are certificates in the folder already, it cannot be written to, or a host is no name and no address.
    MissingDependencyError
        The package cryptography is not installed.
    """
    place = checked_path("certificates: folder", folder, SecurityError)
    days = checked_integer("certificates: days", days, 1, MOST_DAYS, SecurityError)
    names = tuple(dict.fromkeys([*_HERE, *map(_host, hosts)]))
    import_optional("cryptography", "cluster", "making certificates")
    begin = now or datetime.datetime.now(datetime.timezone.utc)
    contents = _made(names, begin, begin + datetime.timedelta(days=days))
    written: list[Path] = []
    try:
        make_folder(place, 0o700)
        there = [name for name in CERTIFICATE_FILES if os.path.lexists(place / name)]
        if there:
            raise SecurityError(
                f"{place}: holds {', '.join(there)} already, which machines may be using; name another folder"
            )
        for name, content in zip(CERTIFICATE_FILES, contents, strict=True):
            handle = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if name == KEY else 0o644)
            written.append(place / name)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
    except OSError as error:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
        raise SecurityError(f"{error.filename or place}: {reason(error)}; no certificates were written") from None
    return read_certificates(place, now=begin)


def read_certificates(folder: str | os.PathLike[str], *, now: datetime.datetime | None = None) -> Certificates:
    """Return the set of certificates in a folder, if it can be used now.

    Says on the log where others of this machine can read the key, and where the set expires within two weeks.

    Raises
    ------
    SecurityError
        A file is missing or damaged, the three do not belong together, or the set has expired.
    MissingDependencyError
        The package cryptography is not installed.
    """
    place = checked_path("tls", folder, SecurityError)
    import_optional("cryptography", "cluster", "reading certificates")
    if not place.is_dir():
        raise SecurityError(f"{place}: no such folder, expected one with {', '.join(CERTIFICATE_FILES)}; {_MAKE}")
    missing = [name for name in CERTIFICATE_FILES if not (place / name).exists()]
    if missing:
        raise SecurityError(
            f"{place}: has no {' and no '.join(missing)}, expected {', '.join(CERTIFICATE_FILES)}; copy the whole "
            f"folder from where the set was made ({_MAKE})"
        )
    authority, certificate = _certificate(place / AUTHORITY), _certificate(place / CERTIFICATE)
    _check_key(place / KEY, certificate[0], place / CERTIFICATE)
    if len(certificate) == 1 and not any(_issued(certificate[0], issuer) for issuer in authority):
        raise SecurityError(
            f"{place / CERTIFICATE}: was not issued by the authority of {AUTHORITY}: files of two sets are mixed; copy "
            "the whole folder from where the set was made"
        )
    moment = now or datetime.datetime.now(datetime.timezone.utc)
    expires = moment + datetime.timedelta(days=MOST_DAYS * 100)
    for path, first in ((place / AUTHORITY, authority[0]), (place / CERTIFICATE, certificate[0])):
        begin, end = first.not_valid_before_utc, first.not_valid_after_utc
        if moment < begin:
            raise SecurityError(
                f"{path}: is valid from {_date(begin)} on, and here it is {_date(moment)}; set the clock"
            )
        if moment > end:
            raise SecurityError(
                f"{path}: expired on {_date(end)}; make a new set (`anatune cluster certificates NEW_DIR`), copy it to "
                "all machines, and start the scheduler and the workers anew with it"
            )
        expires = min(expires, end)
    if expires - moment < _SOON:
        _LOG.warning("%s: these certificates expire on %s; %s", place, _date(expires), _MAKE)
    return Certificates(place, _hosts(certificate[0]), expires)


def _date(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _host(word: str) -> str:
    """Return a host's name or address as it goes into a certificate."""
    if isinstance(word, str):
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(word.strip("[]")))
        if len(word) <= 253 and _HOST_NAME.fullmatch(word):
            return word.rstrip(".").lower()
    raise SecurityError(f"certificates: a host is {shown(word)}, expected a name such as gpu1.lab or an IP address")


def _made(hosts: tuple[str, ...], begin: datetime.datetime, end: datetime.datetime) -> tuple[bytes, bytes, bytes]:
    """Return the authority's certificate, one that it issued, and the private key of that, in PEM form."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    number = x509.random_serial_number()
    # Two sets have authorities of different names, so that an error says which one is meant.
    issuer, subject = (
        x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "anatune"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        for name in (f"cluster {number:040x}"[:24], "member of the cluster")
    )
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

    def signed(
        name: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: tuple[x509.ExtensionType, bool]
    ) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin - datetime.timedelta(hours=1))  # clocks of machines differ
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def usage(*, of_authority: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not of_authority, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=of_authority, crl_sign=of_authority,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip

    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    return (
        signed(
            issuer,
            authority_key.public_key(),
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (usage(of_authority=True), True),
        ),
        signed(
            subject,
            key.public_key(),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (usage(of_authority=False), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False),
            (names, False),
        ),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a file; the first is the one that counts, others are those that issued it."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(_content(path))
    except ValueError:
        raise SecurityError(f"{path}: is no certificate in PEM form; copy the whole folder anew") from None


def _check_key(path: Path, certificate: x509.Certificate, of: Path) -> None:
    """Raise SecurityError unless the file holds the private key of a certificate."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(_content(path), password=None)
    except TypeError:
        raise SecurityError(f"{path}: the key has a password, expected one without") from None
    except ValueError:
        raise SecurityError(f"{path}: is no private key in PEM form; copy the whole folder anew") from None
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise SecurityError(f"{path}: is not the key of {of.name}: files of two sets are mixed; copy the whole folder")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        _LOG.warning("%s can be read by others of this machine, who could run programs on all of the cluster; "
                     "chmod 600 %s", path, path)  # fmt: skip


def _content(path: Path) -> bytes:
    try:
        return read_file(path, 1 << 20)
    except OSError as error:
        raise SecurityError(f"{path}: {reason(error)}") from None


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether an authority issued a certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses in a certificate."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
