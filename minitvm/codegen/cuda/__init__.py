"""CUDA: kernels bound to blocks and threads, printed as CUDA C, compiled by NVRTC."""
