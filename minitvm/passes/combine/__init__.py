"""Parallel branches with one input become one wider call."""
