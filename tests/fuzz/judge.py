"""The verdict on a case: minitvm's results against those of its peers.  Tolerances follow from the dtype; where they
are exceeded, from the case's condition."""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz import peers, subject
from tests.fuzz.case import Arrays, Case, Config, is_float, plain, pruned
from tests.fuzz.freedom import REFUSALS, SINGLE, Freedom
from tests.fuzz.peers import Declines, Question
from tests.fuzz.subject import Raised, Refused, Task
from tests.fuzz.widened import widened, widened_feed
from tests.fuzz.worker import Crash, Hang, Worker

TOLERANCE = {"bfloat16": (3e-2, 4e-3), "float16": (4e-3, 5e-4), "float32": (1e-5, 1e-6), "float64": (1e-9, 1e-10)}
"""Relative to the element, and to the largest element: roundings of some nodes, and of a sum of some hundred terms.
What lies further off is measured by how far the graph's own rounding moves it."""
CONDITION = 10.0
"""How many times further than the moved evaluations a result may lie: there are few of them, and a sum rounds as often
as it has terms."""


def difference(mine: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str | None:
    """What differs first, in words; ``None`` where all results agree."""
    if len(mine) != len(theirs):
        return f"{len(mine)} results where {len(theirs)} are expected"
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        what = _type_difference(a, b) or _value_difference(a, b, near(a, b))
        if what:
            return f"output {i}: {what}"
    return None


def _type_difference(a: np.ndarray, b: np.ndarray) -> str | None:
    if a.shape != b.shape:
        return f"shape {a.shape} where {b.shape} is expected"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype} where {b.dtype} is expected"
    return None


def _value_difference(a: np.ndarray, b: np.ndarray, fine: np.ndarray) -> str | None:
    if fine.all():
        return None
    wrong = np.argwhere(~np.atleast_1d(fine))
    at = tuple(int(i) for i in wrong[0])
    where = f"the first at {at}: {np.atleast_1d(a)[at]!s} where {np.atleast_1d(b)[at]!s} is expected"
    return f"{len(wrong)} of {fine.size} elements differ, {where}"


def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elements that are equal, or finite and within the dtype's tolerance; none where the types differ."""
    if _type_difference(a, b):
        return np.zeros(a.shape, bool)
    if not is_float(a):
        return np.asarray(a == b)
    rtol, atol = TOLERANCE[a.dtype.name]
    a, b = plain(a), plain(b)
    with np.errstate(all="ignore"):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        bound = rtol * np.abs(wide_b) + atol * _largest(wide_b) + _subnormal(a.dtype)
        close = np.isfinite(wide_b) & (np.abs(wide_a - wide_b) <= bound)
        return np.asarray((a == b) | close | (np.isnan(a) & np.isnan(b)))


def _as_near(mine: np.ndarray, plainly: np.ndarray, exact: np.ndarray | None) -> np.ndarray:
    """Floats that lie about as near to the exact result as an evaluation without rewrites does: no further than twice
    its distance there, or than is usual for the whole result."""
    if exact is None or exact.shape != mine.shape or plainly.shape != mine.shape or not is_float(mine):
        return np.zeros(mine.shape, bool)
    with np.errstate(all="ignore"):
        wide, others = plain(mine).astype(np.float64), plain(plainly).astype(np.float64)
        distance = np.abs(others - exact)
        usual = float(np.median(distance[np.isfinite(distance)])) if np.isfinite(distance).any() else 0.0
        return np.asarray((np.abs(wide - exact) <= 2 * distance + usual) & np.isfinite(wide) & np.isfinite(others))


def _subnormal(dtype: np.dtype[Any]) -> float:
    """What subnormal numbers may differ by: they have few digits."""
    return float(np.finfo(dtype).tiny) / 64


def _largest(a: np.ndarray) -> float:
    """The largest everyday magnitude: the ends of the range would hide every difference."""
    magnitudes = np.abs(a[np.isfinite(a)])
    usual = magnitudes[magnitudes < 1e4]
    return float(usual.max(initial=0.0))


def within_condition(a: np.ndarray, evaluations: Sequence[np.ndarray], digits: str = "") -> np.ndarray:
    """Elements that lie as near to an evaluation as the graph's own roundings move it, in some factor.

    ``digits``: the dtype whose digits the result has, where these are fewer than its own.
    ``evaluations`` are that of the graph as it is, and those with its roundings moved.  Where these disagree about a
    shape, or what is finite, the case is on an edge, and any result is.
    """
    exact, *perturbed = (plain(np.asarray(e)) for e in evaluations)
    if any(p.shape != exact.shape for p in perturbed):
        return np.ones(a.shape, bool)
    if a.shape != exact.shape or not perturbed:
        return np.zeros(a.shape, bool)
    tolerance = TOLERANCE.get(digits or a.dtype.name, (0.0, 0.0))
    return _within(plain(a), exact, np.stack(perturbed), tolerance)


def _within(a: np.ndarray, exact: np.ndarray, perturbed: np.ndarray, tolerance: tuple[float, float]) -> np.ndarray:
    edge = np.any(np.isfinite(perturbed) != np.isfinite(exact), axis=0)
    if a.dtype.kind == "b":
        return np.asarray((a == exact) | np.any(perturbed != exact, axis=0))
    if a.dtype.kind != "f":
        return np.asarray(_between(a, exact, perturbed) | edge)
    with np.errstate(all="ignore"):
        rtol, atol = tolerance
        bound = _clipped(exact, a.dtype)
        moved = np.max(np.abs(_clipped(perturbed, a.dtype) - bound), axis=0)
        slack = rtol * np.abs(bound) + atol * _largest(bound) + CONDITION * moved
        return np.asarray((np.abs(_clipped(a, a.dtype) - bound) <= slack) | (np.isnan(a) & np.isnan(exact)) | edge)


def _between(a: np.ndarray, exact: np.ndarray, perturbed: np.ndarray) -> np.ndarray:
    """Integers as far from the exact one as those perturbed are from each other."""
    all_of = np.concatenate([exact[None], perturbed]).astype(np.float64)
    low, high = all_of.min(0), all_of.max(0)
    return np.asarray((a == exact) | ((low < high) & (a >= 2 * low - high) & (a <= 2 * high - low)))


def _clipped(exact: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    most = float(np.finfo(dtype).max)
    return np.clip(exact.astype(np.float64), -most, most)


SECONDS = 60.0
"""Of computing: what minitvm or a peer takes longer for hangs."""
PEERS = ("onnxruntime", "onnx")
"""In the order in which they are asked."""
MISFITS = ("TypeInferenceError", "FrontendError")
"""Of errors, those that say that shapes do not go together: of types, and of sizes among a node's constants."""
INVALID = "invalid for ONNX Runtime"
"""Where ONNX's reference, which takes much that is no model, has no answer, or minitvm refuses it, too."""


class Outcome(enum.Enum):
    AGREED = "agreed"
    REFUSED = "refused"
    DIFFER = "oracles differ"
    UNSPECIFIED = "unspecified"
    NO_ORACLE = "no oracle"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    kind: str = ""
    """Of a failure: ``difference``, ``exception``, ``crash``, ``hang`` or ``refusal``; else what decided."""
    message: str = ""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome is Outcome.FAILED

    @property
    def signature(self) -> tuple[str, str]:
        """The same for failures that are alike: messages without names and numbers."""
        text = re.sub(r"'[^']*'|\"[^\"]*\"|\([^)]*\)|\{.*\}|%\w+", "*", self.message)
        if self.kind == "difference":
            return self.kind, next((word for word in ("shape", "dtype", "nan") if word in text), "values")
        return self.kind, re.sub(r"-?\d[\d.e+]*|nan|inf", "#", text)[:120]


class Judge:
    """Two workers, minitvm's and its peers', and what they say of a case.

    ``alone``: no peer is asked; what is right is said by the same model at level 0, and by it in float64.
    """

    def __init__(self, seconds: float = SECONDS, alone: bool = False) -> None:
        self.seconds, self.alone = seconds, alone
        self._subject = Worker(subject.perform)
        self._peers = Worker(peers.answer)

    def close(self) -> None:
        self._subject.close()
        self._peers.close()

    def verdict(self, case: Case) -> Verdict:
        """Raises nothing for whatever minitvm or a peer does."""
        model = case.model().SerializeToString()
        found = self._perform(Task(model, case.feeds, case.config))
        if isinstance(found, Verdict):
            return found
        raised = next((f for f in found if isinstance(f, Raised)), None)
        if raised is not None:
            return Verdict(Outcome.FAILED, "exception", f"{raised.kind}: {raised.message}", raised.trace)
        if self.alone:
            verdicts = [self._by_itself(case, i, mine) for i, mine in enumerate(found)]
            return max(verdicts, key=lambda v: _SEVERITY[v.outcome])
        verdicts = [self._of_feed(case, model, i, mine) for i, mine in enumerate(found)]
        if case.config.reference:
            verdicts.append(self._of_reference(case, model))
        return max(verdicts, key=lambda v: _SEVERITY[v.outcome])

    def inside(self, case: Case) -> Arrays:
        """Every value of the graph on the first feed; empty where the peer cannot tell."""
        found = self._ask("inside", case.model().SerializeToString(), case.feeds[0])
        return {} if isinstance(found, Declines) else dict(found)

    def expected(self, case: Case) -> list[list[np.ndarray] | None]:
        """What the first peer that has an answer says of each feed; ``None`` where none has."""
        model, found = case.model().SerializeToString(), []
        for feeds in case.feeds:
            answers = (self._ask(peer, model, feeds) for peer in PEERS)
            found.append(next((a for a in answers if not isinstance(a, Declines)), None))
        return found

    def _perform(self, task: Task) -> list[Any] | Verdict:
        found = self._subject.ask(task, self.seconds)
        if isinstance(found, Hang):
            return Verdict(Outcome.FAILED, "hang", f"no answer in {found.seconds:.0f} s of computing")
        if isinstance(found, Crash):
            return Verdict(Outcome.FAILED, "crash", found.signal, found.trace)
        return list(found)

    def _ask(self, peer: str, model: bytes, feeds: Arrays, **about: Any) -> Any:
        """A peer's answer; one that crashes or hangs declines."""
        found = self._peers.ask(Question(peer, model, [feeds], **about), self.seconds)
        return Declines(f"{peer}: {found}") if isinstance(found, (Crash, Hang)) else found[0]

    def _by_itself(self, case: Case, index: int, mine: Any) -> Verdict:
        """Against the same model at level 0, and by that model's distance from itself in float64."""
        model = case.model()
        task = Task(model.SerializeToString(), [case.feeds[index]], Config())
        double = Task(widened(model).SerializeToString(), [widened_feed(case.feeds[index])], Config())
        plainly, doubles = (found[0] if isinstance(found := self._perform(t), list) else found for t in (task, double))
        if isinstance(mine, Refused):
            return Verdict(Outcome.NO_ORACLE, mine.kind) if isinstance(plainly, Refused) else refusal(mine)
        if not isinstance(plainly, list):
            return Verdict(Outcome.FAILED, "refusal", f"level 0: {plainly}")
        what = difference(mine, plainly)
        if what is None:
            return Verdict(Outcome.AGREED, "level 0")
        moved, count = self._ask("own of minitvm", task.model, case.feeds[index]), len(mine)
        if isinstance(moved, Declines) and not isinstance(doubles, list):
            moved = self._ask("own of onnx", task.model, case.feeds[index])
        if not isinstance(moved, Declines):
            wide = self._ask("own of minitvm, wide scores", task.model, case.feeds[index])
            ways = [moved] if isinstance(wide, Declines) else [moved, wide]
            each = [[within_condition(mine[i], [r[i] for r in way]) for way in ways] for i in range(count)]
            how, fine = "own rounding", [np.any(found, axis=0) for found in each]
        else:
            exact = doubles if isinstance(doubles, list) else [None] * count
            how, fine = "float64", [_as_near(*each) for each in zip(mine, plainly, exact, strict=True)]
        if all((f | near(*pair)).all() for f, *pair in zip(fine, mine, plainly, strict=True)):
            return Verdict(Outcome.AGREED, how)
        return Verdict(Outcome.FAILED, "difference", f"{what} (feed {index}, level 0)")

    def _said(self, case: Case, peer: str, model: bytes, index: int = 0) -> Any:
        """A peer's answer.  ONNX Runtime is asked for every node of a graph of float16 alone: it leaves out roundings
        between nodes that it computes in float32."""
        given = (*case.constants.values(), *case.feeds[0].values())
        if peer == "onnxruntime" and any(a.dtype == np.float16 for a in given):
            found = self._ask("each node", model, case.feeds[index])
            if not isinstance(found, Declines):
                return found
        return self._ask(peer, model, case.feeds[index])

    def _of_reference(self, case: Case, model: bytes) -> Verdict:
        """minitvm's own reference against the peers."""
        found = self._perform(Task(model, case.feeds[:1], case.config, reference=True))
        if isinstance(found, Verdict):
            return found
        if isinstance(found[0], Raised):
            message = f"own reference: {found[0].kind}: {found[0].message}"
            return Verdict(Outcome.FAILED, "exception", message, found[0].trace)
        return self._of_feed(case, model, 0, found[0], "own reference: ")

    def _of_feed(self, case: Case, model: bytes, index: int, mine: Any, who: str = "") -> Verdict:
        """The verdict on one feed.  A peer that declines the whole graph may still know what differs: it is asked
        for the first result that does, alone."""
        if isinstance(mine, Refused):
            return self._of_refusal(case, model, index, mine)
        why = invalid = ""
        for peer in PEERS:
            theirs = self._said(case, peer, model, index)
            if isinstance(theirs, Declines):
                invalid = invalid or (theirs.why if peer == "onnxruntime" and theirs.is_doubtful else "")
            elif (found := difference(mine, theirs)) is None:
                return Verdict(Outcome.DIFFER if why else Outcome.AGREED, peer)
            else:
                why = why or f"{who}{found} (feed {index}, {peer})"
        if not why and (who or invalid):
            return Verdict(Outcome.NO_ORACLE, INVALID if invalid else "", invalid)
        return self._settled(case, index, mine, why)

    def _of_refusal(self, case: Case, model: bytes, index: int, mine: Refused) -> Verdict:
        """As the peers have it of the whole graph, or of what minitvm refuses alone: a peer may lack another part."""
        whole = self._refused(case, model, index, mine)
        if not whole.failed or len(case.outputs) == 1:
            return whole
        verdicts = list[Verdict]()
        for alone in (pruned(case.replace(outputs=[output])) for output in case.outputs):
            model = alone.model().SerializeToString()
            found = self._perform(Task(model, [alone.feeds[index]], case.config))
            if not isinstance(found, Verdict) and isinstance(found[0], Refused):
                verdicts.append(self._refused(alone, model, index, found[0]))
        return max(verdicts, key=lambda v: _SEVERITY[v.outcome], default=whole)

    def _refused(self, case: Case, model: bytes, index: int, mine: Refused) -> Verdict:
        """A model that a peer runs: minitvm may refuse it for a reason that is listed, and for no other.  Neither peer
        looks at everything: of shapes that the graph was not made for, and of indices that lie outside, one that
        declines is believed."""
        said = [self._ask(peer, model, case.feeds[index]) for peer in PEERS]
        declines = [d for d in said if isinstance(d, Declines)]
        invalid = isinstance(said[0], Declines) and said[0].is_doubtful
        misfits = mine.kind in MISFITS and _is_reshaped(case, index) and declines
        outside = mine.kind == "InputError" and any("IndexError" in d.why for d in declines)
        if invalid or misfits or outside or len(declines) == len(PEERS):
            return Verdict(Outcome.NO_ORACLE, INVALID if invalid or misfits or outside else mine.kind, declines[0].why)
        return refusal(mine)

    def _settled(self, case: Case, index: int, mine: Sequence[np.ndarray], why: str) -> Verdict:
        """The verdict on results that agree with no peer that knows them all: each is looked at alone."""
        verdicts = [
            self._of_output(pruned(case.replace(outputs=[output], feeds=[case.feeds[index]], symbols={})), value, why)
            for output, value in zip(case.outputs, mine, strict=True)
        ]
        return max(verdicts, key=lambda v: _SEVERITY[v.outcome])

    def _of_output(self, case: Case, mine: np.ndarray, why: str) -> Verdict:
        model = case.model().SerializeToString()
        said = [self._said(case, peer, model) for peer in PEERS]
        answers = [a for a in said if not isinstance(a, Declines)]
        if not answers and isinstance(said[0], Declines) and not said[0].leaves_open:
            return Verdict(Outcome.NO_ORACLE, INVALID, said[0].why)
        differences = [difference([mine], theirs) for theirs in answers]
        if not all(differences):
            return Verdict(Outcome.AGREED if len(set(differences)) == 1 else Outcome.DIFFER)
        if not answers and self._is_own_reference(case, model, mine):
            return Verdict(Outcome.NO_ORACLE)
        fine = self._explained(case, model, mine, answers)
        if fine.all():
            return Verdict(Outcome.AGREED, "own rounding")
        answered = tuple(n for n, a in zip(PEERS, said, strict=True) if not isinstance(a, Declines))
        for base in ("freedom", "freedom of onnx", "freedom of minitvm"):
            freedom = self._ask(base, model, case.feeds[0], answered=answered)
            if isinstance(freedom, Freedom):
                fine = fine | freedom.allows([mine])[0]
                if fine.all():
                    return Verdict(Outcome.UNSPECIFIED, freedom.why)
            if base == "freedom of onnx" and not isinstance(freedom, Declines):
                break  # the walk by minitvm itself is for graphs of which a peer lacks a node over nothing
        why = why or next(filter(None, differences), "the result is not that of minitvm's own reference")
        detail = "\n".join(f"{d} (of {case.outputs[0].name!r} alone)" for d in differences)
        return Verdict(Outcome.FAILED, "difference", why, detail)

    def _explained(self, case: Case, model: bytes, mine: np.ndarray, answers: Sequence[Any]) -> np.ndarray:
        """Elements that agree with a peer, or lie where the graph's own roundings move them."""
        fine = np.any([np.zeros(mine.shape, bool), *(near(mine, theirs[0]) for theirs in answers)], axis=0)
        if fine.all():
            return np.asarray(fine)
        digits = "float32" if mine.dtype == np.float64 and set(case.operators) & set(SINGLE) else ""
        for who in ("own", "own of onnx", "own, wide scores"):
            if fine.all():
                break
            found = self._ask(who, model, case.feeds[0])
            if not isinstance(found, Declines):
                fine = fine | within_condition(mine, [results[0] for results in found], digits)
        return np.asarray(fine)

    def _is_own_reference(self, case: Case, model: bytes, mine: np.ndarray) -> bool:
        """True, too, where the reference has no answer."""
        own = self._perform(Task(model, case.feeds, case.config, reference=True))
        if isinstance(own, Verdict) or not isinstance(own[0], list):
            return True
        return difference([mine], own[0]) is None


def _is_reshaped(case: Case, index: int) -> bool:
    """Whether a feed's shapes are others than those that the graph was made for."""
    return any(a.shape != case.feeds[0][n].shape for n, a in case.feeds[index].items())


def refusal(error: Refused) -> Verdict:
    if any(re.search(pattern, error.message) for pattern in REFUSALS):
        return Verdict(Outcome.REFUSED, error.message.partition(":")[0], error.message, error.text)
    return Verdict(Outcome.FAILED, "refusal", f"{error.kind}: {error.message}", error.text)


_SEVERITY = {
    Outcome.NO_ORACLE: 0,
    Outcome.AGREED: 1,
    Outcome.REFUSED: 2,
    Outcome.DIFFER: 3,
    Outcome.UNSPECIFIED: 4,
    Outcome.FAILED: 5,
}
