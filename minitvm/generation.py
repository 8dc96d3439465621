"""Text from a decoder: a session with a KV cache, run over the prompt (prefill), then token by token (decode).

for token in minitvm.stream(session, ids, max_tokens=100, temperature=0.8, top_p=0.95): ...
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from minitvm.errors import ConfigError, InputError, listing, stage
from minitvm.ir.types import numpy_dtype
from minitvm.ort.values import OrtValue, dtype_of_text

IDS, MASK, PLACES = "input_ids", "attention_mask", "position_ids"
"""Inputs of a decoder beside its cache, by the names that exporters give them."""
_SPARE = 64
"""Places that a buffer has for more than it was made for."""
_SLACK = 16
"""Rows that a cache of a window has for more, so that tokens are seldom moved."""


class Session(Protocol):
    """What is asked of a session, minitvm's or ONNX Runtime's."""

    def get_inputs(self) -> Sequence[Any]: ...

    def get_outputs(self) -> Sequence[Any]: ...

    def run(self, output_names: Sequence[str] | None, input_feed: dict[str, Any]) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Sampling:
    """The way in which a token is drawn from its logits: greedy, top-k, or nucleus sampling.

    ``temperature`` 0 takes the likeliest.  ``top_k``: of so many likeliest ones (Fan et al. 2018, arXiv:1805.04833);
    ``top_p``: of the fewest likeliest that have this share together (Holtzman et al. 2020, arXiv:1904.09751).
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature is {self.temperature!r}, not a number from 0 on")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k!r}, but one token at least is drawn from")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p!r}, not a share above 0 and up to 1")

    def drawn(self, logits: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """A token for each row of ``logits``: (batch, vocabulary) floats -> (batch,) int64."""
        if not self.temperature:
            return np.asarray(logits.argmax(-1))
        return np.array([self._one(row.astype(np.float64), random) for row in logits])

    def _one(self, logits: np.ndarray, random: np.random.Generator) -> int:
        order = np.argsort(-logits, kind="stable")[: self.top_k]
        likely = logits[order] / self.temperature
        shares = np.exp(likely - likely[0])
        shares /= shares.sum()
        kept = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
        return int(random.choice(order[:kept], p=shares[:kept] / shares[:kept].sum()))


class Cache(Protocol):
    """Keys and values between runs."""

    def run(self, session: Any, wanted: Sequence[str], feeds: dict[str, Any], total: int) -> np.ndarray:
        """The first of the ``wanted`` outputs; the cache has the others' values, of ``total`` places, afterwards."""


@dataclass
class Grown:
    """New arrays after every run, as long as what they hold."""

    arrays: dict[str, np.ndarray]

    def run(self, session: Any, wanted: Sequence[str], feeds: dict[str, Any], total: int) -> np.ndarray:
        first, *caches = session.run(wanted, {**feeds, **self.arrays})
        self.arrays = dict(zip(self.arrays, caches, strict=True))
        return np.asarray(first)


class Buffers:
    """Memory with room for more, which runs write new places into: what a session's ``buffers`` are bound to as it is,
    and of what is ``grown`` the places in use (:attr:`InferenceSession.grown`).

    ``outputs``: what each input is handed out as; ``empty``: the inputs of no places; ``room``: how many there are at
    first.
    """

    def __init__(
        self,
        session: Any,
        outputs: Mapping[str, str],
        first: str,
        empty: Mapping[str, np.ndarray],
        *,
        grown: bool = False,
        room: int = 0,
        new_value: Callable[..., Any] = OrtValue.ortvalue_from_shape_and_type,
    ) -> None:
        self._outputs, self._first, self._is_grown, self._new = outputs, first, grown, new_value
        self._axes = {name: array.shape.index(0, 1) for name, array in empty.items()}
        self._arrays, self._values = dict(empty), dict[str, Any]()
        self._room, self._used, self._past = 0, 0, dict[str, Any]()
        self._binding = session.io_binding()
        self._binding.bind_output(first)
        if room:
            self._grow(room)

    def run(self, session: Any, wanted: Sequence[str], feeds: dict[str, Any], total: int) -> np.ndarray:
        if total > self._room:
            self._grow(max(total + _SPARE, 2 * self._room))
        places = self._first_places(total) if self._is_grown else {}
        past = self._past or (self._first_places(self._used) if places else {})
        for name, present in places.items():
            self._bind(name, past[name], present)
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, array)
        self._binding.bind_output(self._first)  # ONNX Runtime keeps the memory of the last run
        session.run_with_iobinding(self._binding)
        self._used, self._past = total, places
        return np.asarray(self._binding.get_outputs()[0].numpy())

    def _first_places(self, count: int) -> dict[str, Any]:
        return {name: value.first(count, self._axes[name]) for name, value in self._values.items()}

    def _bind(self, name: str, past: Any, present: Any) -> None:
        self._binding.bind_ortvalue_input(name, past)
        self._binding.bind_ortvalue_output(self._outputs[name], present)

    def _grow(self, room: int) -> None:
        """To so many places, all of them with what there is in front."""
        for name, old in self._arrays.items():
            axis = self._axes[name]
            shape = (*old.shape[:axis], room, *old.shape[axis + 1 :])
            self._values[name] = value = self._new(shape, old.dtype)
            self._arrays[name] = value.numpy()
            np.moveaxis(self._arrays[name], axis, 0)[: self._room] = np.moveaxis(old, axis, 0)
            self._bind(name, value, value)
        self._room, self._past = room, {}


class Decoder:
    """A session's inputs and outputs by what they are for: token numbers, a mask, places, and the cache.

    A cache's input and output are paired by name, ``past_key_values.0.key`` and ``present.0.key``, else by their order.
    :class:`InputError` where the model has inputs of another kind.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        inputs, outputs = list(session.get_inputs()), [output.name for output in session.get_outputs()]
        self._inputs = {value.name: value for value in inputs}
        caches = [value.name for value in inputs if value.name not in (IDS, MASK, PLACES)]
        if IDS not in self._inputs or not outputs:
            raise InputError(
                f"the model is no decoder: it has no input {IDS!r}",
                where=[f"its inputs: {listing(self._inputs)}"],
                hint=f"token numbers are given as {IDS!r}; rename the input, or run the session yourself",
            )
        self.logits = "logits" if "logits" in outputs else outputs[0]
        presents = [name for name in outputs if name != self.logits]
        self._caches = _paired(caches, presents)
        self._windows = getattr(session, "windows", {})
        self._wanted = [self.logits, *self._caches.values()]
        self._is_grown, self._is_held = (
            bool(self._caches) and getattr(session, kind, {}) == self._caches for kind in ("grown", "buffers")
        )

    def empty(self, batch: int) -> Cache:
        """A cache of nothing: of its open dimensions the first is the batch, and others are 0."""
        found = {name: self._empty(self._inputs[name], batch) for name in self._caches}
        one_length = all(array.shape[1:].count(0) == 1 for array in found.values())
        if not one_length or not (self._is_grown or self._is_held):
            return Grown(found)
        return Buffers(self._session, self._caches, self.logits, found, grown=self._is_grown)

    def _empty(self, value: Any, batch: int) -> np.ndarray:
        window = self._windows.get(value.name, -_SLACK) + _SLACK
        shape = [d if isinstance(d, int) else window if axis else batch for axis, d in enumerate(value.shape)]
        if all(isinstance(d, int) for d in value.shape[1:]):
            raise InputError(f"cache {value.name!r} has no open length: {value.shape}")
        return np.zeros(shape, self._dtype(value))

    def _dtype(self, value: Any) -> Any:
        return numpy_dtype(dtype_of_text(value.type))

    def step(self, ids: np.ndarray, cache: Cache, past: int) -> np.ndarray:
        """Runs new tokens behind ``past`` others, which the cache has afterwards: (batch, n) int64 -> the last one's
        logits (batch, vocabulary).  Without a cache ``ids`` are all tokens."""
        (batch, count), known = ids.shape, self._inputs
        feeds: dict[str, Any] = {IDS: ids.astype(self._dtype(known[IDS]))}
        if MASK in known:
            feeds[MASK] = np.ones((batch, past + count), self._dtype(known[MASK]))
        if PLACES in known:
            places = np.arange(past, past + count, dtype=self._dtype(known[PLACES]))
            feeds[PLACES] = np.broadcast_to(places, (batch, count)) if len(known[PLACES].shape) == 2 else places
        logits = cache.run(self._session, self._wanted, feeds, past + count)
        return logits[:, -1] if logits.ndim == 3 else logits

    @property
    def has_cache(self) -> bool:
        return bool(self._caches)


def _paired(inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """By input the output that it is fed with next."""
    plain = {_plain(name): name for name in outputs}
    by_name = {name: plain.get(_plain(name), "") for name in inputs}
    if "" not in by_name.values():
        return by_name
    if len(inputs) == len(outputs):
        return dict(zip(inputs, outputs, strict=True))
    raise InputError(
        f"the model's cache has {len(inputs)} inputs and {len(outputs)} outputs",
        where=[f"inputs: {listing(inputs)}", f"outputs: {listing(outputs)}"],
        hint=f"a decoder has {IDS!r}, perhaps {MASK!r} and {PLACES!r}, and a cache of as many inputs as outputs",
    )


def _plain(name: str) -> str:
    for word in ("past_key_values", "present_key_values", "past", "present"):
        name = name.replace(word, "")
    return name.strip("._")


def stream(
    session: Session,
    ids: Any,
    *,
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    stop: Sequence[int] = (),
    seed: int | None = None,
) -> Iterator[np.ndarray]:
    """New tokens, one of each sequence at a time: (batch,) int64.

    ``ids``: the prompt, (n,) or (batch, n) integers, as long for each sequence.  Ends after ``max_tokens``, or when
    each sequence has had a token of ``stop``, which is handed out and then stands for what follows it.
    ``temperature``, ``top_k`` and ``top_p`` as in :class:`Sampling`; ``seed``: draws are the same again.

    Raises :class:`InputError` for a model that is no decoder, and for a prompt that is none, :class:`ConfigError` for
    settings that are no numbers of their kind, and what runs of the session raise.
    """
    prompt, decoder = _prompt(ids), Decoder(session)
    sampling = Sampling(temperature, top_k, top_p)
    if operator.index(max_tokens) < 0:
        raise ConfigError(f"max_tokens is {max_tokens}, less than none")
    return _tokens(decoder, prompt, max_tokens, sampling, np.array(stop, np.int64), np.random.default_rng(seed))


def _prompt(ids: Any) -> np.ndarray:
    try:
        found = np.atleast_2d(np.asarray(ids))
    except ValueError:  # lists of several lengths
        found = np.empty(0, object)
    if found.ndim != 2 or found.dtype.kind not in "iu" or not found.size:
        raise InputError(
            "the prompt is not token numbers of a sequence, or of some that are as long",
            where=[f"{ids!r:.100}"],
            hint="give a list of whole numbers, or a list of such lists",
        )
    return found


def _tokens(
    decoder: Decoder, ids: np.ndarray, most: int, sampling: Sampling, stop: np.ndarray, random: np.random.Generator
) -> Iterator[np.ndarray]:
    batch, past = ids.shape[0], 0
    cache, ended = decoder.empty(batch), np.zeros(batch, bool)
    tokens = np.zeros(batch, np.int64)
    for _ in range(most):
        logits = decoder.step(ids, cache, past)
        tokens = np.where(ended, tokens, sampling.drawn(logits, random)).astype(np.int64)
        yield tokens
        ended |= np.isin(tokens, stop)
        if ended.all():
            return
        if decoder.has_cache:
            ids, past = tokens[:, None], past + ids.shape[1]
        else:
            ids = np.concatenate([ids, tokens[:, None].astype(ids.dtype)], axis=1)


@stage("generating")
def generate(session: Session, ids: Any, **how: Any) -> np.ndarray:
    """All new tokens as one array: (n,) int64 for a prompt of one sequence, else (batch, n); as :func:`stream`."""
    found = list(stream(session, ids, **how))
    tokens = np.stack(found, axis=1) if found else np.zeros((len(np.atleast_2d(ids)), 0), np.int64)
    return tokens[0] if np.ndim(ids) == 1 else tokens
