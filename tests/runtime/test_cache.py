"""The kernel cache: hits, corruption, size, and folders that cannot be used."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from small_model import sample, small_module

import minitvm
from minitvm.ir.loop import Buffer, Stage
from minitvm.ir.op import OPS, Fusion, Op, compute
from minitvm.ir.types import TensorType
from minitvm.runtime import cache as cache_module
from minitvm.runtime.cache import CacheWarning, KernelCache, cache_key


def test_what_was_put_is_found(tmp_path: pathlib.Path) -> None:
    cache = KernelCache(tmp_path)
    assert cache.get("ab12") is None
    cache.put("ab12", b"code")
    assert KernelCache(tmp_path).get("ab12") == b"code"
    assert (cache.hits, cache.misses) == (0, 1)
    assert not list(tmp_path.rglob("tmp*"))


def test_keys_keep_parts_apart() -> None:
    assert cache_key("ab", "c") != cache_key("a", "bc") != cache_key("abc")
    assert cache_key("ab", "c") == cache_key("ab", "c")


@pytest.mark.parametrize("damage", [lambda d: d[:-1] + b"?", lambda d: d[:10], lambda d: b""])
def test_a_corrupted_entry_is_dropped(tmp_path: pathlib.Path, damage: object) -> None:
    cache = KernelCache(tmp_path)
    cache.put("ab12", b"code" * 100)
    (path,) = tmp_path.rglob("*.bin")
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert cache.get("ab12") is None
    assert not path.exists()


def test_the_least_recently_used_entries_go_first(tmp_path: pathlib.Path) -> None:
    cache = KernelCache(tmp_path, limit=3 * 132)
    for age, key in enumerate(["aa", "bb", "cc", "dd"]):
        cache.put(key, bytes(100))
        (path,) = tmp_path.rglob(f"{key}.bin")
        os.utime(path, (1000 + age, 1000 + age))
    assert cache.get("aa") is not None  # now the newest
    cache.trim()
    assert [key for key in ("aa", "bb", "cc", "dd") if cache.get(key)] == ["aa", "cc", "dd"]


def test_a_build_looks_at_one_folder_of_entries(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of 22,000 entries takes a fifth of a second to look through, after every build that adds one."""
    cache = KernelCache(tmp_path, limit=256 * 3 * 132)
    seen: list[str] = []
    entries = cache._entries
    monkeypatch.setattr(cache, "_entries", lambda folder="*": seen.append(folder) or entries(folder))
    cache.trim_where_due()
    assert seen == []
    for key in ("aa1", "bb1", "aa2", "aa3"):
        cache.put(key, bytes(100))
        cache.trim_where_due()
    assert seen == ["aa", "bb", "aa", "aa"]
    cache.put("aa4", bytes(100))
    cache.trim_where_due()
    assert seen[4:] == ["aa", "*"] and len([*tmp_path.rglob("*.bin")]) == 5, "all together they are within the limit"


def test_off(tmp_path: pathlib.Path) -> None:
    cache = KernelCache(None)
    cache.put("ab", b"x")
    cache.trim()
    assert cache.get("ab") is None


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "file"
    folder.write_text("not a folder")
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(folder))
    monkeypatch.setattr(cache_module, "_warned", set())
    module, params = small_module()
    with pytest.warns(CacheWarning) as caught:
        library = minitvm.build(module, params=params)
    assert [str(w.message) for w in caught if w.category is CacheWarning] == [
        f"the kernel cache {folder} cannot be written (Not a directory); kernels are compiled each time. "
        "Set MINITVM_CACHE_DIR to a writable folder, or to nothing to turn the cache off."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minitvm.build(module, params=params)
    running = minitvm.GraphModule(library["default"]())
    running.run(x=sample(1))
    assert np.isfinite(running.get_output(0).numpy()).all()


def test_a_second_build_compiles_nothing_and_a_damaged_cache_is_mended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path))
    module, params = small_module()
    cold = minitvm.build(module, params=params)
    assert len(list(tmp_path.rglob("*.bin"))) == len(cold.report.groups) + 1, "each kernel once, and what calls them"
    warm = minitvm.build(module, params=params)
    assert cold.report.cache_misses > 0 and "llvm" in cold.report.seconds
    assert warm.report.cache_misses == 0 and "llvm" not in warm.report.seconds and "lower" not in warm.report.seconds
    for path in tmp_path.rglob("*.bin"):
        path.write_bytes(path.read_bytes()[:-3] + b"bad")
    mended = minitvm.build(module, params=params)
    results = []
    for library in (cold, warm, mended):
        running = minitvm.GraphModule(library["default"]())
        running.run(x=sample(2))
        results.append(running.get_output(0).numpy())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_another_process_finds_the_entries(tmp_path: pathlib.Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import minitvm; from small_model import small_module;"
        "m, p = small_module(); print(minitvm.build(m, params=p).report.cache_misses)"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code, str(pathlib.Path(__file__).parent)],
            env={**os.environ, "MINITVM_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert int(found[0]) > 0 and found[1] == "0"


def test_the_kernel_of_a_changed_operator_from_outside_is_compiled_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("minitvm.ir.op.OPS", dict(OPS))
    array = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    for factor in (2.0, 3.0):

        @dataclass(frozen=True)
        class Scaled(Op):
            name = "test.scaled"
            fusion = Fusion.ELEMWISE

            def infer(self, data: TensorType) -> TensorType:
                return data

            def compute(self, data: Buffer, factor: float = factor) -> Stage:
                return compute(data.shape, lambda *i: data[i] * factor)

        call = minitvm.ir.expr.Call(Scaled(), [minitvm.relay.var("x", shape=(2, 3))])
        library = minitvm.build(minitvm.Module.from_expr(call))
        module = minitvm.GraphModule(library["default"](minitvm.cpu()))
        module.run(x=array)
        np.testing.assert_array_equal(module.get_output(0).numpy(), array * np.float32(factor))
