"""``pytest -p on_standin``: tests for a GPU on the stand-in for its driver, kernels compiled for the host."""

from simulated_gpu.standin import use_host_code

use_host_code()
