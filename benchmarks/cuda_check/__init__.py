"""``python -m benchmarks cuda-check``: everything that a GPU has to show, in one command of less than 8 minutes.

``run.py`` starts a process for every job and writes down what it found, ``jobs.py`` is what such a process does,
``networks.py`` and ``peers.py`` say with what, ``figures.py`` makes tables of it.
"""
