"""Models as people export them, with open dimensions: which are compiled once for all sizes, and why others not."""
