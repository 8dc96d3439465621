"""Every command and each of its options, as click lists them: what is given makes a difference that can be seen, or is
refused; nothing ends in a traceback."""

from __future__ import annotations

import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import TypeAlias

import click
import pytest

from minitvm.cli.options import LIBRARY, PAGE, PATH, Option, parameter
from tests.every_command import COMMANDS, Log, fill, invoke, seen, watched

Case: TypeAlias = tuple[str, str] | tuple[str, str, str]
"""The option, what then is seen that was not before, and what stands before it (else the command's usual words)."""

_SHARED: dict[str, Case] = {
    "--target": ("--target interp", "target interp"),
    "--opt-level": ("-O 1", "level 1"),
    "--threads": ("-t 3", "3 threads"),
    "--shape": ("--shape x:7x4", r"\(7, 4\)"),
    "--value": ("--value n:2", "values {'n'"),
    "--config": ("--config cuda.allow_tf32=true", "allow_tf32"),
    "--device": ("--device 1", "there is no device"),
    "--seed": ("--seed 5", "seed 5"),
    "--inputs": ("-i x.npz", r"\(3, 4\)"),
    "--quiet": ("-q", "quiet"),
    "--json": ("--json", '"result": '),
    "--trusted-key": ("--trusted-key no.pem", "no.pem", "m.mtvm"),
}
_WORKERS: dict[str, Case] = {
    "--workers": ("--workers 1", "1 workers"),
    "--scheduler": ("--scheduler tcp://127.0.0.1:1", "there is no scheduler at|needs Dask"),
}
_PLOTS: dict[str, Case] = {
    **_WORKERS,
    "--rounds": ("--rounds 1", "1 rounds"),
    "--csv": ("--csv figures.csv", "wrote figures.csv"),
    "--plot": ("--plot p.png", "wrote p.png|matplotlib"),
}
CASES: Mapping[str, tuple[str, Mapping[str, Case]]] = {
    "demo": ("", {}),
    "compile": (
        "m.onnx",
        {
            "--output": ("-o other.mtvm", "wrote other.mtvm"),
            "--sign": ("--sign no.pem", "no.pem"),
            "--strict": ("--strict", "exit 1", "python.onnx --shape x:1x4"),
        },
    ),
    "tune": (
        "one.onnx -n 1",
        {
            "--output": ("-o other.jsonl", "other.jsonl: "),
            "--budget": ("--budget 0", "nothing can be tried"),
            **_WORKERS,
            "--trials": ("-n 2", "of 2 ways", "one.onnx -n 1 --shape x:64x4"),
        },
    ),
    "run": (
        "m.onnx",
        {
            "--outputs": ("-o y.npz", "wrote y.npz"),
            "--top": ("--top 1", r"y\[\d"),
            "--profile": ("--profile", r"Time\(us\)"),
            "--trace": ("--trace t", "wrote t/trace.json", "m.onnx --profile"),
            "--generate": ("--generate w3", "tokens of prompt", "sums.onnx"),
            "--tokenizer": ("--tokenizer other.json", "v6 v2", "sums.onnx --generate w3"),
            "--max-tokens": ("--max-tokens 2", "w3 w3 w6\n", "sums.onnx --generate w3"),
            "--temperature": ("--temperature 9", "w[1579]", "sums.onnx --generate w3"),
            "--top-k": ("--top-k 1", "w3 w3 w6 w2 w4 w8 w6", "sums.onnx --generate w3 --temperature 9"),
            "--top-p": ("--top-p 0.01", "w3 w3 w6 w2 w4 w8 w6", "sums.onnx --generate w3 --temperature 9"),
        },
    ),
    "bench": (
        "m.onnx -n 1",
        {
            "--roofline": ("--roofline", "bound by"),
            "--against": ("--against onnxruntime", "onnxruntime"),
            "--rounds": ("-n 2", "2 rounds", "m.onnx"),
        },
    ),
    "profile": (
        "m.onnx -n 1",
        {
            "--repeats": ("-n 2", "2 repeats", "m.onnx"),
            "--warmup": ("--warmup 1", "1 warmup"),
            "--top": ("--top 1", "and 1 more"),
            "--trace": ("--trace t.json", "wrote t.json"),
        },
    ),
    "check": (
        "one.onnx --passes",
        {
            "--against": ("--against interp", "interp"),
            "--passes": ("--passes", "passes   ", "one.onnx --kernels"),
            "--kernels": ("--kernels", "kernels  "),
            "--levels": ("--levels", "levels   "),
            "--teams": ("--teams", "threads  "),
            "--use": ("--use mine.py", "mine.py runs"),
            "--output": ("-o found", "wrote found/test_", "one.onnx --passes --use mine.py"),
            "--reduction": ("--reduction 0", "0.0 reduction"),
        },
    ),
    "explain": (
        "m.onnx --node act",
        {
            "--kernel": ("--kernel *", "2 of 2 have such a name", "m.onnx"),
            "--node": ("--node act", "nn.relu", "m.onnx"),
            "--pass": ("--pass FuseOps", "FuseOps", "m.onnx"),
        },
    ),
    "show": (
        "m.onnx",
        {
            "--after": ("--after InferType#1", r"\A(?!.*primitive)"),
            "--before": ("--before FuseOps", r"\A(?!.*primitive)"),
            "--diff": ("--diff FuseOps", r"^\s*[-+] "),
            "--stage": ("--stage loops", "^kernel "),
            "--kernel": ("--kernel list", "predicted"),
            "--why": ("--why act", "^FuseOps"),
            "--schedule": ("--schedule fused_nn_relu", "no list of steps|no kernel"),
            "--constants": ("--constants", r'meta\["w'),
        },
    ),
    "lab orders": (
        "m.onnx --rounds 0 --passes FoldConstant#1,SimplifyExpr",
        {"--passes": ("--passes FoldConstant#1,InferType#1", "InferType", "m.onnx --rounds 0"), **_PLOTS},
    ),
    "lab levels": ("m.onnx --rounds 0", _PLOTS),
    "lab read": (
        "chapter5",
        {"--browser": ("--browser", "5-fusion.html: "), "--output": ("-o pages", "wrote pages/index.html")},
    ),
    "lab start": (
        "chapter1",
        {"--output": ("-o mine.txt", "mine.txt: "), "--force": ("--force", "wrote taken.py", "chapter1 -o taken.py")},
    ),
    "lab grade": (
        "chapter1 mine.py",
        {
            "--json": ("--json", '"chapter": "chapter1"'),
            "--gradescope": ("--gradescope results.json", "wrote results.json"),
            "--csv": ("--csv points.csv", "wrote points.csv"),
        },
    ),
    "lab mutate": (
        "mutated.py --tests test_mutated.py",
        {"--tests": ("--tests test_other.py", "pytest test_other.py", "mutated.py"), "--jobs": ("-j 3", "3 at a time")},
    ),
    "lab verify": (
        "mine.py",
        {"--all": ("--all", "^exit 1", ""), "--tries": ("--tries 7", "7 tries"), "--seed": ("--seed 5", "seed 5")},
    ),
    "view": (
        "m.onnx -n 1",
        {
            "--output": ("-o other.html", "wrote other.html"),
            "--run": ("--no-run", r"\A(?!.*repeats)", "m.onnx"),
            "--repeats": ("-n 2", "2 repeats", "m.onnx"),
            "--pass": ("--pass mine.py", "mine.py runs"),
            "--without": ("--without FuseOps", "FuseOps cuts the graph into kernels"),
            "--order": ("--order A,B", "no pass 'A'"),
            "--beside": ("--beside -O1", "level 1"),
            "--serve": ("--serve", "port 8124"),
            "--port": ("--port 0", "port 0", "m.onnx --serve"),
            "--watch": ("--watch mine.py", "watches m.onnx mine.py", "m.onnx --serve"),
        },
    ),
    "info": ("", {}),
}
"""By command: words that it runs with, and its options but for those of ``_SHARED``."""


OPTIONS = [
    (name, option) for name, command in COMMANDS.items() for option in command.params if isinstance(option, Option)
]
"""What click knows of; ``--help`` aside."""


def _case(command: str, option: Option) -> tuple[str, str, str]:
    """Words before an option, the option, and what it shows; a ``KeyError`` is an option without a case."""
    words, own = CASES[command]
    given, shows, *before = {**_SHARED, **own}[_name(option)]
    return (before[0] if before else words), given, shows


def _name(option: Option) -> str:
    return str(option.opts[-1])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("made")
    fill(folder)
    return folder


@pytest.fixture(autouse=True)
def log(made: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """In a folder of the test's own."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    return watched(monkeypatch)


# --- what makes a difference ----------------------------------------------------------------------------------------


_SEEN: dict[tuple[str, str], str] = {}
"""What runs show without the options."""


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=[f"{c} {_name(o)}" for c, o in OPTIONS])
def test_an_option_makes_a_difference(command: str, option: Option, log: Log) -> None:
    before, given, shows = _case(command, option)
    wanted = re.compile(shows, re.MULTILINE | re.DOTALL)
    if (command, before) not in _SEEN:
        _SEEN[command, before] = seen(command, before, log)
    without, found = _SEEN[command, before], seen(command, f"{before} {given}", log)
    assert not wanted.search(without), without
    assert wanted.search(found), found


# --- what would do nothing --------------------------------------------------------------------------------------------


_MODELS = {LIBRARY: "m.mtvm", PAGE: "m.html"}


def _model_of(command: str, condition: str = "") -> str:
    takes_one = any(param.name == "model" for param in COMMANDS[command].params)
    return _MODELS.get(condition, "m.onnx") if takes_one else ""


def _required(command: str) -> str:
    return "--passes A,B" if command == "lab orders" else ""


def _words(command: str, condition: str) -> str:
    """What gives a condition, but for that of a MODEL."""
    name, _, values = condition.partition(" ")
    param = parameter(COMMANDS[command], condition)
    if condition in _MODELS:
        return ""
    if values or (param is not None and name in param.secondary_opts):
        return f"{name} {values.partition('|')[0]}"
    return _case(command, param)[1] if isinstance(param, Option) else "mine.py"


EXCLUDED = [(c, o, e) for c, o in OPTIONS for e in o.excludes if parameter(COMMANDS[c], e)]
NEEDY = [(c, o) for c, o in OPTIONS if o.needs]


@pytest.mark.parametrize(("command", "option", "other"), EXCLUDED, ids=[f"{c} {_name(o)} {e}" for c, o, e in EXCLUDED])
def test_an_option_beside_which_another_does_nothing(command: str, option: Option, other: str, log: Log) -> None:
    given = (_model_of(command, other), _required(command), _case(command, option)[1], _words(command, other))
    done = invoke(command, " ".join(given))
    assert done.exit_code == 2 and not log, done.output
    shown = f"{_MODELS[other]}, {other}" if other in _MODELS else _words(command, other) if " " in other else other
    name = _case(command, option)[1] if option.secondary_opts else _name(option)
    assert done.stderr.endswith(f"Error: {name} does nothing beside {shown}: leave out {name}\n")


@pytest.mark.parametrize(("command", "option"), NEEDY, ids=[f"{c} {_name(o)}" for c, o in NEEDY])
def test_an_option_that_does_nothing_without_another(command: str, option: Option, log: Log) -> None:
    name = _name(option)
    done = invoke(command, f"{_model_of(command)} {_case(command, option)[1]}")
    assert done.exit_code == 2 and not log, done.output
    assert done.stderr.endswith(f"Error: {name} does nothing without {option.needs}: add it, or leave out {name}\n")
    assert f"Needs {option.needs}." in " ".join(invoke(command, "--help").output.split())


def test_conditions_name_parameters() -> None:
    known = {
        condition
        for command, option in OPTIONS
        for condition in _conditions(option)
        if parameter(COMMANDS[command], condition)
    }
    assert known == {condition for _, option in OPTIONS for condition in _conditions(option)}


def _conditions(option: Option) -> list[str]:
    return [*option.excludes, *([option.needs] if option.needs else [])]


# --- places that are wrong --------------------------------------------------------------------------------------------

_READ = (".", "no/such/file.x", "empty", "/dev/full")
_WRITTEN = (".", "no/such/file.x", "/dev/full")
_OUTPUTS = ("--output", "--outputs", "--trace", "--csv", "--plot", "--gradescope")
_FOLDERS = (("run", "--trace"), ("lab read", "--output"), ("check", "--output"), ("lab grade", "file"))
_OF_TEXT = ("rules", "what")
"""Arguments that may be a file."""
WRONG = [
    (command, param, place)
    for command in COMMANDS
    for param in COMMANDS[command].params
    if param.type is PATH or param.name in _OF_TEXT
    for place in (_WRITTEN if param.opts[-1] in _OUTPUTS else _READ)
]


@pytest.mark.parametrize(
    ("command", "param", "place"), WRONG, ids=[f"{c} {p.opts[-1]} {place}" for c, p, place in WRONG]
)
def test_a_wrong_place_is_said_in_a_line(command: str, param: click.Parameter, place: str) -> None:
    if place.startswith("/") and not pathlib.Path(place).exists():
        pytest.skip("there is no /dev/full here")
    if isinstance(param, Option):
        done = invoke(command, f"{_case(command, param)[0]} {_name(param)} {place}")
    else:
        first, _, rest = CASES[command][0].partition(" ")
        done = invoke(command, f"{first} {place}" if param.name == "file" else f"{place} {rest}")
    if place != "empty" and (command, param.opts[-1]) not in _FOLDERS:
        assert done.exit_code == 1 and (place in str(done.exception) or place == "/dev/full"), done.output
