"""Secure aggregation as a guard: encoding, weights and noise; masks are the protocol's."""

from typing import Final

import numpy as np
import torch

from engram.core.method import Update
from engram.core.slots import over_slots
from engram.guards.accounting.releases import Release
from engram.guards.changes import arrays_of, change_of, changed, shortened, vector_of
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.secure.noise import deviation, discrete_gaussian
from engram.guards.secure.quantize import quantize, restore, room_of

_NEEDS: Final = frozenset({Fact.MEAN, Fact.BOUNDED, Fact.CURRENT, Fact.KNOWN})
_NOISE: Final = frozenset({Fact.NOISY, Fact.SOLVED})

MASKED: Final = "masked"
"""Slot of a masked part, or of the sum of them without masks: int32, (numbers of a change,)."""


def secure_sum(multiplier: float = 0.0) -> Guard:
    """Builds sums of the changes of a site's clients, as whole numbers that are masked.

        round(w L x / C) + noise + mask    (mod 2^32)

    x is the mean of their changes, with as many weights w of the largest client as they have rows;
    C is the bound of what stands before this guard, and L the levels in it. The server divides the
    sum by all weights; or, where there is noise, by the clients asked: as in central privacy, a
    missing one counts as one that changed nothing. Then a sum may be longer than its bound. Noise
    comes in shares: it is central privacy's, with the multiplier z >= 0; 0 for none. See
    ``quantize`` and ``noise`` for the arithmetic.
    """
    noisy = multiplier > 0

    def send(at: At, update: Update) -> Update:
        vector = vector_of(change_of(at, update)).cpu().numpy()
        weight, room = update.rows / at.sum.most, room_of(at.sum, multiplier)
        words = quantize(vector, bound=at.bound, weight=weight, room=room)
        if noisy:
            spread = deviation(at.sum, multiplier, words.size)
            words += discrete_gaussian(words.size, spread, at.sum.entropy).astype(np.uint32)
        words += at.sum.mask(words.size)
        return update._replace(slots={MASKED: torch.from_numpy(words.view(np.int32))})

    def arrive(at: At, update: Update) -> Update:
        rows, clients = (float(at.asked),) * 2 if noisy else (update.rows, update.clients)
        words = update.slots[MASKED].numpy().view(np.uint32)
        total = restore(words, bound=at.bound, room=room_of(at.sum, multiplier))
        zeros = over_slots(lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype), at.like)
        nothing = Update(zeros, rows, clients)
        mean = torch.from_numpy(total * (at.sum.most / rows))
        found = changed(at, nothing, arrays_of(mean, change_of(at, nothing)))
        return found if noisy else shortened(at, found, at.bound)

    # Shares are discrete, and concentrated privacy is known of their sum.
    releases = (Release(multiplier, normal=False),) if noisy else ()
    needs, ends, gives = set(_NEEDS), {Fact.EACH}, {Fact.MASKED}
    if noisy:
        needs, ends, gives = needs | {Fact.SUM}, ends | {Fact.OPEN}, gives | _NOISE
    guard = Guard("secure-sum", needs, ends, gives, alike=noisy, asks=2)
    return guard._replace(send=send, arrive=arrive, releases=lambda plan: releases)
