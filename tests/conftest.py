"""Puts this folder on the import path, so that tests below share its helpers; one thread for each process."""

import os

for kind in ("INTRAOP", "INTEROP"):  # the tests are small, and several processes run them
    os.environ.setdefault(f"TF_NUM_{kind}_THREADS", "1")
