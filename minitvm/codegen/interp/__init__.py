"""The loop interpreter as a back end."""
