"""Loops that do not end: a limit that can be set, wherever a loop runs; sessions that go on after an error."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from minitvm import InferenceSession
from minitvm.errors import ConfigError, InputError, TypeInferenceError

pytestmark = pytest.mark.filterwarnings("ignore::minitvm.driver.program.HostCallWarning")

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
STEP = """step (int64 i, bool c, float[2] h) => (bool more, float[2] after) {
  top = ReduceMax<keepdims = 0>(h)
  more = Less(top, limit)
  after = Add(h, one)
}"""
ENDLESS = f"""g (float[2] x, float limit) => (float[2] y) {{
  one = Constant<value = float {{1.0}}>()
  go = Constant<value = bool {{1}}>()
  y = Loop ("", go, x) < body = {STEP} >
}}"""
STACKED = ENDLESS.replace("(float[2] y) {", "(float[2] y, float[k, 2] all) {").replace("y = Loop", "y, all = Loop")
STACKED = STACKED.replace("float[2] after)", "float[2] after, float[2] out)").replace(
    "one)\n}", "one)\n  out = Neg(h)\n}"
)
NESTED = f"""g (float[2] x, float limit) => (float[2] y) {{
  one = Constant<value = float {{1.0}}>()
  go = Constant<value = bool {{1}}>()
  twice = Constant<value = int64 {{2}}>()
  y = Loop (twice, go, x) <
    body = outer (int64 j, bool d, float[2] g) => (bool again, float[2] last) {{
      again = Identity(d)
      w = Loop ("", go, g) < body = {STEP} >
      last = Neg(w)
    }}
  >
}}"""


@pytest.mark.parametrize("target", ["llvm", "interp"])
@pytest.mark.parametrize("text", [ENDLESS, STACKED, NESTED], ids=["endless", "stacked", "nested"])
def test_the_limit_of_trips(text: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_MAX_TRIPS", "9")
    session = InferenceSession(parser.parse_model(HEAD + text), num_threads=1, target=target)
    feeds = {"x": np.zeros(2, np.float32), "limit": np.float32(np.inf)}
    with pytest.raises(InputError, match=r"control\.loop: more than 9 trips") as caught:
        session.run(None, feeds)
    assert "MINITVM_MAX_TRIPS" in str(caught.value) and 'from ONNX node "' in str(caught.value)
    found = session.run(None, {**feeds, "limit": np.float32(3 if text is NESTED else 8)})
    np.testing.assert_array_equal(found[0], np.full(2, -4 if text is NESTED else 9, np.float32))


def test_the_limit_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InferenceSession(parser.parse_model(HEAD + ENDLESS), num_threads=1)
    monkeypatch.setenv("MINITVM_MAX_TRIPS", "many")
    with pytest.raises(ConfigError, match="MINITVM_MAX_TRIPS is 'many', not an integer"):
        session.run(None, {"x": np.zeros(2, np.float32), "limit": np.float32(1)})


CHECKED = """g (float[n, 3] x, float[n] y, int64[2] at, seq(float[2]) parts)
  => (float[n, 3] z, float[2, 3] w, float[2] p) {
  ones = Constant<value = int64[1] {1}>()
  column = Unsqueeze(y, ones)
  z = Add(x, column)
  w = Gather<axis = 0>(x, at)
  first = Constant<value = int64 {0}>()
  p = SequenceAt(parts, first)
}"""


def test_a_session_goes_on_after_an_error() -> None:
    session = InferenceSession(parser.parse_model(HEAD + CHECKED), num_threads=1)
    x, y, parts = np.ones((2, 3), np.float32), np.ones(2, np.float32), [np.float32([4, 5])]
    good = {"x": x, "y": y, "at": np.array([0, 1]), "parts": parts}
    wrong: list[dict[str, object]] = [
        {"y": np.ones(3, np.float32)},
        {"at": np.array([0, 7])},
        {"parts": []},
        {"parts": None},
        {"x": x.astype(np.float64)},
        {"x": np.ones((2, 4), np.float32)},
    ]
    for changes in wrong:
        with pytest.raises(TypeInferenceError if "y" in changes else InputError):
            session.run(None, {**good, **changes})
        z, w, p = session.run(None, good)
        np.testing.assert_array_equal(z, x + 1)
        np.testing.assert_array_equal(w, x)
        np.testing.assert_array_equal(p, parts[0])
