"""The kernel cache takes nothing that it has not put where it looks: other entries, other files, others' folders."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import random
import socket
import stat
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from small_model import sample, small_module

import minitvm
from minitvm.codegen.backend import backend_of
from minitvm.driver import roofline
from minitvm.runtime import cache as cache_module
from minitvm.runtime.cache import MOST_BYTES, CacheWarning, KernelCache
from minitvm.target import Level, Rates, Target

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system knows no users")
RATES = Rates(1, 1e9, 1e9, (Level("L1", 1 << 15, 1e9), Level("memory", 1 << 40, 1e8)), 1e-6)


@pytest.fixture(autouse=True)
def _warns_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_warned", set())


@pytest.fixture
def built(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[np.ndarray, int]]:
    """Builds a model and measures a machine with a cache of their own; the model's result, and how many misses."""
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path / "cache"))
    backend = backend_of(Target.parse("llvm"), 1)
    monkeypatch.setattr(type(backend), "measured", lambda _: RATES)
    module, params = small_module()

    def build() -> tuple[np.ndarray, int]:
        library = minitvm.build(module, params=params)
        assert roofline.rates_of(backend) == RATES
        running = minitvm.GraphModule(library["default"]())
        running.run(x=sample(1))
        return running.get_output(0).numpy(), library.report.cache_misses

    return build


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.rglob("*.bin"))


def test_any_two_entries_exchanged_are_made_again(
    built: Callable[[], tuple[np.ndarray, int]], tmp_path: pathlib.Path
) -> None:
    """Whole ones, of whatever kind: kernels, what calls them, rates."""
    want, _ = built()
    kept = {path: path.read_bytes() for path in _entries(tmp_path)}
    measured = {path for path, data in kept.items() if data[32:].startswith(b'{"threads"')}
    assert len(kept) >= 4 and len(measured) == 1
    for one, other in itertools.combinations(kept, 2):
        one.write_bytes(kept[other])
        other.write_bytes(kept[one])
        found, misses = built()
        np.testing.assert_array_equal(found, want)
        assert misses + len(measured & {one, other}) == 2
        assert {path: path.read_bytes() for path in _entries(tmp_path)} == kept


def _pipe(path: pathlib.Path) -> None:
    os.mkfifo(path)


def _socket(path: pathlib.Path) -> None:
    here = pathlib.Path.cwd()
    os.chdir(path.parent)  # a socket's name has a hundred characters at most
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: pathlib.Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _linked_endless(path: pathlib.Path) -> None:
    path.symlink_to("/dev/zero")


def _linked_to_itself(path: pathlib.Path) -> None:
    path.symlink_to(path.name)


def _linked_elsewhere(path: pathlib.Path) -> None:
    (path.parent / "elsewhere").write_bytes(b"x")
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "put", [_pipe, _socket, pathlib.Path.mkdir, _sparse, _linked_endless, _linked_to_itself, _linked_elsewhere]
)
def test_what_is_no_file_in_an_entry_s_place(
    put: Callable[[pathlib.Path], None], built: Callable[[], tuple[np.ndarray, int]], tmp_path: pathlib.Path
) -> None:
    want, _ = built()
    for path in _entries(tmp_path)[::2]:
        path.unlink()
        put(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if put is pathlib.Path.mkdir else "error", CacheWarning)
        found, misses = built()
    np.testing.assert_array_equal(found, want)
    assert misses > 0
    if put is not pathlib.Path.mkdir:
        assert built()[1] == 0, "the place is mended"


def test_entries_damaged_at_random_are_made_again(
    built: Callable[[], tuple[np.ndarray, int]], tmp_path: pathlib.Path
) -> None:
    want, _ = built()
    draw = random.Random(7)
    for _ in range(24):
        path = draw.choice(_entries(tmp_path))
        data = bytearray(path.read_bytes())
        kind = draw.choice(["bit", "cut", "longer", "zeros"])
        if kind == "bit":
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        data = {"cut": data[: draw.randrange(len(data))], "longer": data + b"\0", "zeros": bytearray(len(data))}.get(
            kind, data
        )
        path.write_bytes(data)
        found, misses = built()
        np.testing.assert_array_equal(found, want)
        assert misses <= 1
    assert built()[1] == 0


def test_an_entry_larger_than_any_is_neither_kept_nor_read(tmp_path: pathlib.Path) -> None:
    cache = KernelCache(tmp_path)
    cache.put("ab", bytes(MOST_BYTES))
    assert not _entries(tmp_path)
    cache.put("ab", b"code")
    (path,) = _entries(tmp_path)
    with path.open("ab") as file:
        file.truncate(MOST_BYTES + 1)
    assert cache.get("ab") is None and not path.exists()


# --- whose folder it is -----------------------------------------------------------------------------------------------


def _warned(folder: pathlib.Path) -> list[str]:
    """What is said of a cache in which nothing is found."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for key in ("ab", "cd"):
            found = KernelCache(folder)
            found.put(key, b"new")
            assert found.get(key) is None
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: pathlib.Path, mode: int) -> None:
    folder = tmp_path / "cache"
    KernelCache(folder).put("ab", b"code")
    folder.chmod(mode)
    assert _warned(folder) == [
        f"the kernel cache {folder} is not used: it can be written to by others (mode {mode:o}); kernels are compiled "
        "each time. Give it to this user alone, or set MINITVM_CACHE_DIR to a folder of this user's, or to nothing to "
        "turn the cache off."
    ]
    assert len(_entries(tmp_path)) == 1
    folder.chmod(0o755)
    assert KernelCache(folder).get("ab") == b"code"


def test_a_folder_of_another_user_is_not_used(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's is: root decides what runs here anyway."""
    KernelCache(tmp_path / "cache").put("ab", b"code")
    (path,) = _entries(tmp_path)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        assert KernelCache(tmp_path / "cache").get("ab") == b"code"
        pytest.skip("no other user's folder without root's rights")
    (text,) = _warned(tmp_path / "cache")
    assert f"is not used: it belongs to another user (number {owner});" in text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["folder", "entry", "link"])
def test_what_is_given_to_another_user_is_not_used(tmp_path: pathlib.Path, what: str) -> None:
    folder = tmp_path / "cache"
    KernelCache(folder).put("ab", b"code")
    (path,) = _entries(tmp_path)
    if what == "entry":
        os.chown(path, 12345, 12345)
        assert KernelCache(folder).get("ab") is None and not path.exists()
        return
    if what == "link":
        (tmp_path / "own").mkdir()
        folder = tmp_path / "own" / "link"
        folder.symlink_to(tmp_path / "cache")
        assert KernelCache(folder).get("ab") == b"code"
    os.chown(folder, 12345, 12345, follow_symlinks=False)
    (text,) = _warned(folder)
    assert "it belongs to another user (number 12345)" in text


def test_a_place_where_anybody_can_put_another_folder_is_not_used(tmp_path: pathlib.Path) -> None:
    """Unless, as in /tmp, only owners rename."""
    KernelCache(tmp_path / "a" / "cache").put("ab", b"code")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "cache")
    (tmp_path / "a").chmod(0o777)
    for folder in (tmp_path / "a" / "cache", tmp_path / "link"):
        (text,) = _warned(folder)
        assert f"{tmp_path / 'a'} can be written to by anybody (mode 777)" in text
    (tmp_path / "a").chmod(0o1777)
    assert KernelCache(tmp_path / "link").get("ab") == b"code"


def test_an_entry_that_others_can_write_to_is_dropped(tmp_path: pathlib.Path) -> None:
    KernelCache(tmp_path).put("ab", b"code")
    (path,) = _entries(tmp_path)
    path.chmod(0o666)
    assert KernelCache(tmp_path).get("ab") is None and not path.exists()


@pytest.mark.parametrize("umask", [0o002, 0o000])
def test_what_it_makes_is_this_user_s_whatever_the_umask(tmp_path: pathlib.Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        KernelCache(tmp_path / "cache").put("ab", b"code")
    finally:
        os.umask(before)
    (path,) = _entries(tmp_path)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "cache", path)] == [0o700, 0o600]
    assert KernelCache(tmp_path / "cache").get("ab") == b"code"


def test_a_link_at_the_name_that_is_written_first_is_not_written_through(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, victim = KernelCache(tmp_path / "cache"), tmp_path / "victim"
    victim.write_bytes(b"precious")
    cache.put("ab", b"code")
    (path,) = _entries(tmp_path)
    monkeypatch.setattr("threading.get_ident", lambda: 1)
    path.with_name(f"ab.bin.{os.getpid()}-1.part").symlink_to(victim)
    cache.put("ab", b"other")
    assert cache.get("ab") == b"other" and victim.read_bytes() == b"precious"


def test_what_was_measured_by_another_minitvm_is_measured_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path))
    backend = backend_of(Target.parse("llvm"), 1)
    few = Rates(1, 1e9, 1e9, RATES.levels[:1], 1e-6)
    for rates in (RATES, few):
        monkeypatch.setattr(type(backend), "measured", lambda _, rates=rates: rates)
        assert roofline.rates_of(backend) == rates
    assert all(b'"flops"' in path.read_bytes() for path in _entries(tmp_path)) and len(_entries(tmp_path)) == 2
    assert json.loads(_entries(tmp_path)[0].read_bytes()[32:])["threads"] == 1
