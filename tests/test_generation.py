"""Decoders token by token: the same tokens as from the whole sequence again, and as ONNX Runtime's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import parser

import minitvm
from benchmarks.decoders import Decoder
from minitvm import generation
from minitvm.cli import cli
from minitvm.errors import ConfigError, InputError
from minitvm.generation import Sampling
from tests import small_decoders

SMALL = Decoder(layers=2, hidden=64, heads=4, groups=2, inner=96, vocabulary=100, longest=128)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("decoder") / "model.onnx"
    onnx.save(SMALL.model(), found)
    return found


@pytest.fixture(scope="module")
def session(path: Path) -> minitvm.InferenceSession:
    return minitvm.InferenceSession(path, num_threads=1)


def whole(session: minitvm.InferenceSession, ids: list[int], count: int) -> list[int]:
    """The likeliest tokens, all of the sequence anew for each."""
    known, logits = list(ids), session.get_outputs()[0].name
    for _ in range(count):
        [found] = session.run([logits], SMALL.feeds(np.array([known]), SMALL.empty()))
        known.append(int(found[0, -1].argmax()))
    return known[len(ids) :]


def test_the_likeliest_tokens_are_those_of_the_whole_sequence(session: minitvm.InferenceSession) -> None:
    ids = [3, 14, 15, 92, 65]
    got = minitvm.generate(session, ids, max_tokens=12)
    assert len(session.libraries) == 1
    assert got.tolist() == whole(session, ids, 12)


def test_masks_and_places_are_computed_once_for_all_layers(path: Path) -> None:
    session = minitvm.InferenceSession(path, num_threads=1)
    session.run(None, SMALL.feeds(np.array([[3, 14]]), SMALL.empty()))
    kernels = Counter(node.func for node in session.libraries[0].graph.nodes if node.is_kernel)
    once = {name: count for name, count in kernels.items() if {"iota", "extent", "range"} & set(name.split("_"))}
    ranges = sum(count for name, count in once.items() if "range" in name)
    assert ranges == 4, "of tokens, of lengths, and of places in two tables"
    assert len(once) >= 5 and {count for name, count in once.items() if "range" not in name} == {1}


def test_a_cache_in_place_is_as_one_that_grows(
    session: minitvm.InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.buffers == {n: n.replace("past_key_values", "present") for n in SMALL.empty()}
    how = {"max_tokens": 20, "temperature": 0.9, "seed": 1}
    for ids, spare in (([[5, 6, 7], [70, 1, 2]], 2), ([[5], [70]], 1)):  # of the second first as many places as heads
        monkeypatch.setattr(generation, "_SPARE", spare)  # memory is soon too little, again and again
        in_place = minitvm.generate(session, ids, **how)
        with monkeypatch.context() as growing:
            growing.setattr(type(session), "buffers", {})
            np.testing.assert_array_equal(minitvm.generate(session, ids, **how), in_place)


def test_a_cache_that_is_concatenated_lies_in_place_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "_SPARE", 3)
    found, how = [], {"max_tokens": 12, "temperature": 0.9, "seed": 1}
    for grown in (True, False):
        session = minitvm.InferenceSession(small_decoders.grows(), num_threads=1)
        assert set(session.grown) == {"past_keys", "past_values"}
        with monkeypatch.context() as growing:
            if not grown:
                growing.setattr(type(session), "grown", {})
            found.append(minitvm.generate(session, [[5, 6, 7], [9, 1, 2]], **how))
        assert len(session.libraries) == 1
    np.testing.assert_array_equal(*found)


def test_onnx_runtimes_sessions_say_the_same(session: minitvm.InferenceSession, path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    other = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ids = np.array([[5, 6, 7], [70, 1, 2]])
    for how in ({}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "seed": 3}):
        got, want = (minitvm.generate(one, ids, max_tokens=8, **how) for one in (session, other))
        np.testing.assert_array_equal(got, want)


def test_a_stop_ends_a_sequence_and_all_stops_the_run(session: minitvm.InferenceSession) -> None:
    ids = [3, 14, 15]
    free = minitvm.generate(session, ids, max_tokens=9)
    ended = minitvm.generate(session, ids, max_tokens=9, stop=[int(free[4])])
    first = free.tolist().index(free[4])
    np.testing.assert_array_equal(ended, free[: first + 1])
    both = minitvm.generate(session, [ids, [9, 9, 9]], max_tokens=9, stop=[int(free[0])])
    assert set(both[0].tolist()) == {int(free[0])}


def test_tokens_come_one_by_one(session: minitvm.InferenceSession) -> None:
    tokens = minitvm.stream(session, [1, 2], max_tokens=5)
    first = next(tokens)
    assert first.shape == (1,) and first.dtype == np.int64
    assert len(list(tokens)) == 4
    assert minitvm.generate(session, [1, 2], max_tokens=0).shape == (0,)


def test_a_model_without_a_cache_reads_all_of_it_again() -> None:
    got = minitvm.generate(minitvm.InferenceSession(small_decoders.sums()), [1, 2], max_tokens=5)
    known = [1, 2]
    for _ in range(5):
        known.append(sum(known) % 10)
    assert got.tolist() == known[2:]


# --- draws --------------------------------------------------------------------------------------------------------


def shares(sampling: Sampling, logits: list[float], count: int = 20_000) -> np.ndarray:
    random = np.random.default_rng(1)
    drawn = sampling.drawn(np.tile(np.array(logits, np.float32), (count, 1)), random)
    return np.bincount(drawn, minlength=len(logits)) / count


def test_draws_have_the_shares_that_they_should() -> None:
    logits = np.log([0.5, 0.05, 0.3, 0.15]).tolist()
    np.testing.assert_allclose(shares(Sampling(1.0), logits), [0.5, 0.05, 0.3, 0.15], atol=0.02)
    np.testing.assert_allclose(shares(Sampling(1.0, top_k=2), logits), [0.625, 0, 0.375, 0], atol=0.02)
    np.testing.assert_allclose(shares(Sampling(1.0, top_p=0.85), logits), [10 / 19, 0, 6 / 19, 3 / 19], atol=0.02)
    np.testing.assert_allclose(shares(Sampling(0.5, top_k=2), logits), [25 / 34, 0, 9 / 34, 0], atol=0.02)
    assert shares(Sampling(), logits)[0] == shares(Sampling(1.0, top_p=0.01), logits)[0] == 1


def test_large_logits_and_forbidden_tokens() -> None:
    assert shares(Sampling(1.0), [1e30, -1e30, float("-inf")], 50)[0] == 1
    assert shares(Sampling(1e-6), [2.0, 1.0, float("-inf")], 50)[0] == 1


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.5},
            {"max_tokens": -1}]
)  # fmt: skip
def test_settings_that_say_nothing(session: minitvm.InferenceSession, how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(how))):
        minitvm.generate(session, [1], **how)


@pytest.mark.parametrize("ids", [[], [[]], [1.5], "text", [[[1]]], [[1, 2], [3]]])
def test_prompts_that_are_none(session: minitvm.InferenceSession, ids: Any) -> None:
    with pytest.raises(InputError, match="the prompt is not token numbers"):
        minitvm.generate(session, ids)


def test_a_token_that_the_model_does_not_know(session: minitvm.InferenceSession) -> None:
    with pytest.raises(InputError, match="100"):
        minitvm.generate(session, [3, 100])
    assert minitvm.generate(session, [3, 99], max_tokens=1).shape == (1,)


def test_models_that_are_no_decoders() -> None:
    def session_of(text: str) -> minitvm.InferenceSession:
        return minitvm.InferenceSession(parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}'))

    with pytest.raises(InputError, match="no input 'input_ids'"):
        minitvm.generate(session_of("g (float[n] x) => (float[n] y) { y = Exp(x) }"), [1])
    lonely = "g (int64[b, n] input_ids, float[b, p] past) => (float[b, n] logits) { logits = Cast<to = 1>(input_ids) }"
    with pytest.raises(InputError, match="1 inputs and 0 outputs"):
        minitvm.generate(session_of(lonely), [1])


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def words(path: Path) -> Path:
    pytest.importorskip("tokenizers")
    found = path.with_name("tokenizer.json")
    found.write_text(small_decoders.tokenizer("w", SMALL.vocabulary))
    return found


def test_the_command_goes_on_with_a_text(path: Path, words: Path, session: minitvm.InferenceSession) -> None:
    result = CliRunner().invoke(cli, ["run", str(path), "--generate", "w3 w14 w15", "--max-tokens", "6", "-t", "1"])
    assert result.exit_code == 0, result.output
    tokens = minitvm.generate(session, [3, 14, 15], max_tokens=6)
    assert " ".join(f"w{token}" for token in tokens) in result.output
    assert "3 tokens of prompt" in result.output and "tokens a second" in result.output


def test_the_command_says_what_is_wrong(path: Path, words: Path, tmp_path: Path) -> None:
    def output(*how: str) -> str:
        result = CliRunner().invoke(cli, ["run", str(path), *how])
        assert result.exit_code, result.output
        return result.output + str(result.exception)

    assert "does nothing without --generate" in output("--top-k", "3")
    assert "there is no file" in output("--generate", "w1", "--tokenizer", str(tmp_path / "nothing.json"))
    (broken := tmp_path / "broken.json").write_text(json.dumps({"no": "tokenizer"}))
    assert "is no tokenizer" in output("--generate", "w1", "--tokenizer", str(broken))
    assert "no tokens" in output("--generate", "", "--tokenizer", str(words))
