"""What ONNX Runtime has once a process: execution providers, devices, logging, the seed."""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minitvm import config
from minitvm.errors import ConfigError, warn
from minitvm.ort.errors import OptionTypeError, ProviderError
from minitvm.runtime.devices import cuda

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TARGETS = {CUDA: "cuda", CPU: "llvm"}
"""What a provider's kernels are compiled for."""

_ALL = (CUDA, CPU)


def get_all_providers() -> list[str]:
    """Execution providers that minitvm has code for."""
    return list(_ALL)


def get_available_providers() -> list[str]:
    """The providers that this machine can run: the CPU's, and CUDA's where there is a GPU."""
    return [CUDA, CPU] if cuda().exist else [CPU]


def get_device() -> str:
    """``GPU`` where there is one, else ``CPU``."""
    return "GPU" if cuda().exist else "CPU"


def get_version_string() -> str:
    return config.version()


def get_build_info() -> str:
    return f"minitvm {config.version()}, Python {platform.python_version()}, {platform.machine()}"


def has_collective_ops() -> bool:
    return False


def providers_of(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """Names and options of the providers that a session asks for and that are there, in order; warns of others.

    Raises :class:`ProviderError` for what is neither names nor pairs of a name and a dictionary.
    """
    found: dict[str, dict[str, str]] = {}
    for name, options in _pairs(providers, provider_options):
        if name in found:
            warn(f"Duplicate provider {name!r} encountered, ignoring.")
        elif name not in (there := get_available_providers()):
            warn(
                f"Specified provider {name!r} is not in available provider names. "
                f"Available providers: {', '.join(there)}"
            )
        else:
            found[name] = {str(key): str(value) for key, value in options.items()}
    return found


def _pairs(providers: Any, provider_options: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    if isinstance(providers, (str, bytes)) or not isinstance(providers, Sequence):
        raise ProviderError(
            f"'providers' is {providers!r}, not a sequence of names", hint=f"such as providers=[{CPU!r}]"
        )
    if provider_options is not None:
        return _with_options(providers, provider_options)
    return [_pair(one) for one in providers]


def _with_options(providers: Sequence[Any], options: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    if not isinstance(options, Sequence) or len(options) != len(providers):
        raise ProviderError("'providers' and 'provider_options' must be sequences of the same length")
    if not all(isinstance(one, str) for one in providers) or not all(isinstance(one, dict) for one in options):
        raise ProviderError("'providers' are names and 'provider_options' dictionaries, where both are given")
    return zip(providers, options, strict=True)


def _pair(given: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(given, str):
        return given, {}
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], dict):
        return given
    raise ProviderError(f"a provider is {given!r}, not a name or a pair of a name and a dictionary of options")


# --- the seed -----------------------------------------------------------------------------------------------------


def set_seed(seed: int) -> None:
    """The seed of operators that draw random numbers and have none in the model."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise OptionTypeError(f"the seed is {seed!r}, not a whole number")
    from minitvm.frontend.onnx.more.foreign import seed_chance  # onnx comes with it

    seed_chance(int(seed))


# --- logging ------------------------------------------------------------------------------------------------------

Callback = Callable[[int, str, str, str, str], None]
"""severity, category, logid, place, message."""

SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Verbose, Info, Warning, Error, Fatal."""
INFO, WARNING = 1, 2


class _Logging:
    severity = WARNING
    callback: Callback | None = None


def set_default_logger_severity(severity: int) -> None:
    """What sessions say: 0 all, 1 what was compiled, 2 warnings (the default), 3 errors, 4 nothing else."""
    if isinstance(severity, bool) or severity not in range(len(SEVERITIES)):
        raise ConfigError(f"the severity is {severity!r}, not 0 (verbose) to 4 (fatal)")
    _Logging.severity = int(severity)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted: there is one level below information."""
    if isinstance(verbosity, bool) or not hasattr(verbosity, "__index__"):
        raise OptionTypeError(f"the verbosity is {verbosity!r}, not a whole number")


def set_default_logger_callback(callback: Callback | None, severity: int = WARNING) -> None:
    """Hand messages to a function instead of the logger ``minitvm``; ``None``: no longer."""
    if callback is not None:
        set_default_logger_severity(severity)
    _Logging.callback = callback


def log(severity: int, message: str, asked: int = -1, logid: str = "") -> None:
    """Say something to whoever wants it: of the severity ``asked`` (-1: the default) and above."""
    if severity < (_Logging.severity if asked < 0 else asked):
        return
    text = f"{logid}: {message}" if logid else message
    if _Logging.callback is not None:
        _Logging.callback(severity, "minitvm", logid, "minitvm.ort", message)
        return
    logger = logging.getLogger("minitvm")
    if logger.hasHandlers():
        logger.log(SEVERITIES[severity], "%s", text)
    else:
        print(f"[minitvm] {text}", file=sys.stderr)


# --- what has nothing to do here ------------------------------------------------------------------------------------


def enable_telemetry_events() -> None:
    """minitvm sends nothing anywhere."""


def disable_telemetry_events() -> None:
    """minitvm sends nothing anywhere."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """CUDA's libraries are looked for when they are first needed."""


def set_global_thread_pool_sizes(intra_op: int, inter_op: int) -> None:
    """Accepted: sessions have the threads that they ask for, and share those that wait."""
