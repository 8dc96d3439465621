"""ONNX Runtime's exceptions as names of minitvm's: what a script catches there, it catches here.

They live in ``minitvm.capi.onnxruntime_pybind11_state`` too, where scripts import them from.
"""

from minitvm.errors import (
    ConfigError,
    DeviceError,
    FrontendError,
    InputError,
    MiniTVMError,
    NoSuchFileError,
    NotAModelError,
    TypeInferenceError,
    UnsupportedOperatorError,
)


class Fail(MiniTVMError):
    """A run that was told to end; a library of custom operators."""


class OptionTypeError(ConfigError, TypeError):
    """An option of another type than it has."""


class UnknownEntryError(ConfigError, RuntimeError):
    """A configuration entry that nobody has set."""


class BindingError(InputError, RuntimeError):
    """What is bound does not fit the model, or is not there."""


class MissingInputError(InputError, ValueError):
    """Inputs that a run was not given."""


class ProviderError(ConfigError, ValueError):
    """Execution providers that are no sequence of names and options."""


class _Never(MiniTVMError):
    """Raised by nothing here: scripts may name it."""


class ModelLoadCanceled(_Never):
    """Never raised: minitvm's sessions load while they are made."""


class ModelLoaded(_Never):
    """Never raised: minitvm's sessions load once."""


class ModelRequiresCompilation(_Never):
    """Never raised: minitvm compiles."""


class NoModel(_Never):
    """There is no session without a model."""


class NotFound(_Never):
    """What is not found has errors of its own."""


InvalidArgument = InputError
InvalidGraph = FrontendError
InvalidProtobuf = NotAModelError
NoSuchFile = NoSuchFileError
NotImplemented = UnsupportedOperatorError
RuntimeException = TypeInferenceError
DeviceReset = EngineError = EPFail = DeviceError
