"""The data sets, settings and networks of the command and the examples. It imports nothing by itself."""
