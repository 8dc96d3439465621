"""How long tests wait for what comes at once on a machine of one's own."""

PATIENCE = 300.0
"""Seconds until what hangs is ended.  Nothing that is only slow takes so long, however many use the machine."""
