"""``minitvm run --generate``: text from a decoder, as it is drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minitvm.cli import common
from minitvm.cli.building import Chosen
from minitvm.cli.common import stdout
from minitvm.cli.options import SUFFIX
from minitvm.errors import ConfigError, InputError, no_file
from minitvm.generation import stream
from minitvm.session import InferenceSession

_ENDS = ("</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>")
"""Tokens that end a text, by the names that tokenizers give them."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer makes of the first bytes of a character whose last ones are in the next token."""


def generate(model: Path, chosen: Chosen, prompt: str, tokenizer: Path, **how: Any) -> None:
    """Writes what follows the prompt, and how fast it came."""
    words = _tokenizer(tokenizer)
    ids = words.encode(prompt).ids
    if not ids:
        raise InputError("the prompt has no tokens", hint="give some text: --generate 'Once upon a time'")
    stop = [number for number in map(words.token_to_id, _ENDS) if number is not None]
    session = _session(model, chosen)
    start = time.perf_counter()
    times: list[float] = []
    stdout.print(prompt, end="", soft_wrap=True)
    for piece in _pieces(words, ids, stream(session, ids, stop=stop, **how), stop, times):
        stdout.print(piece, end="", soft_wrap=True)
    stdout.print()
    if times:
        rate = f", then {(len(times) - 1) / (times[-1] - times[0]):.1f} tokens a second" if len(times) > 1 else ""
        stdout.print(f"{len(ids)} tokens of prompt in {times[0] - start:.2f} s{rate}")


def _session(model: Path, chosen: Chosen) -> InferenceSession:
    if model.suffix == SUFFIX:
        return InferenceSession(model, num_threads=chosen.threads)
    with common.compiling(f"compiling {model.name}") as progress:
        how: dict[str, Any] = {"num_threads": chosen.threads, "opt_level": chosen.opt_level, "on_progress": progress}
        return InferenceSession(model, target=chosen.target, **how)


def _pieces(words: Any, ids: list[int], tokens: Iterator[Any], stop: list[int], times: list[float]) -> Iterator[str]:
    """Text of new tokens, as soon as its characters are whole; ``times``: when each token came."""
    known, shown = list(ids), words.decode(ids)
    for (token,) in tokens:
        times.append(time.perf_counter())
        if token in stop:
            break
        known.append(int(token))
        text = words.decode(known)
        if not text.endswith(_BROKEN):
            yield text[len(shown) :]
            shown = text
    yield words.decode(known)[len(shown) :]


def _tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError("the package tokenizers is not installed", hint="pip install tokenizers") from None
    if not path.is_file():
        raise ConfigError(no_file(path), hint="give it: --tokenizer path/to/tokenizer.json")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more particular
        raise ConfigError(f"{path} is no tokenizer: {error}", hint="give a model's tokenizer.json") from None
