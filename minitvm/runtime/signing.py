"""Signed libraries: Ed25519 signatures (RFC 8032, by the ``cryptography`` package) of a library's manifest.

The manifest has the SHA-256 of every other member, so its signature is one of the whole content.  The signature's
member is the signer's public key, 32 bytes, and the signature, 64.
"""

import importlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from minitvm import config
from minitvm.errors import LibraryError
from minitvm.runtime.origin import Origin

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PrivateKey: TypeAlias = "Ed25519PrivateKey | str | os.PathLike[str] | bytes"
"""A key, the path of its PEM file, or the file's bytes."""
PublicKey: TypeAlias = "Ed25519PublicKey | str | os.PathLike[str] | bytes"

_CONTEXT = b"minitvm library, signature 1\n"
_KEY_BYTES, _SIGNATURE_BYTES, _PEM_BYTES = 32, 64, 1 << 16
_MAKE_KEYS = "openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out public.pem"


def sign(manifest: bytes, key: PrivateKey) -> bytes:
    """The signature's member for a manifest; :class:`LibraryError` for what is no private Ed25519 key."""
    private = _key(key, "private")
    return bytes(private.public_key().public_bytes_raw() + private.sign(_CONTEXT + manifest))


def origin_of(name: str, manifest: bytes, member: bytes | None, trusted: Sequence[bytes] | None) -> Origin:
    """The origin of the library file ``name``.

    ``trusted`` are raw public keys; ``None`` asks for no signature and checks none.  Raises :class:`LibraryError`
    where the signature is missing, of another key, or of another manifest.
    """
    if member is not None and len(member) != _KEY_BYTES + _SIGNATURE_BYTES:
        raise LibraryError(
            f"{name} is altered: its signature has {len(member)} bytes, not {_KEY_BYTES + _SIGNATURE_BYTES}"
        )
    signer = None if member is None else member[:_KEY_BYTES]
    if trusted is not None:
        _require_trusted(name, signer, trusted)
        assert member is not None
        _verify(name, manifest, member)
    return Origin(name, None if signer is None else signer.hex(), trusted is not None)


def _require_trusted(name: str, signer: bytes | None, trusted: Sequence[bytes]) -> None:
    if not trusted:
        raise LibraryError(
            f"{name} is refused: no key is trusted here",
            hint="name keys in load(path, trusted_keys=[...]) or MINITVM_TRUSTED_KEYS",
        )
    listed = [f"trusted: {key.hex()}" for key in trusted]
    if signer is None:
        raise LibraryError(
            f"{name} is not signed, and only libraries signed by a trusted key are loaded here",
            where=listed,
            hint="sign it where it is made: lib.save(path, key='key.pem') or `minitvm compile --sign key.pem`",
        )
    if signer not in trusted:
        raise LibraryError(f"{name} is signed by {signer.hex()}, which is no trusted key", where=listed)


def _verify(name: str, manifest: bytes, member: bytes) -> None:
    key = _ed25519().Ed25519PublicKey.from_public_bytes(member[:_KEY_BYTES])
    try:
        key.verify(member[_KEY_BYTES:], _CONTEXT + manifest)
    except importlib.import_module("cryptography.exceptions").InvalidSignature:
        raise LibraryError(
            f"{name} is not what {member[:_KEY_BYTES].hex()} signed: it was altered afterwards",
            hint="get the file again from where it was signed",
        ) from None


# --- keys -------------------------------------------------------------------------------------------------------


def trusted_keys(given: Iterable[PublicKey] | None) -> list[bytes] | None:
    """The raw public keys that are trusted: those given, else those of ``MINITVM_TRUSTED_KEYS``.

    ``None`` where neither says anything, unless ``MINITVM_REQUIRE_SIGNED`` is set: then no key is trusted.
    """
    if given is None:
        paths = config.read("MINITVM_TRUSTED_KEYS")
        if not paths:
            return [] if config.read_flag("MINITVM_REQUIRE_SIGNED") else None
        given = [path for path in paths.split(os.pathsep) if path]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise LibraryError(
            f"trusted_keys is a {type(given).__name__}, not a list of keys", hint="trusted_keys=['public.pem']"
        )
    return [bytes(_key(key, "public").public_bytes_raw()) for key in given]


def _key(key: Any, what: str) -> Any:
    """A ``private`` or ``public`` Ed25519 key; what is none may be the path of its PEM file, or the file's bytes."""
    kind = getattr(_ed25519(), f"Ed25519{what.capitalize()}Key")
    found = key if isinstance(key, kind) else _read_pem(key, what)
    if not isinstance(found, kind):
        raise _no_key(key, what, f"it is a {type(found).__name__}")
    return found


def _start_of(path: Path) -> bytes:
    """As much as a key could have: a device may never end."""
    with path.open("rb") as file:
        return file.read(_PEM_BYTES)


def _read_pem(key: Any, what: str) -> Any:
    if not isinstance(key, (str, os.PathLike, bytes)):
        raise _no_key(key, what, f"it is a {type(key).__name__}")
    options = {"password": None} if what == "private" else {}
    try:
        data = key if isinstance(key, bytes) else _start_of(Path(key))
        formats = importlib.import_module("cryptography.hazmat.primitives.serialization")
        return getattr(formats, f"load_pem_{what}_key")(data, **options)
    except OSError as error:
        raise _no_key(key, what, str(error.strerror)) from error
    except (ValueError, TypeError, importlib.import_module("cryptography.exceptions").UnsupportedAlgorithm) as error:
        raise _no_key(key, what, str(error).partition("\n")[0]) from error


def _no_key(key: Any, what: str, why: str) -> LibraryError:
    name = str(key) if isinstance(key, (str, os.PathLike)) else "what was given"
    return LibraryError(f"{name} is no {what} Ed25519 key: {why}", hint=f"make a pair: {_MAKE_KEYS}")


def _ed25519() -> Any:
    try:
        return importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError as error:
        raise LibraryError(
            "signatures need the package cryptography, which is not installed", hint="pip install cryptography"
        ) from error
