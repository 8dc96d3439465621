"""Random models of functions, branches, loops and old operator sets, as numpy has them.

``python tests/frontend/test_drawn_bodies.py 5000`` tries more of them.
"""

from __future__ import annotations

import sys
import traceback

import numpy as np
import pytest
from drawn_bodies import SHAPE, Drawer, model_of, results

import minitvm


def check(seed: int, level: int = 3) -> None:
    """In a session: with the defaults, with others, with the defaults again."""
    drawn = Drawer(seed).model()
    session = minitvm.InferenceSession(model_of(drawn, seed), opt_level=level, num_threads=1)
    names = {f"v{i}": value for i, value in enumerate(drawn.main.inputs, 1)}
    rng = np.random.default_rng(seed)
    for fed in (False, True, False):
        given = {name: rng.standard_normal(SHAPE).astype("float32") for name in names}
        left = {name for name, value in names.items() if value in drawn.defaults and not fed}
        feeds = {name: array for name, array in given.items() if name not in left}
        env = {value: drawn.defaults[value] if name in left else given[name] for name, value in names.items()}
        expected = results(drawn.main, env)
        for found, right in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4, strict=True)


@pytest.mark.parametrize("seed", range(20))
def test_as_numpy_has_it(seed: int) -> None:
    check(seed, level=(0, 3)[seed % 2])


if __name__ == "__main__":
    failed = 0
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    for number in range(first, first + int(sys.argv[1])):
        try:
            check(number, (0, 3)[number % 2])
        except Exception:
            failed += 1
            print(f"--- {number}\n{traceback.format_exc(limit=-3)}", flush=True)
    print(f"{sys.argv[1]} models, {failed} wrong")
