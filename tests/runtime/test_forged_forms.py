"""Libraries whose JSON says something else, with hashes that are right: every part of it left out, or another."""

from __future__ import annotations

import copy
import json
import pathlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from campaign_files import saved_by_a_session
from forging import forged, members_of

import minitvm
from minitvm.errors import LibraryError, StageError
from minitvm.runtime import archive

OTHERS: tuple[Any, ...] = (None, True, -1, 10**30, float("nan"), "x", [], {}, {"a": 1})
FEEDS = {"x": np.ones((2, 16), "float32"), "s": np.array([3, 2])}


@pytest.fixture(scope="module")
def data() -> bytes:
    """For two shapes, the first of them once more at the end, which borrows its parameters."""
    artifact = archive.from_bytes(saved_by_a_session(), "m.mtvm")
    return archive.to_bytes(replace(artifact, others=(*artifact.others, replace(artifact, model={}, others=()))))


def _places(form: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    keys = form if isinstance(form, dict) else range(len(form)) if isinstance(form, list) else ()
    for key in keys:
        yield from _places(form[key], (*at, key))


def _changed(form: Any) -> Iterator[Any]:
    """The form with each of its parts left out, twice, and replaced by others."""
    for *way, last in filter(None, _places(form)):
        for other in ("leave out", "twice", *OTHERS):
            new = copy.deepcopy(form)
            parent = new
            for key in way:
                parent = parent[key]
            if other == "leave out":
                del parent[last]
            elif other == "twice" and isinstance(parent, list):
                parent.insert(last, parent[last])
            else:
                parent[last] = other
            yield new
    yield from OTHERS


@pytest.mark.parametrize("name", ["model.json", "values.json", "borrowed.json"])
def test_every_part_of_what_is_not_sealed(data: bytes, name: str, tmp_path: pathlib.Path) -> None:
    """Refused, or a session that says what it is, runs or refuses what it is given, and can be saved."""
    inner = "shape/2.mtvm" if name == "borrowed.json" else ""
    whole = members_of(data)[inner] if inner else data
    refused = 0
    for form in _changed(json.loads(members_of(whole)[name])):
        text = json.dumps(form, indent=1).encode()
        new = forged(whole, lambda _m, _g, members, text=text: members.update({name: text}))
        if inner:
            new = forged(data, lambda _m, _g, members, new=new: members.update({inner: new}))
        try:
            session = minitvm.InferenceSession(new, num_threads=1)
        except LibraryError:
            refused += 1
            continue
        assert session.get_inputs() and session.get_outputs() and session.get_modelmeta()
        session.save(tmp_path / "again.mtvm")
        for rows in (2, 4):
            try:
                session.run(None, {"x": np.ones((rows, 16), "float32"), "s": np.array([3, rows])})
            except minitvm.MiniTVMError as error:
                assert not isinstance(error, StageError)
    assert refused > 20


def test_inputs_that_model_json_leaves_out(data: bytes) -> None:
    def without(_m: Any, _g: Any, members: dict[str, bytes]) -> None:
        form = json.loads(members["model.json"])
        members["model.json"] = json.dumps({**form, "inputs": form["inputs"][1:]}, indent=1).encode()

    with pytest.raises(LibraryError, match=r"is altered: model\.json has inputs s, the code was compiled for x\n"):
        minitvm.InferenceSession(forged(data, without))


def test_values_of_a_dtype_that_only_numpy_has(data: bytes) -> None:
    """Such as texts of two billion characters each."""
    values = {"s": ["S2000000000", [2], [1, 2]]}
    text = json.dumps(values, indent=1).encode()
    with pytest.raises(LibraryError, match=r"values\.json says of no inputs what their values are"):
        minitvm.InferenceSession(forged(data, lambda _m, _g, members: members.update({"values.json": text})))
