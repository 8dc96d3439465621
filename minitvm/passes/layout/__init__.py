"""Layouts: which convolutions and products want another one, and how it moves through the graph."""
