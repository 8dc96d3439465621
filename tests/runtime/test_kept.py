"""Whole libraries in the kernel cache: what was kept comes back, from memory that is mapped; not what is damaged."""

from __future__ import annotations

import gc
import os
import pathlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm import relay
from minitvm.ir.arrays import Mapped
from minitvm.runtime import kept as kept_module
from minitvm.runtime.graph import Artifact
from minitvm.runtime.kept import LibraryCache, _in_blocks
from minitvm.runtime.library import Library

ROOT = pathlib.Path(__file__).parents[2]
WIDTH = 160
"""A weight has 100 kB: enough to be worth sharing."""


def built(seed: int = 0, more: float = 0.0) -> Artifact:
    """Two products, and something with a branch, so that there is all that an entry may hold."""
    rng = np.random.default_rng(seed)
    x = relay.var("x", shape=(2, WIDTH))
    first, second = (rng.normal(size=(WIDTH, WIDTH)).astype("float32") for _ in range(2))
    nn: Any = relay.nn
    body = nn.dense(nn.relu(nn.dense(x, relay.const(first))), relay.const(second))
    return minitvm.build(relay.Function([x], body + relay.const(np.float32(more)))).artifact


def result(artifact: Artifact) -> np.ndarray:
    x = np.linspace(-1, 1, 2 * WIDTH, dtype="float32").reshape(2, WIDTH)
    return np.asarray(Library(artifact).run({"x": x})[0])


def memory_of(value: np.ndarray) -> object:
    base: object = value
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def entry(folder: pathlib.Path) -> pathlib.Path:
    (path,) = folder.rglob("*.lib")
    return path


def test_what_was_kept_is_found_where_it_lies_in_its_file(tmp_path: pathlib.Path) -> None:
    artifact = built()
    assert LibraryCache(tmp_path).find("ab1") is None
    assert LibraryCache(tmp_path).keep("ab1", artifact, {"seconds": 2.5})
    wanted, kinds = result(artifact), [(v.dtype, v.shape) for v in artifact.params.values()]
    del artifact
    gc.collect()  # equal arrays that are alive are taken instead
    kept = LibraryCache(tmp_path).find("ab1")
    assert kept is not None and kept.notes == {"seconds": 2.5}
    assert [(v.dtype, v.shape) for v in kept.artifact.params.values()] == kinds
    assert all(isinstance(memory_of(v), Mapped) for v in kept.artifact.params.values() if v.nbytes > 4096)
    np.testing.assert_array_equal(result(kept.artifact), wanted)
    entry(tmp_path).unlink()
    np.testing.assert_array_equal(result(kept.artifact), wanted)


def test_a_large_entry_is_written_meanwhile_and_waited_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By who asks for it, by who keeps another one, which borrows from it, and by the process's end."""
    monkeypatch.setattr(kept_module, "_BESIDE", 1)
    write, begun = LibraryCache._write, threading.Event()

    def slowly(self: LibraryCache, key: str, pieces: Iterable[bytes]) -> bool:
        begun.wait(10)
        return write(self, key, pieces)

    monkeypatch.setattr(LibraryCache, "_write", slowly)
    cache, first, second = LibraryCache(tmp_path), built(), built(more=1.0)
    assert cache.keep("ab1", first) and not [*tmp_path.rglob("*.lib")]
    assert cache.find("cd1") is None, "which nobody writes"
    begun.set()
    assert cache.keep("cd1", second)
    for key, artifact in (("ab1", first), ("cd1", second)):
        kept = LibraryCache(tmp_path).find(key)
        assert kept is not None
        np.testing.assert_array_equal(result(kept.artifact), result(artifact))
    sizes = {path.stem: path.stat().st_size for path in tmp_path.rglob("*.lib")}
    assert sizes["cd1"] < sizes["ab1"] - 4 * WIDTH * WIDTH


def test_a_process_ends_when_its_entries_are_written(tmp_path: pathlib.Path) -> None:
    script = (
        "import pathlib, time, minitvm.runtime.kept as kept\n"
        "from tests.runtime.test_kept import built\n"
        "kept._BESIDE, write = 1, kept.LibraryCache._write\n"
        "kept.LibraryCache._write = lambda *given: time.sleep(0.2) or write(*given)\n"
        f"assert kept.LibraryCache(pathlib.Path({str(tmp_path)!r})).keep('ab1', built())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    assert LibraryCache(tmp_path).find("ab1") is not None


@pytest.mark.parametrize("lengths", [[5, 0, 3], [64 * 1024] * 70, [3, (5 << 20) + 1, 7], [1 << 21, 1 << 22]])
def test_entries_are_written_in_whole_blocks(lengths: list[int]) -> None:
    pieces = [random.Random(n).randbytes(n) for n in lengths]
    blocks = list(_in_blocks(pieces))
    assert b"".join(blocks) == b"".join(pieces)
    assert {len(block) for block in blocks[:-1]} <= {1 << 21}


def test_any_damage_is_noticed(tmp_path: pathlib.Path) -> None:
    """A changed byte anywhere, a page of zeros, a missing end, bytes too many or none at all."""
    cache = LibraryCache(tmp_path)
    assert cache.keep("ab1", built())
    whole, rng = entry(tmp_path).read_bytes(), random.Random(5)

    def flipped(at: int) -> bytes:
        return whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]

    used = len(whole.rstrip(b"\0"))
    places = [0, 17, 50, 60, 65, used - 1, *(rng.randrange(used) for _ in range(150))]
    pages = [at for at in range(0, used, 4096) if any(whole[at : at + 4096])]
    zeroed = [whole[:at] + bytes(4096) + whole[at + 4096 :] for at in rng.sample(pages, 10)]
    cut = [whole[:n] for n in (0, 1, 63, 64, 5000, used - 1)]
    lengths = [whole[:48] + n.to_bytes(8, "little") + whole[56:] for n in (0, 1 << 40, (1 << 64) - 1)]
    path, missed = entry(tmp_path), []
    for number, data in enumerate([*map(flipped, places), *zeroed, *cut, *lengths]):
        path.write_bytes(data)
        if LibraryCache(tmp_path).find("ab1") is not None and not is_padding(whole, data):
            missed.append(number)
    assert not missed


def is_padding(whole: bytes, data: bytes) -> bool:
    """Whether what differs is between the pieces, where there are zeros that nobody reads."""
    return len(whole) == len(data) and not any(a for a, b in zip(whole, data, strict=True) if a != b)


def test_an_entry_counts_under_its_own_key(tmp_path: pathlib.Path) -> None:
    cache = LibraryCache(tmp_path)
    assert cache.keep("ab1", built()) and cache.keep("ab2", built(1))
    folder = tmp_path / "libraries" / "ab"
    (folder / "ab1.lib").replace(folder / "ab2.lib")
    assert cache.find("ab2") is None and cache.find("ab1") is None


def test_a_weight_that_another_entry_has_is_not_written_again(tmp_path: pathlib.Path) -> None:
    cache, first, second = LibraryCache(tmp_path), built(), built(more=1.0)
    assert cache.keep("ab1", first) and cache.keep("cd1", second)
    sizes = {path.stem: path.stat().st_size for path in tmp_path.rglob("*.lib")}
    assert sizes["cd1"] < sizes["ab1"] - 4 * WIDTH * WIDTH
    wanted = result(second)
    del first, second
    gc.collect()
    kept = cache.find("cd1")
    assert kept is not None
    np.testing.assert_array_equal(result(kept.artifact), wanted)


@pytest.mark.parametrize("how", ["gone", "another", "damaged"])
def test_what_borrows_goes_with_its_lender(tmp_path: pathlib.Path, how: str) -> None:
    cache, first, second = LibraryCache(tmp_path), built(), built(more=1.0)
    assert cache.keep("ab1", first) and cache.keep("cd1", second)
    del first, second
    gc.collect()
    lender = tmp_path / "libraries" / "ab" / "ab1.lib"
    if how == "damaged":
        lender.write_bytes(lender.read_bytes()[:-9000] + bytes(9000))
    else:
        lender.unlink()
    if how == "another":
        assert cache.keep("ab1", built(7))
    assert cache.find("cd1") is None


def test_the_folder_has_a_limit_and_an_entry_half_of_it(tmp_path: pathlib.Path) -> None:
    assert LibraryCache(tmp_path / "a").keep("aa1", built())
    size = entry(tmp_path).stat().st_size
    assert not LibraryCache(tmp_path / "b", 2 * size - 2).keep("aa1", built())
    assert not [*(tmp_path / "b").rglob("*")]
    cache = LibraryCache(tmp_path / "c", 2 * size + 2)
    for age, key in enumerate(["aa1", "bb1", "cc1"]):
        assert cache.keep(key, built(age))
        (path,) = tmp_path.rglob(f"c/**/{key}.lib")
        os.utime(path, (1000 + age, 1000 + age))
    assert [key for key in ("aa1", "bb1", "cc1") if cache.find(key)] == ["bb1", "cc1"]


def test_what_a_killed_process_left_is_removed(tmp_path: pathlib.Path) -> None:
    """Not what somebody may be writing now."""
    cache = LibraryCache(tmp_path)
    assert cache.keep("ab1", built())
    left, written = (entry(tmp_path).with_name(f"ab2.lib.{number}.part") for number in range(2))
    left.write_bytes(bytes(10))
    os.utime(left, (0, 0))
    written.write_bytes(bytes(10))
    assert cache.keep("ab3", built(3))
    assert not left.exists() and written.exists() and cache.find("ab3") is not None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_what_is_no_file_of_this_users_is_not_opened(tmp_path: pathlib.Path) -> None:
    cache = LibraryCache(tmp_path)
    assert cache.keep("ab1", built())
    path = entry(tmp_path)
    other = path.rename(tmp_path / "elsewhere")
    for put in (os.mkfifo, lambda place: place.symlink_to(other), pathlib.Path.mkdir):
        put(path)
        assert cache.find("ab1") is None
        if path.is_dir():
            path.rmdir()
    other.rename(path)
    path.chmod(0o666)
    assert cache.find("ab1") is None


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitvm.runtime.cache._warned", set())
    artifact = built()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.warns(minitvm.CacheWarning, match="can be written to by others"):
        assert not LibraryCache(tmp_path / "open").keep("ab1", artifact)
    (tmp_path / "file").write_text("")
    with pytest.warns(minitvm.CacheWarning, match="cannot be written"):
        assert not LibraryCache(tmp_path / "file").keep("ab1", artifact)
    assert not LibraryCache(None).keep("ab1", artifact) and LibraryCache(None).find("ab1") is None


def test_what_cannot_be_saved_is_not_kept(tmp_path: pathlib.Path) -> None:
    """Of a target whose back end makes no entry; and one that holds arrays of objects."""
    artifact = built()
    texts = {name: np.array(["a"], object) for name in artifact.params}
    for other in (replace(artifact, entry=b""), replace(artifact, params=texts)):
        assert not LibraryCache(tmp_path).keep("ab1", other)
