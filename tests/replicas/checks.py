"""Runs the checks beside, and prints one line of JSON for each.

Usage: python checks.py FOLDER, for the files that workers leave.
"""

import checking
import two_workers

for check in two_workers.CHECKS:
    checking.run(check)

import mirrored  # noqa: E402  (starts TensorFlow, and processes cannot be forked from then on)

for check in mirrored.CHECKS:
    checking.run(check)
