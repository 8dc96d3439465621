"""Runs that are told to end while they are under way: between kernels, in loops of Python's and in native ones."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from onnx import parser

import minitvm
import minitvm as ort
from minitvm.ort.errors import Fail

LOOP = """<ir_version: 8, opset_import: ["": 17]> g (int64 trips, bool going, float[64] x) => (float[64] y) {
    y = Loop (trips, going, x) <body = b (int64 i, bool before, float[64] v) => (bool after, float[64] w) {
        after = Identity (before)  one = Constant <value = float {1}> ()  w = Add (v, one)
    }>
}"""
ENDLESS = 2**62


def feeds(trips: int) -> dict[str, np.ndarray]:
    return {"trips": np.int64(trips), "going": np.array(True), "x": np.zeros(64, np.float32)}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("poison", ["0", "1"])
def test_a_loop_without_end_is_ended_from_another_thread(
    poison: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Natively; with poison, in Python."""
    monkeypatch.setenv("MINITVM_POISON", poison)
    session = ort.InferenceSession(parser.parse_model(LOOP).SerializeToString(), num_threads=threads)
    options = ort.RunOptions()
    for _ in range(2):
        session.run(None, feeds(3), options)  # made before anybody stops it
        timer = threading.Timer(0.05, lambda: setattr(options, "terminate", True))
        timer.start()
        with pytest.raises(Fail, match="the run's options say that it shall end"):
            session.run(None, feeds(ENDLESS), options)
        timer.join()
        options.terminate = False
        np.testing.assert_array_equal(session.run(None, feeds(5), options)[0], np.full(64, 5.0))
        np.testing.assert_array_equal(session.run(None, feeds(6))[0], np.full(64, 6.0))


@pytest.mark.parametrize("target", ["llvm", "interp"])
def test_no_kernel_begins_after_that(target: str) -> None:
    x = minitvm.relay.var("x", shape=(4,))
    library = minitvm.build(minitvm.Module.from_expr(minitvm.relay.nn.softmax(minitvm.relay.cumsum(x))), target)
    module = minitvm.GraphModule(library["default"](library.device()))
    options, instance = ort.RunOptions(), module.instance
    module.set_input("x", np.zeros(4, np.float32))

    def told_meanwhile() -> None:
        other = threading.Thread(target=setattr, args=(options, "terminate", True))
        other.start()
        other.join()

    def never() -> None:
        raise AssertionError("a step after the run was told to end")

    steps, instance.steps = instance.steps, [told_meanwhile, never]
    with pytest.raises(Fail), options.watch(instance):
        instance.run()
    assert not instance.has_run and not instance.stopped
    instance.steps = steps
    with pytest.raises(Fail), options.watch(instance):
        instance.run()
    options.terminate = False
    with options.watch(instance):
        instance.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), np.full(4, 0.25, np.float32))
