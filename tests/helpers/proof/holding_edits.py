"""Bugs to plant in what is known of variables after writes, and of lists where nothing was put."""

OF_HELD = [
    ("interpreter", "        wrote(node, inputs, fault)\n", "", "axis_by_a_slice"),
    (
        "frames",
        "elif key in frame.segments:",
        "elif frame is home and key in frame.segments:",
        "axis_by_a_known_branch",
    ),
    (
        "frames",
        "for frame in self.outwards():\n            if frame is home",
        "for frame in (home, home.parent or home):\n            if frame is home",
        "axis_by_a_branch_in_a_branch",
    ),
    ("state", "            node.prover.resets.add(key)\n", "            pass\n", "seed_set_back_by_a_slice"),
    ("state", "elif len(keys) < sum(", "elif False and len(keys) < sum(", "axis_by_a_hidden_handle"),
    (
        "state",
        "[] if fault is None else left_out",
        "[] if True else left_out",
        "state_written_by_a_loop_that_does_not_settle",
    ),
    ("lists", "found.unset or (found.spare and not shown))", "False)", "axis_never_put"),
    ("lists", "element_of(node, found, inputs[1], found.unset),", "found.element,", "axis_never_put_at_the_end"),
    (
        "lists",
        "replace(old, length=None, unset=True)",
        "replace(old, length=None)",
        "ones_never_put_behind_what_grows",
    ),
    ("lists", "found.unset or found.spare)\n    if isinstance", "False)\n    if isinstance", "ones_never_put"),
    ("lists", "if not shown and counts(found.length):", "if False:", "last_element_under_xla"),
    ("lists", "if not within(number, count):", "if False:", "last_place_under_xla"),
    ("lists", "length=longer(found, -1), spare=True)", "length=found.length)", "length_after_the_last"),
    ("lists", "if counts(old.length):", "if False:", "behind_as_many_as_there_are"),
    ("shapes", "length=value.steps[2]", "length=None", "length_of_zeros_of_places"),
    ("shapes", "element=element, rows=rows)", "element=element, rows=None)", "length_of_zeros_of_records"),
    ("never_put", "if any(varies", "if False and any(varies", "as_long_as_was_never_put_in_a_branch"),
    ("told", "if any(not shown", "if any(False and not shown", "size_of_an_element"),
    ("told", "yield told_of(tensor, [begins[k], ends[k]] if loops else [begins[k]])", "pass", "size_in_a_call"),
    ("told", "yield told_of(tensor, [begins[k], ends[k]] if loops else [ends[k]])", "pass", "size_after_a_branch"),
]
"""As `mutation_table.EDITS`."""
