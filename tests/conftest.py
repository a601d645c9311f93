"""Puts this folder on the import path, so that tests in folders below share its helpers."""
