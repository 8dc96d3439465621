"""Signed libraries: who may load what, and what a signature covers."""

from __future__ import annotations

import itertools
import os
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from forging import Members, forged, members_of, zipped
from small_model import Model, sample

import minitvm
from minitvm.errors import LibraryError
from minitvm.runtime.signing import Origin

serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")

KEYS = [ed25519.Ed25519PrivateKey.from_private_bytes(bytes([n] * 32)) for n in (1, 2)]
PUBLIC = [key.public_key() for key in KEYS]
HEX = [key.public_bytes_raw().hex() for key in PUBLIC]


def private_pem(key: Any, password: bytes | None = None) -> bytes:
    coding = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    data: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, coding)
    return data


def public_pem(key: Any) -> bytes:
    data: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return data


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MINITVM_REQUIRE_SIGNED", "MINITVM_TRUSTED_KEYS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(model: Model, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """``plain.mtvm``, ``signed.mtvm`` by the first key, and both keys' files."""
    monkeypatch.chdir(tmp_path)
    model[2].save("plain.mtvm")
    model[2].save("signed.mtvm", key=KEYS[0])
    for n, key in enumerate(KEYS):
        pathlib.Path(f"key{n}.pem").write_bytes(private_pem(key))
        pathlib.Path(f"public{n}.pem").write_bytes(public_pem(PUBLIC[n]))
    return tmp_path


def refusal(path: str, trusted: Any = None) -> str:
    with pytest.raises(LibraryError) as caught:
        minitvm.load(path, trusted)
    return str(caught.value)


def test_origins(model: Model, folder: pathlib.Path) -> None:
    assert model[2].origin == Origin() and str(model[2].origin) == "compiled here"
    assert repr(model[2]).endswith(" params; compiled here>")
    plain, signed, trusted = (
        minitvm.load("plain.mtvm"),
        minitvm.load("signed.mtvm"),
        minitvm.load("signed.mtvm", PUBLIC),
    )
    assert plain.origin == Origin("plain.mtvm") and str(plain.origin) == "plain.mtvm, unsigned"
    assert signed.origin == Origin("signed.mtvm", HEX[0])
    assert str(signed.origin) == f"signed.mtvm, signed by {HEX[0]} (not checked: no trusted keys were given)"
    assert trusted.origin == Origin("signed.mtvm", HEX[0], True)
    assert str(trusted.origin) == f"signed.mtvm, signed by {HEX[0]}"
    for library in (plain, signed, trusted):
        module = minitvm.GraphModule(library["default"]())
        module.run(x=sample(1))
        expected = minitvm.GraphModule(model[2]["default"]())
        expected.run(x=sample(1))
        np.testing.assert_array_equal(module.outputs()[0], expected.outputs()[0])


@pytest.mark.parametrize(("private", "public"), [*itertools.product(("key", "path", "bytes"), repeat=2)])
def test_kinds_of_keys(private: str, public: str, model: Model, folder: pathlib.Path) -> None:
    signing = {"key": KEYS[1], "path": "key1.pem", "bytes": private_pem(KEYS[1])}[private]
    model[2].save("m.mtvm", key=signing)  # type: ignore[arg-type]
    trusted = {"key": PUBLIC[1], "path": folder / "public1.pem", "bytes": public_pem(PUBLIC[1])}[public]
    assert minitvm.load("m.mtvm", [PUBLIC[0], trusted]).origin.trusted
    assert minitvm.load("m.mtvm", iter([trusted])).origin.signer == HEX[1]


def test_who_may_load_what(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsigned = (
        "plain.mtvm is not signed, and only libraries signed by a trusted key are loaded here\n"
        f"  | trusted: {HEX[1]}\n"
        "  = hint: sign it where it is made: lib.save(path, key='key.pem') or `minitvm compile --sign key.pem`"
    )
    other = f"signed.mtvm is signed by {HEX[0]}, which is no trusted key\n  | trusted: {HEX[1]}"
    nobody = (
        "is refused: no key is trusted here\n"
        "  = hint: name keys in load(path, trusted_keys=[...]) or MINITVM_TRUSTED_KEYS"
    )
    assert refusal("plain.mtvm", PUBLIC[1:]) == unsigned
    assert refusal("signed.mtvm", PUBLIC[1:]) == other
    assert refusal("signed.mtvm", []) == f"signed.mtvm {nobody}"
    monkeypatch.setenv("MINITVM_REQUIRE_SIGNED", "1")
    for path in ("plain.mtvm", "signed.mtvm"):
        assert refusal(path) == f"{path} {nobody}"
    assert minitvm.load("signed.mtvm", PUBLIC).origin.trusted
    monkeypatch.setenv("MINITVM_TRUSTED_KEYS", "public1.pem")
    assert refusal("plain.mtvm") == unsigned and refusal("signed.mtvm") == other
    monkeypatch.delenv("MINITVM_REQUIRE_SIGNED")
    assert refusal("plain.mtvm") == unsigned and refusal("signed.mtvm") == other
    separator = ";" if sys.platform == "win32" else ":"
    monkeypatch.setenv("MINITVM_TRUSTED_KEYS", f"public1.pem{separator}public0.pem")
    assert minitvm.load("signed.mtvm").origin.trusted
    assert refusal("signed.mtvm", PUBLIC[1:]) == other, "an argument wins over a variable"
    monkeypatch.setenv("MINITVM_REQUIRE_SIGNED", "0")
    monkeypatch.delenv("MINITVM_TRUSTED_KEYS")
    assert minitvm.load("plain.mtvm").origin.signer is None


def test_every_change_of_the_content_is_seen(folder: pathlib.Path) -> None:
    path = folder / "signed.mtvm"
    data = path.read_bytes()
    altered = (
        f"signed.mtvm is not what {HEX[0]} signed: it was altered afterwards\n"
        "  = hint: get the file again from where it was signed"
    )

    def weights(_: Any, __: Any, members: Members) -> None:
        flipped = bytearray(members["params.bin"])
        flipped[-1] ^= 1
        members["params.bin"] = bytes(flipped)

    path.write_bytes(forged(data, weights))
    assert refusal("signed.mtvm", PUBLIC) == altered
    assert minitvm.load("signed.mtvm").origin.signer == HEX[0], "and without trusted keys nothing is said of that"
    for name in members_of(data):
        members = members_of(data)
        members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])
        path.write_bytes(zipped(members))
        found = refusal("signed.mtvm", PUBLIC)
        assert found == altered or (name not in ("manifest.json", "signature") and "do not match their hash" in found)


def test_signatures_of_something_else(model: Model, folder: pathlib.Path) -> None:
    signed, plain = (members_of((folder / f"{name}.mtvm").read_bytes()) for name in ("signed", "plain"))
    signature = signed["signature"]
    other = pathlib.Path("other.mtvm")
    other.write_bytes(zipped({**plain, "signature": signature}))
    assert minitvm.load(other, PUBLIC).origin.trusted, "the content is the same"
    other.write_bytes(zipped({**plain, "signature": PUBLIC[1].public_bytes_raw() + signature[32:]}))
    assert refusal("other.mtvm", PUBLIC).startswith(f"other.mtvm is not what {HEX[1]} signed")
    other.write_bytes(zipped({**plain, "signature": signature[:-1]}))
    assert refusal("other.mtvm") == "other.mtvm is altered: its signature has 95 bytes, not 96"
    bare = KEYS[0].sign(plain["manifest.json"])
    other.write_bytes(zipped({**plain, "signature": signature[:32] + bare}))
    assert refusal("other.mtvm", PUBLIC).startswith(f"other.mtvm is not what {HEX[0]} signed")


def test_keys_that_are_none(model: Model, folder: pathlib.Path) -> None:
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    other = rsa.generate_private_key(65537, 1024)
    hint = (
        "\n  = hint: make a pair: openssl genpkey -algorithm ed25519 -out key.pem; "
        "openssl pkey -in key.pem -pubout -out public.pem"
    )

    def signing(key: Any) -> str:
        with pytest.raises(LibraryError) as caught:
            model[2].save("m.mtvm", key=key)
        assert not pathlib.Path("m.mtvm").exists()
        return str(caught.value).removesuffix(hint)

    assert signing("none.pem") == "none.pem is no private Ed25519 key: No such file or directory"
    assert signing(folder) == f"{folder} is no private Ed25519 key: Is a directory"
    assert signing(7) == "what was given is no private Ed25519 key: it is a int"
    assert signing(private_pem(other)) == "what was given is no private Ed25519 key: it is a RSAPrivateKey"
    assert signing(PUBLIC[0]).startswith("what was given is no private Ed25519 key: it is a ")
    for wrong in ("public0.pem", b"", private_pem(KEYS[0])[:-40], private_pem(KEYS[0], b"secret")):
        assert signing(wrong).partition(":")[0].endswith("is no private Ed25519 key")
    assert refusal("signed.mtvm", [PUBLIC[0], 3]) == f"what was given is no public Ed25519 key: it is a int{hint}"
    assert refusal("signed.mtvm", ["key0.pem"]).startswith("key0.pem is no public Ed25519 key: ")
    assert refusal("signed.mtvm", "public0.pem") == (
        "trusted_keys is a str, not a list of keys\n  = hint: trusted_keys=['public.pem']"
    )
    assert refusal("signed.mtvm", PUBLIC[0]).startswith("trusted_keys is a ")


def test_without_the_package(model: Model, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    text = "signatures need the package cryptography, which is not installed\n  = hint: pip install cryptography"
    with pytest.raises(LibraryError) as caught:
        model[2].save("m.mtvm", key="key0.pem")
    assert str(caught.value) == text
    assert refusal("signed.mtvm", ["public0.pem"]) == text
    for path in ("plain.mtvm", "signed.mtvm"):
        assert not minitvm.load(path).origin.trusted


def test_branches_are_covered_and_are_not_signed_themselves(folder: pathlib.Path) -> None:
    from test_control import build, if_function

    library = build(if_function())
    library.save("m.mtvm", key=KEYS[0])
    loaded = minitvm.load("m.mtvm", PUBLIC)
    assert loaded.origin.trusted
    data = pathlib.Path("m.mtvm").read_bytes()

    def sign_a_branch(_: Any, __: Any, members: Members) -> None:
        name = next(name for name in members if name.startswith("branch/"))
        members[name] = zipped({**members_of(members[name]), "signature": members["signature"]})

    pathlib.Path("m.mtvm").write_bytes(forged(data, sign_a_branch))
    branch = next(name for name in members_of(data) if name.startswith("branch/"))
    assert refusal("m.mtvm").startswith(f"m.mtvm:{branch} is altered: signature does not belong in it\n")


def test_pipes_and_folders_are_no_libraries(folder: pathlib.Path) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")
        assert refusal("pipe").startswith("the library pipe cannot be read: Is not an ordinary file\n")
    assert refusal(".").startswith("the library . cannot be read: Is a directory\n")
