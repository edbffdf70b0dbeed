"""Daemons of a job on this machine: processes, namespaces, signals, metrics. For the tools beside it."""
