"""FuseOps: which calls become one kernel."""
