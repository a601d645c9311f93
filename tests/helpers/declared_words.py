"""What is said of declared batches."""

import warnings

import tfdp_layers as tfdp


def said(dataset, sampling, examples, batches):
    """While they are declared, and while so many are read as training reads them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        declared = tfdp.declare_sampling(dataset, sampling, examples=examples)
        for _ in declared.dataset().take(batches):
            pass
    return [str(one.message) for one in caught]
