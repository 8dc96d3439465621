# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from minitvm.errors import CompilerError as CompilerError
from minitvm.errors import MiniTVMError as MiniTVMError
from minitvm.errors import ParseError as ParseError
from minitvm.errors import TypeInferenceError as TypeInferenceError
from minitvm.errors import UnsupportedOperatorError as UnsupportedOperatorError
TVMError = MiniTVMError
InternalError = CompilerError
DiagnosticError = ParseError
OpError = TypeInferenceError
OpNotImplemented = UnsupportedOperatorError
OpAttributeRequired = TypeInferenceError
OpAttributeInvalid = TypeInferenceError
OpAttributeUnImplemented = TypeInferenceError
class NotOfferedError(MiniTVMError):
    """A name of TVM's that minitvm does not have; says what there is instead."""
class NoSuchNameError(MiniTVMError, AttributeError):
    """A name that neither TVM nor minitvm has; says what is near."""
