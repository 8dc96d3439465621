"""TVM's names of errors, all of which are :class:`MiniTVMError` here, and the one for what is not offered."""

from minitvm.errors import CompilerError, MiniTVMError, ParseError, TypeInferenceError, UnsupportedOperatorError

TVMError = MiniTVMError
InternalError = CompilerError
DiagnosticError = ParseError
OpError = TypeInferenceError
OpNotImplemented = UnsupportedOperatorError
OpAttributeRequired = OpAttributeInvalid = OpAttributeUnImplemented = TypeInferenceError


class NotOfferedError(MiniTVMError):
    """A name of TVM's that minitvm does not have; says what there is instead."""


class NoSuchNameError(MiniTVMError, AttributeError):
    """A name that neither TVM nor minitvm has; says what is near."""
