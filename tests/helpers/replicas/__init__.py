"""Checks of several devices and processes, which run in processes of their own: `python -m helpers.replicas.checks`."""
