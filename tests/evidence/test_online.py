"""The comparison of online learners runs; its figures are tested in tests/online."""

from tests.evidence import online


def test_every_claim_is_about_a_setting_that_is_played():
    found = {"ensemble": {1000: 2.0, 4000: 6.0, 16_000: 9.0}, "OGD": {4000: 8.0, 16_000: 36.0}}
    assert {claim.setting for claim in online.CLAIMS} == {*online.STREAMS, "bilinear game"}
    expected = {
        "R(16000) / R(4000)": 1.5,
        "of OGD's": 0.25,
        "R(16000) - R(1000)": 7.0,
        "R(4000) / R(1000)": 3.0,
        "of OGD's at 4000": 0.75,
    }
    for claim in online.CLAIMS:
        assert claim.value(found) == expected[claim.what]


def test_it_prints_tables(monkeypatch, capsys):
    monkeypatch.setattr(online, "HORIZONS", (10, 20, 40))
    monkeypatch.setattr(online, "CLAIMS", ())
    online.main(draws=1)
    printed = capsys.readouterr().out
    for text in ("random linear", "bilinear game", "T = 40", "ensemble"):
        assert text in printed
