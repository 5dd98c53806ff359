"""Trust in a database: who can have written its file, and who has signed its content.

A shared library is native code with the rights of the process that loads it. It is loaded from a database that a
trusted key has signed, and from one that only this user and root can have written: the file, the files that SQLite
keeps beside it and all folders above belong to one of the two, and no other user may write them. A folder with the
sticky bit, such as /tmp, may be written by others, because they cannot replace this user's files in it. The members of
a group that may write are trusted. Device images, which run on a GPU only, are loaded in any case.

A signature is Ed25519 over all that running reads. The signed text is a JSON list in ASCII without spaces:

    ["autotune tuning database 1", DEVICES, PROBLEMS, KERNELS, MEASUREMENTS, PLANS, NETWORKS]

DEVICES has [name, target, flops_per_us, bytes_per_us] for each device, PROBLEMS the texts of the problems, and the
others the digests of rows (digests.py), which cover the digests of the binaries. All are sorted, except that plans
are in the order in which they were added, because the newest plan of a network is used. NETWORKS is left out if it is
empty, as in databases of older versions. So the text depends on the content alone, not on row ids, pages or packing.
Each row is compared with the signed digests when it is read.

The package `cryptography` is imported only to sign, and to check a signature.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuning_db.errors import DatabaseError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALLOW = "AUTOTUNE_ALLOW_UNSIGNED"
"""Environment variable: 1 allows native code from databases of other users that no trusted key has signed."""

NATIVE = "shared_library"
"""Kind of the binaries that run on the host."""

_BESIDE = ("", "-wal", "-shm", "-journal")


@dataclass(frozen=True)
class Origin:
    """The origin of an open database.

    Attributes:
        name: Name of the database, for messages.
        others: The reason why another user can have written it; None without one.
    """

    name: str
    others: str | None = None

    @classmethod
    def of(cls, path: Path, name: str) -> Origin:
        """Return the origin of a file. Call it when the file is open: it cannot be replaced by another one then."""
        return cls(name, next(_reasons(path.resolve()), None))

    def require_trust(self, kind: str) -> None:
        """Raise DatabaseError for native code that another user can have written, unless ALLOW is set."""
        if kind == NATIVE and self.others and os.environ.get(ALLOW) != "1":
            raise DatabaseError(
                f"{self.name} holds native code that would run with your rights, and {self.others}: if you trust its "
                f"origin, give the key that signed it as trusted_keys, copy the file to a folder of your own, or set "
                f"{ALLOW}=1"
            )


def _reasons(path: Path) -> Iterator[str]:
    """Yield the reasons why other users can have written a file, whose path has no symbolic links."""
    places = [path.with_name(f"{path.name}{suffix}") for suffix in _BESIDE]
    for place in (*places, *path.parents):
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue  # a file beside the database that is not there
        what = "the folder" if stat.S_ISDIR(status.st_mode) else "the file"
        if status.st_uid not in (os.getuid(), 0):
            yield f"{what} {place} belongs to another user (uid {status.st_uid})"
        elif status.st_mode & stat.S_IWOTH and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            yield f"{what} {place} may be written by every user"


TRUSTED = "AUTOTUNE_TRUSTED_KEYS"
"""Environment variable: the keys to trust where a program names none, separated by colons (os.pathsep)."""

_KEY_BYTES = 32


@dataclass(frozen=True)
class Content:
    """All that running reads of a database.

    Attributes:
        devices: Name, target and peak rates of each device.
        problems: Texts of the problems.
        kernels: Digests of the kernels' rows.
        measurements: Digests of the measurements' rows.
        plans: Digests of the plans' rows, in the order in which they were added.
        networks: Digests of the networks' rows.
    """

    devices: Sequence[tuple[str, str, float, float]]
    problems: Sequence[str]
    kernels: Sequence[str]
    measurements: Sequence[str]
    plans: Sequence[str]
    networks: Sequence[str] = ()

    @property
    def text(self) -> bytes:
        """The text to sign."""
        parts = [sorted(self.devices), sorted(self.problems), sorted(self.kernels), sorted(self.measurements)]
        parts += [self.plans, *([sorted(self.networks)] if self.networks else [])]
        return json.dumps(["autotune tuning database 1", *parts], separators=(",", ":")).encode()

    @property
    def digests(self) -> frozenset[str]:
        """The digests of all rows."""
        return frozenset((*self.kernels, *self.measurements, *self.plans, *self.networks))


def public_keys(given: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the keys to trust, each as the base64 of its 32 bytes.

    Args:
        given: Keys as `public_key` takes them; without any, those of the environment variable TRUSTED.

    Raises:
        DatabaseError: A key cannot be read, or no list of keys is given.
    """
    if isinstance(given, str | os.PathLike) or not isinstance(given, Iterable):
        raise DatabaseError(f"trusted_keys is {given!r}: give a list of keys, such as ['key.pub']")
    named = list(given) or [key for key in os.environ.get(TRUSTED, "").split(os.pathsep) if key.strip()]
    return tuple(map(public_key, named))


def public_key(given: str | os.PathLike[str]) -> str:
    """Return a public Ed25519 key as the base64 of its 32 bytes; raises DatabaseError if it is none.

    Args:
        given: A PEM file, its text, or the base64 of the key.
    """
    if not isinstance(given, str | os.PathLike):
        raise DatabaseError(f"{given!r} is no public key: give a PEM file, its text, or the base64 of the key")
    text = os.fspath(given).strip()
    if not text.startswith("-----BEGIN"):
        if len(_decoded(text)) == _KEY_BYTES:
            return text
        text = _read(text)

    with _explained(given, "public"):
        from cryptography.hazmat.primitives import serialization

        return _encoded_key(serialization.load_pem_public_key(text.encode()))


def private_key(path: Path) -> Ed25519PrivateKey:
    """Return the private Ed25519 key of a PEM file; raises DatabaseError if it holds none."""
    text = _read(path)

    with _explained(path, "private"):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = serialization.load_pem_private_key(text.encode(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("it is a key of another kind")
        return key


def generate(path: Path) -> str:
    """Write a new private key to a PEM file that only this user can read, and the public key to PATH.pub.

    Returns:
        The public key: base64 of its 32 bytes.

    Raises:
        DatabaseError: One of the files exists or cannot be written.
    """
    with _explained(path, "private"):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    for place, data, mode in ((path, private, 0o600), (path.with_name(f"{path.name}.pub"), public, 0o644)):
        try:
            with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
        except FileExistsError:
            raise DatabaseError(f"{place} exists: remove it or name another file") from None
        except OSError as error:
            raise DatabaseError(f"cannot write {place}: {error.strerror}") from error
    return _encoded_key(key.public_key())


def sign(content: Content, key: Ed25519PrivateKey) -> tuple[str, str]:
    """Return the public key and the signature, both in base64."""
    return _encoded_key(key.public_key()), base64.b64encode(key.sign(content.text)).decode()


def is_signed(content: Content, signatures: Mapping[str, str], keys: Iterable[str]) -> bool:
    """Return whether one of the keys signed the content.

    Args:
        content: The content of the database.
        signatures: The signatures of the database, by public key.
        keys: The keys to trust.
    """
    with _explained("a signature", "public"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    text = content.text
    for key in keys:
        if key in signatures:
            with suppress(InvalidSignature):
                Ed25519PublicKey.from_public_bytes(_decoded(key)).verify(_decoded(signatures[key]), text)
                return True
    return False


def _encoded_key(key: Any) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("it is a key of another kind")
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return base64.b64encode(raw).decode()


def _decoded(text: object) -> bytes:
    """Return the bytes of a base64 text; no bytes if it is none."""
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    except (binascii.Error, TypeError, ValueError):
        return b""


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DatabaseError(f"cannot read the key {path}: {reason}; name a PEM file, or the key itself") from error


@contextmanager
def _explained(given: object, kind: str) -> Iterator[None]:
    """Raise DatabaseError if the package `cryptography` is missing or does not take a key."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise DatabaseError(f"signatures need the package {error.name}: pip install cryptography") from error
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DatabaseError(
            f"{given} is not a {kind} Ed25519 key in PEM form without a password ({reason}): make one with "
            "`autotune db keygen`"
        ) from error
