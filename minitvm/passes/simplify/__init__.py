"""Rules that make a graph smaller: arithmetic, casts, shapes, products, inference."""
