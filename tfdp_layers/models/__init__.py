"""Keras models that train privately: the step, `fit`, its book-keeping, files and replicas."""
