"""What must never be proved, and how it is refused."""

from typing import Any

import pytest
import tensorflow as tf

from helpers.proof import mixing
from helpers.variants import slow_but
from tfdp_layers.proof import Report, prove, prove_rows
from tfdp_layers.proof.rules import types

SPEC = tf.TensorSpec((None, 6))
NOT_SAID = set(
    types(
        # What a variable holds, a list gives, or how large something is: not said, as it may be another number.
        """
    axis_by_scatter_add axis_by_scatter_nd_add axis_by_a_slice axis_by_an_optimizer axis_by_a_known_branch
    axis_by_a_branch_in_a_branch axis_by_a_condition axis_by_less_in_a_branch axis_by_a_branch_that_did_not_read
    axis_by_a_case axis_by_a_loop_that_does_not_settle axis_by_a_copied_handle axis_by_a_hidden_handle
    state_written_by_a_loop_that_does_not_settle axis_never_put axis_never_put_and_pushed axis_never_put_at_the_end
    axis_never_put_in_a_branch as_long_as_was_never_put_in_a_branch behind_as_many_as_there_are length_after_the_last
    length_after_one_more shape_as_put last_place_under_xla last_element_under_xla size_of_an_element
    size_of_the_last_element size_after_a_loop size_within_a_loop size_after_a_branch size_in_a_call size_of_a_default
    size_of_a_variable
    """
    )
)
NO_EVIDENCE = NOT_SAID | set(
    types(
        # Operations without a rule, seeds that may change elsewhere, constants that are added, sizes that the prover
        # gave up on, control edges, which it does not look at: none of it is evidence.
        """
    a_list_from_nothing a_list_of_ten in_a_table_that_may_change words_beside_a_count
    words_of_other_cuts a_longer_list axes_of_one_record counted_rounds data_set_of_records
    dead_by_a_switch drawn_from_the_batch first_of_list_changed four_rows_at_a_time growing_while_it_goes_round
    histogram identity_matrix last_by_scatter lists_of_other_copies looked_up masked_out next_row_by_a_map
    one_beside_the_sum one_of_two_in_a_list ones_behind_the_records partitioned pieces_by_a_step_of_records
    placeholder_for_what_mixes queue_of_records ragged_by_the_batch size_of_what_is_found squeezed
    state_of_rows strings_hashed strings_joined sum_plus_one table_of_records unique_rows
    updated_by_place where_is_it whitened axis_by_an_index_from_the_end axis_by_an_index_from_the_end_of_a_row
    axis_by_a_slice_from_the_end axis_by_a_slice_beyond_the_end as_long_as_the_longest_list
    lists_one_after_the_other added_in_place stitched_by_half poisson_of_the_sum
    signed_bytes_of_what_is_no_number short_integers_of_what_is_no_number signed_bytes_where_another_is_a_number
    signed_bytes_where_it_is_no_number signed_bytes_of_infinity_times_zero signed_bytes_of_infinity_over_itself
    signed_bytes_of_infinity_less_itself signed_bytes_without_one_infinity clamped_to_as_many_as_there_are
    places_along_another_axis places_times_a_table places_chosen_by_a_table rows_along_another_axis
    axes_that_a_function_gives_back axes_that_a_branch_gives_back shape_of_a_hidden_count size_of_a_hidden_count
    crosses_of_other_copies crosses_of_the_next_row crosses_of_one_wide_and_two
    """
    )
)


def traced(function: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(SPEC)


def expected(name: str) -> tuple[str, ...]:
    return ("unknown",) if name in NO_EVIDENCE or "seed" in name else ("mixed",)


@pytest.mark.parametrize("name", slow_but(list(mixing.ROWS)[::2], mixing.ROWS))
def test_rows_that_mix(name: str) -> None:
    function = mixing.ROWS[name]()
    report = prove_rows(traced(function))
    assert report.status in (*expected(name), "mixed"), report
    assert all((report.reason, report.operation, report.type)), report


@pytest.mark.parametrize("name", slow_but(list(mixing.ROWS)[::8], mixing.ROWS))
def test_sums_of_rows_that_mix(name: str) -> None:
    function = mixing.ROWS[name]()

    def sums(x: Any) -> Any:
        return tf.reduce_sum(tf.cast(function(x), tf.float32) * x[:, 0])

    try:
        concrete = traced(sums)
    except ValueError:
        pytest.skip("its result does not multiply rows")
    assert not prove(concrete).proved


@pytest.mark.parametrize("name", mixing.SUMS)
def test_sums_that_are_not_additive(name: str) -> None:
    report = prove(traced(mixing.SUMS[name]()))
    assert report.status in (*expected(name), "mixed"), report
    assert all((report.reason, report.operation, report.type)), report


@pytest.mark.slow
def test_evidence_is_told_from_ignorance() -> None:
    reports: dict[str, Report] = {name: prove_rows(traced(make())) for name, make in mixing.ROWS.items()}
    reports |= {name: prove(traced(make())) for name, make in mixing.SUMS.items()}
    unknown = {name for name, report in reports.items() if report.status == "unknown"}
    assert {name for name in unknown if "seed" not in name} == NO_EVIDENCE
