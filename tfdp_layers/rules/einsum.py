"""Equations of einsum products that keep records apart."""

import string


def explicit(equation: str, rank: int) -> str:
    """The equation "inputs,kernel->outputs" with an ellipsis written as labels. Raises ValueError if it is not one."""
    equation = equation.replace(" ", "")
    if equation.count("->") != 1 or equation.count(",") != 1:
        raise ValueError(f"The equation must be of the form 'inputs,kernel->outputs'. Received: {equation!r}.")
    inputs, kernel, outputs = equation.replace("->", ",").split(",")
    free = [label for label in string.ascii_letters if label not in equation]
    labels = "".join(free[: rank - len(inputs.replace("...", ""))])
    inputs, outputs = inputs.replace("...", labels), outputs.replace("...", labels)
    if inputs[0] != outputs[0] or inputs[0] in kernel:
        raise ValueError(
            f"Einsum {equation!r}: the first label must be the batch in inputs and outputs, and not in the kernel, or"
            " records mix."
        )
    return f"{inputs},{kernel}->{outputs}"
