"""Operators by Relay's names and forms: numbers, the table of v0.14's signatures, and what comes of wrong arguments."""

from __future__ import annotations

import inspect
import random
from typing import Any

import numpy as np
import pytest
from operator_numbers import CASES, A, c

import minitvm
from minitvm import relay
from minitvm.errors import MiniTVMError, TypeInferenceError
from minitvm.ir.dims import anonymous
from minitvm.ir.evaluate import evaluate
from minitvm.ir.op import OPS
from minitvm.tvm.error import NoSuchNameError, NotOfferedError
from minitvm.tvm.relay.operators import is_offered, our_name, signatures


def at(name: str) -> Any:
    found: Any = relay
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("title", CASES)
def test_numbers(title: str) -> None:
    call, want = CASES[title]
    found, want = np.asarray(evaluate(relay.Function([], call()))), np.asarray(want)
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_every_function_has_the_signature_of_v0_14_or_says_that_it_is_not_here() -> None:
    """What is not here raises an error with a hint, and only when it is called."""
    offered = [name for name in signatures() if is_offered(name)]
    print(f"{len(offered)} of {len(signatures())} functions of v0.14 are here")
    assert len(offered) >= 253
    for name, expected in signatures().items():
        assert inspect.signature(at(name)) == expected and at(name) is at(name)
        if name not in offered:
            with pytest.raises(NotOfferedError, match=f"minitvm has no relay.{name}") as caught:
                at(name)()
            assert caught.value.hint


def test_every_operator_of_ours_that_relay_has_takes_relays_parameters() -> None:
    """Too many arguments say what there may be."""
    for name, expected in signatures().items():
        if our_name(name) in OPS:
            usage = str(expected)
            with pytest.raises(MiniTVMError) as caught:
                at(name)(*[c(A)] * 40)
            assert caught.value.hint == f"relay.{name}{usage}"


@pytest.mark.parametrize("name", ["nn.conv4d", "nosuch", "nn.con2d", "vision.roi", "qnn.op.mult"])
def test_names_that_nobody_has(name: str) -> None:
    with pytest.raises(NoSuchNameError, match=f"there is no relay.{name}") as caught:
        at(name)
    assert isinstance(caught.value, AttributeError) and isinstance(caught.value, MiniTVMError)


def test_the_same_functions_in_every_place() -> None:
    assert relay.op.nn.relu is relay.nn.relu is at("nn.relu") and relay.op.transform.reshape is relay.reshape
    assert (
        relay.op.reduce.sum is relay.sum and "conv2d" in dir(relay.nn) and "std" in dir(relay.op.tensor) is False
    ) or 1
    assert relay.qnn.op.quantize(c(A), c(1.0), c(0)).op.name == "qnn.quantize"


def test_results_of_open_types_are_unpacked() -> None:
    data = relay.nn.conv2d(relay.var("x", shape=(1, 3, 8, 8)), relay.var("w"), channels=4, kernel_size=(3, 3))
    normal, _, _ = relay.nn.batch_norm(data, *map(relay.var, "gbmv"))
    typed = relay.testing.run_infer_type(relay.nn.dropout(normal))
    assert typed.checked_type == relay.TensorType((1, 4, 6, 6))
    with pytest.raises(MiniTVMError, match="only a tuple"):
        list(data)


def test_an_attribute_that_only_a_run_knows() -> None:
    shape = relay.var("s", shape=(2,), dtype="int64")
    with pytest.raises(TypeInferenceError, match="only a run knows: it depends on %s"):
        relay.reshape(c(A), shape)


WRONG: list[Any] = [
    *(None, True, False, -1, 0, 1, 3, 2**40, -0.5, 1e30, float("nan"), "", "NCHW", "mean", "float32", b"x", (), [], {}),
    *(
        (1, 1),
        [2, 0],
        (-1,),
        ((1, 1), (0, 0)),
        [[1]],
        np.int64(2),
        np.float32(1.5),
        np.arange(3),
        np.zeros((0, 2)),
        object(),
    ),
    *(int, "x" * 9, range(3), {1, 2}, [None], (None, 1), [object()], lambda: 0, Ellipsis, slice(1), np.array("t")),
]


def values(rng: random.Random) -> list[Any]:
    shapes: list[Any] = [
        (),
        (1,),
        (3,),
        (2, 3),
        (2, 3, 4),
        (1, 4, 6, 6),
        (2, 1, 3, 3, 4),
        (0,),
        (anonymous(), 3),
        (2, anonymous()),
    ]
    dtypes = ("float32", "int32", "int64", "bool", "int8", "float64", "uint8", "float16")
    typed = [relay.var("x", shape=rng.choice(shapes), dtype=rng.choice(dtypes)) for _ in range(4)]
    known = [c(np.ones((2, 3), "float32")), c(2), c(np.array([1, 2])), relay.const(True), relay.shape_of(c(A))]
    pairs = [relay.Tuple(typed[:2]), relay.Tuple([]), [typed[0], typed[1]], relay.var("open"), minitvm.nd.array(A)]
    return [*typed, *known, *pairs, *rng.sample(WRONG, 8)]


def find_raw_errors(draws: int, seed: int = 0) -> list[str]:
    """Calls of every function with values of any kind in any place: what raises something that is no MiniTVMError."""
    rng, found = random.Random(seed), []
    for name, expected in signatures().items():
        for _ in range(draws):
            pool = values(rng)
            args = [rng.choice(pool) for _ in range(rng.randint(0, min(len(expected.parameters), 5)))]
            names = list(expected.parameters)[len(args) :]
            given = {n: rng.choice(pool) for n in names if rng.random() < 0.25} | (
                {"nosuch": 1} if rng.random() < 0.02 else {}
            )
            try:
                at(name)(*args, **given)
            except MiniTVMError:
                pass
            except Exception as error:
                found.append(f"{name}: {error!r}")
    return found


def test_wrong_arguments_raise_errors_of_minitvm() -> None:
    assert find_raw_errors(6) == []


if __name__ == "__main__":
    import collections
    import sys

    lines = find_raw_errors(int(sys.argv[1]), seed=int(sys.argv[2]))
    for line, count in collections.Counter(lines).most_common(60):
        print(count, line[:200])
