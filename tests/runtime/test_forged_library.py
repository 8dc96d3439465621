"""Library files that are not as they were written: cut, put together otherwise, or lying with hashes that are right."""

from __future__ import annotations

import copy
import io
import itertools
import json
import pathlib
import random
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from forging import Members, forged, members_of, resealed, zipped

import minitvm
from minitvm import relay
from minitvm.driver import HostCallWarning
from minitvm.errors import LibraryError
from minitvm.ir.builder import call_op
from minitvm.runtime import archive, host_json
from minitvm.runtime.document import sealed

RNG = np.random.default_rng(5)
HINT = "copy the file again, or compile the model again"


def random_const(*shape: int) -> relay.Expr:
    return relay.const(RNG.standard_normal(shape).astype("float32"))


def everything() -> relay.Function:
    """Kernels with and without weights, a reshape, a host call, a Loop with an If inside, and an If."""
    c, n = relay.var("c", shape=(), dtype="bool"), relay.var("n", shape=(), dtype="int64")
    x = relay.var("x", shape=(1, 3, 8, 8))
    hidden = relay.nn.relu(relay.nn.conv2d(x, random_const(8, 3, 3, 3), kernel_size=(3, 3), padding=(1, 1), channels=8))
    y = relay.nn.dense(relay.reshape(hidden, newshape=(8, 64)), random_const(5, 64))
    inner = _if(relay.var("go", shape=(), dtype="bool"), (8, 5))
    i, acc = relay.var("i", shape=(), dtype="int64"), relay.var("acc", shape=(8, 5))
    after = relay.tanh(relay.add(inner(acc), relay.const(1.0)))
    body = relay.Function([i, inner.condition, acc], relay.Tuple([relay.const(np.bool_(True)), after]))
    looped = call_op("control.loop", n, relay.const(np.bool_(True)), y, body=body, num_carried=1)[0]
    chosen = _if(c, (8, 5))(looped)
    where = call_op("argwhere", relay.greater(chosen, relay.const(0.0)))
    more = [rule(chosen) for rule in (relay.nn.softmax, relay.nn.log_softmax, relay.cumsum, relay.sum, relay.argmax)]
    return relay.Function([c, n, x], relay.Tuple([more[0], where, *more[1:]]))


class _if:
    """``condition ? relu(v @ w) : exp(v)`` of a value."""

    def __init__(self, condition: relay.Expr, shape: tuple[int, int]) -> None:
        self.condition, self.shape = condition, shape

    def __call__(self, value: relay.Expr) -> relay.Expr:
        a, b = relay.var("a", shape=self.shape), relay.var("b", shape=self.shape)
        then = relay.Function([a], relay.nn.relu(relay.nn.dense(a, random_const(self.shape[1], self.shape[1]))))
        return call_op(
            "control.if", self.condition, value, then_branch=then, else_branch=relay.Function([b], relay.exp(b))
        )


def built(function: relay.Function) -> minitvm.Library:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        return minitvm.build(function)


@pytest.fixture(scope="module")
def library() -> minitvm.Library:
    return built(everything())


@pytest.fixture(scope="module")
def data(library: minitvm.Library) -> bytes:
    return archive.to_bytes(library.artifact)


def refusal(data: bytes) -> str:
    with pytest.raises(LibraryError) as caught:
        archive.from_bytes(data, "m.mtvm")
    assert caught.value.message.startswith("m.mtvm")
    return caught.value.message


def run(library: minitvm.Library) -> list[np.ndarray]:
    module = minitvm.GraphModule(library["default"]())
    module.run(c=np.bool_(True), n=np.int64(3), x=np.linspace(-1, 1, 192, dtype="float32").reshape(1, 3, 8, 8))
    return module.outputs()


def test_as_it_was_written(library: minitvm.Library, data: bytes, tmp_path: pathlib.Path) -> None:
    assert forged(data, lambda *_: None) == data
    (tmp_path / "m.mtvm").write_bytes(data)
    loaded = minitvm.load(tmp_path / "m.mtvm")
    for before, after in zip(run(library), run(loaded), strict=True):
        np.testing.assert_array_equal(before, after)
    assert archive.to_bytes(loaded.artifact) == data


# --- the file as a whole ----------------------------------------------------------------------------------------


def test_no_part_of_it_is_taken_for_a_library(data: bytes) -> None:
    """The branches are whole libraries inside of it, one of them inside of another."""
    ends = [found.end() for found in re.finditer(b"PK\5\6.{18}", data, re.DOTALL)]
    starts = [found.start() for found in re.finditer(b"PK\3\4", data)]
    assert len(ends) == 1 + 5 and ends[-1] == len(data)
    for end in ends[:-1]:
        for cut in range(end - 30, end + 30):
            refusal(data[:cut])
    for start, end in itertools.product(starts, ends):
        if start and end < len(data):
            assert _is_a_branch(data[start:end], data) or refusal(data[start:end])
    for start in starts[1:]:
        assert refusal(data[:start])


def _is_a_branch(part: bytes, whole: bytes) -> bool:
    found = [part for name, part in members_of(whole).items() if name.startswith("branch/")]
    return part in found or any(_is_a_branch(part, branch) for branch in found)


def test_cuts_anywhere(data: bytes) -> None:
    for cut in random.Random(1).sample(range(len(data)), 200):
        refusal(data[:cut])


@pytest.mark.parametrize("stray", [b"\0", b"PK", b"x" * 100])
def test_stray_bytes(data: bytes, stray: bytes) -> None:
    assert refusal(data + stray).startswith("m.mtvm is truncated or altered: ")
    assert refusal(b"PK" + stray + data).startswith("m.mtvm is truncated or altered: ")
    members = list(members_of(data).items())
    assert refusal(zipped(dict(members[:3])) + zipped(dict(members[3:]))).startswith("m.mtvm is truncated or altered")


def test_a_member_twice(data: bytes) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        out = io.BytesIO(data)
        with zipfile.ZipFile(out, "a") as container:
            container.writestr("graph.json", "{}")
    assert refusal(out.getvalue()) == "m.mtvm is truncated or altered: graph.json is in it twice"


# --- what its JSON says -----------------------------------------------------------------------------------------

Path = tuple[Any, ...]
VALUES = (
    None,
    True,
    False,
    -1,
    0,
    1,
    1.0,
    2.5,
    float("nan"),
    float("inf"),
    1 << 40,
    -(1 << 70),
    10**400,
    "",
    "float64",
)
LISTS: tuple[Any, ...] = ([], [0], {}, {"a": 1}, [[0, 0]])


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a JSON value, the insides of lists and dictionaries included."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield from places(inside, (*path, key))


def edited(value: Any, path: Path, rng: random.Random) -> Any:
    """The JSON value with something else at the place; never the same."""
    result = copy.deepcopy(value)
    parent = result
    for key in path[:-1]:
        parent = parent[key]
    kind = rng.randrange(8)
    if kind == 0:
        del parent[path[-1]]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(path[-1], copy.deepcopy(parent[path[-1]]))
    elif kind == 2 and isinstance(parent, dict):
        parent[f"{path[-1]}_"] = parent.pop(path[-1])
    else:
        parent[path[-1]] = _other(parent[path[-1]], rng)
    return result if json.dumps(result) != json.dumps(value) else edited(value, path, rng)


def _other(value: Any, rng: random.Random) -> Any:
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-64, -1, 1, 2, 64))
    if isinstance(value, str) and rng.random() < 0.5:
        return f"{value}x"
    return rng.choice((*VALUES, *LISTS))


def names(path: Path) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


@pytest.mark.parametrize("file", ["manifest.json", "graph.json"])
def test_every_edit_is_refused_and_its_place_named(file: str, data: bytes) -> None:
    rng = random.Random(len(file))
    value = json.loads(members_of(data)[file])
    value.pop("members", None)
    everywhere = list(places(value))
    assert len(everywhere) > 150
    for path in rng.sample(everywhere, 150):
        other = edited(value, path, rng)

        def change(manifest: Any, graph: Any, members: Members, other: Any = other) -> None:
            chosen = manifest if file == "manifest.json" else graph
            chosen.clear()
            chosen.update(other)

        message = refusal(forged(data, change))
        if path not in (("format",), ("format_version",)):
            found = re.match(r"m\.mtvm is altered: (\w+\.json): (\S+) (is|has|does not belong)", message)
            assert found is not None and found[1] == file, message
            where = names(path[:-1]) if isinstance(path[-1], int) else names(path)
            assert found[2].startswith(where) or where.startswith(found[2]), (message, where)


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff", b"[1", b"null", b"[]", b"NaN", b"[" * 100_000, b"1" * 100_000, b'"\\ud800"', b"{}"],
    ids=lambda text: repr(text[:8]),
)
@pytest.mark.parametrize("file", ["manifest.json", "graph.json"])
def test_json_that_is_none(file: str, text: bytes, data: bytes) -> None:
    members = members_of(data)
    manifest = json.loads(members.pop("manifest.json"))
    if file == "manifest.json":
        expected = "m.mtvm is not a minitvm library: its manifest cannot be read"
        assert refusal(zipped({file: text, **members})) == expected
    else:
        assert refusal(resealed(manifest, {**members, file: text})).startswith("m.mtvm is altered: graph.json")


@pytest.mark.parametrize("old", [b'"threads"', b'"kernels"', b"0"])
def test_a_key_twice_and_other_spellings_of_the_same(old: bytes, data: bytes) -> None:
    members = members_of(data)
    text = members["manifest.json"]
    for new in (b' "threads": 1, ' + old if old.startswith(b'"') else b"-0", b" " + old):
        assert refusal(zipped({**members, "manifest.json": text.replace(old, new, 1)})).startswith(
            "m.mtvm is altered: "
        )


def test_a_member_that_is_described_otherwise(data: bytes) -> None:
    for record in (
        None,
        [],
        {},
        {"bytes": 3},
        {"bytes": None, "sha256": ""},
        {"bytes": 1e400, "sha256": [], "more": 1},
    ):
        members = members_of(data)
        manifest = json.loads(members["manifest.json"])
        manifest["members"]["graph.json"] = record
        assert re.match(
            r"m.mtvm is altered: (graph.json has \d+ bytes, not |manifest.json does not say what graph.json is)",
            refusal(zipped({**members, "manifest.json": json.dumps(manifest).encode()})),
        )
        manifest["members"] = record
        assert refusal(zipped({**members, "manifest.json": json.dumps(manifest).encode()}))


FORGERIES: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "another shape": (
        lambda _, g: g["attrs"]["shape"][1].__setitem__(2, [1, 3, 800, 8]),
        "graph.json: attrs.shape[1][2][2] is 800, the code was compiled with 8",
    ),
    "another dtype": (
        lambda _, g: g["attrs"]["dltype"][1].__setitem__(2, "float64"),
        'graph.json: attrs.dltype[1][2] is "float64", the code was compiled with "float32"',
    ),
    "a value outside of the arena": (
        lambda _, g: g["attrs"]["storage_offset"][1].__setitem__(0, 1 << 20),
        "graph.json: attrs.storage_offset[1][0] is 1048576, the code was compiled with -1",
    ),
    "an operand from the future": (
        lambda _, g: g["nodes"][-1].update(inputs=[[99, 0, 0]]),
        "graph.json: nodes[{last}].inputs[0][0] is 99, the code was compiled with {last_input}",
    ),
    "a result from nowhere": (
        lambda _, g: g.update(heads=[[99, 0, 0]]),
        "graph.json: heads has 1 items, the code was compiled with 6",
    ),
    "a fraction": (
        lambda _, g: g["heads"][0].__setitem__(1, 0.0),
        "graph.json: heads[0][1] is 0.0, the code was compiled with 0",
    ),
    "no threads": (
        lambda m, _: m.update(threads=0),
        "manifest.json: threads is 0, the code was compiled with {threads}",
    ),
    "no plan": (lambda m, _: m.pop("plan"), "manifest.json: plan is missing"),
    "a longer plan": (lambda m, _: m["plan"].update(more=[]), "manifest.json: plan.more does not belong there"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_word_for_word(name: str, library: minitvm.Library, data: bytes) -> None:
    change, text = FORGERIES[name]
    nodes = library.graph.nodes
    known = {"last": len(nodes) - 1, "last_input": nodes[-1].inputs[0][0], "threads": library.threads}
    assert refusal(forged(data, lambda m, g, _: change(m, g))) == f"m.mtvm is altered: {text.format(**known)}"


# --- its parts --------------------------------------------------------------------------------------------------


def test_parts_of_other_libraries(data: bytes) -> None:
    """Kernels of the same names and of other sizes, as two models have them."""
    x, other = relay.var("x", shape=(2, 64)), relay.var("x", shape=(2, 640))
    small, large = (
        archive.to_bytes(built(relay.Function([v], relay.nn.relu(relay.exp(v)))).artifact) for v in (x, other)
    )
    names_ = members_of(small)
    assert names_.keys() == members_of(large).keys()
    (code,) = (name for name in names_ if name.startswith("code/kernel/"))

    def take(name: str) -> Callable[[Any, Any, Members], None]:
        return lambda _, __, members: members.update({name: members_of(large)[name]})

    kernel = code.removeprefix("code/kernel/").removesuffix(".o")
    other = refusal(forged(small, take(code)))
    assert other == f"m.mtvm is altered: the code of kernel {kernel!r} is not the code that its entry was made for"
    assert refusal(forged(small, take("code/entry.o"))).startswith("m.mtvm is altered: manifest.json: kernels.")
    assert refusal(forged(small, lambda _, __, m: m.update({"code/entry.o": m[code]}))) == (
        "m.mtvm is altered: code/entry.o holds no seal"
    )
    assert refusal(forged(small, lambda _, __, m: m.update({"code/more.o": m[code]}))) == (
        "m.mtvm is altered: code/more.o does not belong in it"
    )
    for gone in names_.keys() - {"manifest.json", "graph.json"}:
        assert refusal(forged(small, lambda _, __, m, gone=gone: m.pop(gone)))


def test_branches_in_each_others_place(data: bytes) -> None:
    names_ = [name for name in members_of(data) if name.startswith("branch/")]
    for one, two in itertools.permutations(names_, 2):
        text = refusal(forged(data, lambda _, __, m, one=one, two=two: m.update({one: m[two]})))
        node, attribute = one.removeprefix("branch/").removesuffix(".mtvm").split("/")
        assert text == f"m.mtvm is altered: {attribute} of {node!r} is not the branch that its entry was made for"


def test_a_lie_in_a_branch_of_a_branch(data: bytes) -> None:
    def lie(_: Any, graph: Any, __: Members) -> None:
        graph["attrs"]["shape"][1][0][0] += 1

    def inside(level: int) -> Callable[[Any, Any, Members], None]:
        def change(_: Any, __: Any, members: Members) -> None:
            name = next(n for n in members if n.startswith("branch/control_loop" if level == 2 else "branch/"))
            members[name] = forged(members[name], inside(level - 1) if level > 1 else lie)

        return change

    assert re.fullmatch(
        r"m\.mtvm:branch/control_loop/body\.mtvm:branch/control_if/\w+\.mtvm is altered: "
        r"graph\.json: attrs\.shape\[1\]\[0\]\[0\] is 9, the code was compiled with 8",
        refusal(forged(data, inside(2))),
    )


def test_parameters(library: minitvm.Library, data: bytes) -> None:
    members = members_of(data)
    length = len(members["params.bin"])
    assert length == sum(-(-a.nbytes // 64) * 64 for a in library.params.values())
    for wrong in (members["params.bin"][:-1], members["params.bin"] + bytes(64), b""):
        text = refusal(forged(data, lambda _, __, m, wrong=wrong: m.update({"params.bin": wrong})))
        begin = f"m.mtvm is altered: params.bin: it has {len(wrong)} bytes, "
        assert text == f"{begin}the code was compiled for parameters of {length}"


def test_parameters_lie_where_kernels_can_read_them(data: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.mtvm").write_bytes(data)
    loaded = minitvm.load(tmp_path / "m.mtvm")
    before = run(loaded)
    (tmp_path / "m.mtvm").write_bytes(bytes(len(data)))  # what is loaded is not the file any more
    bases = {name: value.base for name, value in loaded.params.items()}
    assert all(value.ctypes.data % 64 == 0 and bases[name] is not None for name, value in loaded.params.items())
    for have, want in zip(run(loaded), before, strict=True):
        np.testing.assert_array_equal(have, want)


# --- the seal ---------------------------------------------------------------------------------------------------


def test_the_seal_holds_what_native_code_relies_on(library: minitvm.Library) -> None:
    document = sealed(library.artifact.entry)
    assert document is not None
    for node in library.graph.nodes:
        if node.is_kernel:
            kernel = document["kernels"][node.func]
            assert kernel["inputs"] == [str(library.graph.type_of(entry)) for entry in node.inputs]
            assert kernel["results"] == [str(type_) for type_ in node.types]
            assert min(kernel["workspace"], kernel["workspace_per_thread"]) >= 0
    assert document["graph"] == json.loads(library.graph_json)
    assert document["code"].keys() == library.artifact.objects.keys() == document["kernels"].keys()


def test_a_seal_that_is_damaged_is_none(library: minitvm.Library) -> None:
    image = library.artifact.entry
    start = image.index(b"minitvm's seal")
    assert sealed(image[: start + 200]) is None
    assert sealed(image[: start + 16]) is None
    assert sealed(image[:start] + b"M" + image[start + 1 :]) is None
    for at in (*range(start - 1, start + 60), start + 500):
        assert sealed(image[:at] + bytes([image[at] ^ 0x20]) + image[at + 1 :]) is None
    assert sealed(b"") is None


def test_host_calls_that_cannot_be_saved_run_and_say_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_json, "_PLAIN", (bool,))  # as for attributes that only an operator of one's own has
    x = relay.var("x", shape=(None,))
    library = built(relay.Function([x], call_op("strided_slice", x, begin=(1,), end=(3,))))
    module = minitvm.GraphModule(library["default"]())
    module.run(x=np.arange(4, dtype="float32"))
    assert module.get_output(0).numpy().tolist() == [1.0, 2.0]
    with pytest.raises(LibraryError) as caught:
        library.save(tmp_path / "m.mtvm")
    assert caught.value.message == "host call strided_slice cannot be saved: an attribute is a int"
    assert not (tmp_path / "m.mtvm").exists()
