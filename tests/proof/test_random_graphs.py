"""Random functions of records: what is proved of them is so in numbers."""

from helpers.proof import random_graphs


def test_what_is_proved_of_random_functions_is_so_in_numbers() -> None:
    found = [random_graphs.false_proof(seed) for seed in range(150)]
    assert [fault for fault, _ in found if fault] == []
    assert sum(count for _, count in found) > 20  # proofs that were checked
