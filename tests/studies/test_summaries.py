"""Groups of rows."""

from engram.studies.summaries import grouped


def test_rows_are_grouped_in_the_order_in_which_they_come():
    rows = [{"a": 2, "b": {"c": 1}}, {"a": 1, "b": {}}, {"a": 2, "b": {"c": 1}}]
    groups = grouped(rows, "a", "b")
    assert list(groups) == [(2, (("c", 1),)), (1, ())]
    assert groups[1, ()] == [rows[1]]
    assert len(groups[2, (("c", 1),)]) == 2
