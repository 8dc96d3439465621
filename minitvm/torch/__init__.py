"""PyTorch's models: ``from_torch`` imports one, ``torch.compile(model, backend="minitvm")`` runs one.

    module, params = minitvm.from_torch(model, (torch.randn(1, 3, 224, 224),))
    library = minitvm.build(module, params=params)

    fast = torch.compile(model, backend="minitvm")
    with torch.no_grad():
        fast(torch.randn(1, 3, 224, 224))

Needs ``pip install 'minitvm[torch]'``.
"""

from minitvm.errors import ConfigError

try:
    import onnxscript  # noqa: F401  # of which torch's exporter says nothing but that it is missing
    import torch  # noqa: F401
except ImportError as absent:
    raise ConfigError(
        f"{absent.name} is not installed", hint="pip install 'minitvm[torch]', or torch and onnxscript"
    ) from absent

from minitvm.torch.dynamo import backend
from minitvm.torch.exported import from_torch, to_onnx

__all__ = ["backend", "from_torch", "to_onnx"]
