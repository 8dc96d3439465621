"""CUDA without a GPU: emitted CUDA C compiled by the host's C++ compiler, its threads run as fibers.

* :func:`host_image` makes a shared object of the source of a group; :class:`HostKernels` launches what is in one.
* ``device.py`` runs groups and whole models so: target ``simulated``.
* A launch checks what a GPU would not tell: a barrier that not all threads reach, an index outside of an array, a
  misaligned access.  Shared memory holds NaN when a block starts; asynchronous copies arrive when they are waited for.
"""

from simulated_gpu.host import ORDERS, DeviceFault, HostKernels, host_compiler, host_image

__all__ = ["ORDERS", "DeviceFault", "HostKernels", "host_compiler", "host_image"]
