"""The benchmark: ``python -m benchmarks`` (or ``python benchmarks/run.py``) times minitvm beside its peers."""
