"""Relay's scopes: ``Let``, functions as values, recursion; their normal forms, and graphs made of them for a build."""
