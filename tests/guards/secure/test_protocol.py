"""The protocol in memory: the sum is exact whoever drops out, and nobody learns more than it."""

from copy import copy
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from engram.guards.secure.masks import agreed, mask, pairwise
from engram.guards.secure.quantize import narrow, widen
from engram.guards.secure.shares import SHARE, join, split
from engram.settings.errors import Refused
from tests.guards.secure.parties import STAGES, Round, entropy, session, vectors
from tests.samples import entry


def modular_sum(updates):
    """The sum modulo 2^32 by Python's own whole numbers."""
    total = [sum(map(int, column)) % 2**32 for column in zip(*updates, strict=True)]
    return np.array(total, dtype=np.uint32)


def keys_of(adverts):
    return {party: advert.data for party, advert in adverts.items()}


def test_the_sum_is_that_of_those_whose_updates_have_come():
    for gone in [
        {},
        {"advertise": [0]},
        {"share": [3, 4]},
        {"mask": [0, 6]},
        {"agree": [1]},
        {"reveal": [2, 5]},
        {"advertise": [6], "mask": [1]},
        {"share": [0], "reveal": [3]},
    ]:
        with entry(gone):
            updates = vectors(range(7), 50)
            found = Round(session(7), updates).to("reveal", **gone).unmask()
            missing = {p for stage in ("advertise", "share", "mask") for p in gone.get(stage, ())}
            expected = modular_sum([x for p, x in updates.items() if p not in missing])
            np.testing.assert_array_equal(found, expected)
            sizes, rng = np.array([1e-12, 1e-3, 1.0, 1e9, 1e30]), np.random.default_rng(1)
            wide = {p: sizes * rng.normal(size=5) for p in updates}
            played = Round(session(7), {p: widen(x) for p, x in wide.items()})
            found = narrow(played.to("reveal", **gone).unmask())
            columns = zip(*(x for p, x in wide.items() if p not in missing), strict=True)
            exact = [float(sum(map(Fraction, column))) for column in columns]
            np.testing.assert_allclose(found, exact, rtol=1e-15)


@pytest.mark.parametrize("stage", ["share", "mask", "agree", "reveal"])
def test_below_the_threshold_a_stage_is_refused_by_the_parties(stage):
    played = Round(session(6), vectors(range(6), 3))  # of whom five must stay
    before = STAGES[STAGES.index(stage) - 1]
    played.to(before, **{before: [0, 1]})
    with pytest.raises(Refused, match="must be"):
        getattr(played, stage)()


def test_fewer_shares_than_the_threshold_unmask_nothing():
    played = Round(session(6), vectors(range(6), 3)).to("reveal")
    played.revealed = {p: played.revealed[p] for p in range(4)}
    with pytest.raises(Refused, match="shares must be 5 parties', got 'those of 4'"):
        played.unmask()


def test_a_masked_update_is_uniform_whatever_it_is_of():
    size = 64_000
    zeros = {p: np.zeros(size, dtype=np.uint32) for p in range(4)}
    played = Round(session(4), zeros).to("mask")
    for masked in played.masked.values():
        for byte in range(4):
            values = (masked >> np.uint32(8 * byte)) & np.uint32(255)
            assert chisquare(np.bincount(values, minlength=256)).pvalue > 1e-4
    pairs = np.corrcoef([m.astype(float) for m in played.masked.values()])
    assert np.abs(pairs - np.eye(4)).max() < 5 / np.sqrt(size)


def test_the_server_cannot_subtract_its_way_to_one_update():
    """Without the own mask of a party, all other updates and masks leave it uniform."""
    updates = {p: np.full(64_000, p, dtype=np.uint32) for p in range(4)}
    played = Round(session(4), updates).to("mask")
    # As if all but party 0 had told the server everything but what they hold of party 0.
    rest = played.masked[0].copy()
    for p in range(1, 4):
        private = played.there[p]._masking
        seed = agreed(private, played.adverts[0].masking, played.terms.purpose)
        rest += mask(seed, rest.size)  # party 0 has subtracted it, since 0 < p
    values = rest & np.uint32(255)
    assert chisquare(np.bincount(values, minlength=256)).pvalue > 1e-4
    own = mask(played.there[0]._seed, rest.size)
    np.testing.assert_array_equal(rest - own, updates[0])


def test_keys_are_taken_only_with_the_signatures_of_registered_keys():
    played = Round(session(4), vectors(range(4), 3)).to("advertise")
    adverts = dict(played.adverts)
    other = Round(session(4), vectors(range(4), 3), seed=1).to("advertise")

    def shared(**changes):
        given = adverts | {int(p[1:]): advert for p, advert in changes.items()}
        copy(played.there[0]).share(keys_of(given))

    shared()
    forged = adverts[1]._replace(masking=other.adverts[1].masking)
    bare = adverts[1]._replace(signature=b"0")
    for advert in (forged, bare, other.adverts[1]):
        with pytest.raises(Refused, match="registered for client-1, got 'another one'"):
            shared(p1=advert)
    with pytest.raises(Refused, match="two alike"):
        shared(p1=adverts[2])
    with pytest.raises(Refused, match="client-0's among them"):
        shared(p0=other.adverts[0])
    twin = adverts[1]._replace(sealing=adverts[2].sealing, masking=adverts[2].masking)
    with pytest.raises(Refused, match="two alike"):
        shared(p1=twin)


def test_keys_of_another_round_or_of_other_terms_are_refused():
    for special in [
        {"number": 2},
        {"training": "u"},
        {"asked": ((0, 1), (1, 1), (2, 1), (3, 2))},
        {"most": 7},
        {"bound": 2.0},
        {"multiplier": 1},
        {"work": "other settings"},
        {"model": "another model"},
    ]:
        with entry(special):
            played = Round(session(4), vectors(range(4), 3)).to("advertise")
            replayed = Round(session(4, **special), vectors(range(4), 3), keys=played.keys)
            adverts = replayed.to("advertise").adverts | {0: played.adverts[0]}
            with pytest.raises(Refused, match="registered for client-1"):
                played.there[0].share(keys_of(adverts))


def test_shares_are_read_only_by_whom_and_in_the_round_they_are_for():
    played = Round(session(4), vectors(range(4), 3)).to("share")
    party, mine = played.there[0], played.for_party(0)
    copy(party).open(mine)
    spoiled = bytes([mine[1][0] ^ 1]) + mine[1][1:]
    for data in (spoiled, mine[2], played.sealed[1][2], b""):
        with pytest.raises(Refused, match="shares of client-1 must be sealed by it"):
            copy(party).open(mine | {1: data})
    with pytest.raises(Refused, match="of others of the 4 parties"):
        copy(party).open(mine | {9: mine[1]})


def test_parties_who_were_told_different_keys_cannot_read_each_others_shares():
    played = Round(session(5), vectors(range(5), 3)).to("advertise")
    fewer = {p: a for p, a in played.adverts.items() if p != 4}
    played.there[0].share(keys_of(played.adverts))
    others = {p: played.there[p].share(keys_of(fewer))[0] for p in (1, 2, 3)}
    with pytest.raises(Refused, match="for this round"):
        played.there[0].open(others)


def test_no_party_tells_shares_of_both_secrets_of_another():
    played = Round(session(5), vectors(range(5), 3)).to("mask")
    masked, everyone = {p: copy(party) for p, party in played.there.items()}, [*range(5)]
    played.agree()
    signed, agreed = dict(played.signatures), played.there[0]
    seeds = copy(agreed).reveal(signed)
    # The server then says that party 4 has dropped out, to have the share of its key, too.
    second = {p: masked[p].agree([0, 1, 2, 3])[p] for p in range(4)}
    with pytest.raises(Refused, match="registered for client-"):
        copy(agreed).reveal(second)
    with pytest.raises(Refused, match="registered for client-3"):
        copy(agreed).reveal(signed | {3: second[3]})
    kept = agreed._shares
    assert seeds == {p: kept[p][SHARE:] for p in everyone}
    assert all(seeds[p] != kept[p][:SHARE] for p in everyone)


def test_a_party_takes_each_stage_once_and_in_turn_also_where_it_is_refused():
    played = Round(session(5), vectors(range(5), 3))
    party, everyone = played.there[0], [*range(5)]
    stages = {
        "share": lambda: party.share(keys_of(played.adverts)),
        "open": lambda: party.open(played.for_party(0)),
        "mask": lambda: party.mask(3),
        "agree": lambda: party.agree(everyone),
        "reveal": lambda: party.reveal(played.signatures),
    }
    ahead_of = {"advertise": "share", "share": "open", "mask": "agree", "agree": None}
    for done, ahead in ahead_of.items():
        getattr(played, done)()
        for stage in stages.keys() - {ahead, "reveal" if ahead is None else ""}:
            with pytest.raises(Refused, match="client-0 is not at this stage of round 1"):
                stages[stage]()
    with pytest.raises(Refused, match="signatures must be"):
        party.reveal({})
    with pytest.raises(Refused, match="client-0 is not at this stage of round 1"):
        stages["reveal"]()


def test_a_party_that_has_sent_its_update_is_a_survivor_or_signs_nothing():
    played = Round(session(5), vectors(range(5), 3)).to("mask")
    for wrong in ([1, 2, 3, 4], [0, 1, 2], [0, 1, 2, 3, 4, 9]):
        with pytest.raises(Refused, match="survivors must be 4 or more of the 5"):
            copy(played.there[0]).agree(wrong)


def test_an_update_that_comes_after_the_others_were_unmasked_stays_masked():
    """By then the server has its pairwise masks, whose key the others have told shares of."""
    size = 64_000
    played = Round(session(5), {p: np.full(size, p, dtype=np.uint32) for p in range(5)}).to("mask")
    late, party = played.masked.pop(4), played.there.pop(4)
    played.agree()
    played.reveal()
    np.testing.assert_array_equal(played.unmask(), np.full(size, 6))
    key = join({p: told[4] for p, told in played.revealed.items()})
    assert key == party._masking
    others = {p: played.adverts[p].masking for p in range(4)}
    rest = late - pairwise(4, key, others, played.terms.purpose, size)
    assert chisquare(np.bincount(rest & np.uint32(255), minlength=256)).pvalue > 1e-4
    np.testing.assert_array_equal(rest - mask(party._seed, size), np.full(size, 4))
    assert all(told[4] != party._shares[4][SHARE:] for told in played.revealed.values())


def test_masks_of_two_rounds_have_nothing_in_common_even_of_the_same_keys():
    size, seen, keys = 64_000, [], set()
    zeros = {p: np.zeros(size, dtype=np.uint32) for p in range(4)}
    for number in (1, 2):
        played = Round(session(4, number=number), zeros).to("mask")
        party = played.there[0]
        keys.add(party._masking)
        seen.append(played.masked[0] - mask(party._seed, size))  # pairwise masks alone
    assert len(keys) == 1
    values = (seen[0] - seen[1]) & np.uint32(255)
    assert chisquare(np.bincount(values, minlength=256)).pvalue > 1e-4


def test_a_false_share_is_noticed():
    for dropped in [(), (4,)]:
        with entry(dropped):
            played, victim = Round(session(5), vectors(range(5), 3)).to("reveal", mask=dropped), 4
            played.revealed[0][victim] = bytes(66)
            with pytest.raises(Refused, match=f"client-{victim} must give that secret"):
                played.unmask()
            for p, share in split(bytes(32), sorted(played.revealed), 4, entropy(0)).items():
                played.revealed[p][victim] = share  # of another secret, all of them
            with pytest.raises(Refused, match=f"client-{victim} must give that secret"):
                played.unmask()


def test_a_threshold_of_one_half_or_less_is_refused():
    for parties, least in [(4, 2), (5, 2), (3, 0), (4, 5)]:
        with entry(parties, least):
            terms = session(parties, threshold=least)
            with pytest.raises(ValueError, match="threshold must be above one half"):
                Round(terms, vectors(range(parties), 1))


def test_one_party_alone_is_refused():
    with pytest.raises(ValueError, match="parties must be 2 or more"):
        Round(session(1), vectors(range(1), 1))
