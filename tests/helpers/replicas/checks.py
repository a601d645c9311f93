"""Runs the checks beside, and prints one line of JSON for each.

Usage, from the folder of the tests: python -m helpers.replicas.checks FOLDER, for the files that workers leave.
"""

from helpers.replicas import checking, two_workers

for check in two_workers.CHECKS:
    checking.run(check)

from helpers.replicas import mirrored  # noqa: E402  (starts TensorFlow, and processes cannot be forked from then on)

for check in mirrored.CHECKS:
    checking.run(check)
