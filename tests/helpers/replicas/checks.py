"""Runs the checks beside, and prints one line of JSON for each.

Usage, from the folder of the tests: python -m helpers.replicas.checks FOLDER, for the files that workers leave.
"""

from helpers.replicas import checking, two_workers

for check in two_workers.CHECKS:
    checking.run(check)

from helpers.replicas import mirrored, programs, reading, refusing  # noqa: E402  (starts TensorFlow, and no process can be forked after)

for check in (*mirrored.CHECKS, *programs.CHECKS, *reading.CHECKS, *refusing.CHECKS):
    checking.run(check)
