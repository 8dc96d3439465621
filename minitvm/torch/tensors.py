"""PyTorch's tensors and numpy's arrays over the same memory."""

import ml_dtypes
import numpy as np
import torch

from minitvm.errors import InputError

BYTES = {torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16))}
"""What numpy has no dtype for: read as integers of that size."""
_BACK = {array: (tensor, bytes_) for tensor, (bytes_, array) in BYTES.items()}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values, not copied where they are on the CPU and lie in order; :class:`InputError` elsewhere."""
    if tensor.device.type != "cpu":
        raise InputError(f"a tensor is on {tensor.device}, and the model runs on the CPU", hint="tensor.cpu()")
    plain = tensor.detach().contiguous().resolve_conj().resolve_neg()
    if tensor.dtype in BYTES:
        as_bytes, dtype = BYTES[tensor.dtype]
        return np.asarray(plain.view(as_bytes).numpy()).view(dtype)
    return np.asarray(plain.numpy())


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor over an array's memory."""
    if array.dtype in _BACK:
        dtype, as_bytes = _BACK[array.dtype]
        return torch.from_numpy(array.view(torch.empty(0, dtype=as_bytes).numpy().dtype)).view(dtype)
    return torch.from_numpy(array)
