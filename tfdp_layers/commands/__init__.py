"""The subcommands of `tfdp`: each module has one COMMAND. Only `train` loads TensorFlow, and only once it trains."""
