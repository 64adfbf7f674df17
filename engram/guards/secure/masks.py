"""Masks: uniform words of 32 bits, by AES-256 in counter mode, keyed with a whole seed.

A seed is used for one mask, so that the counter may begin at zero (NIST SP 800-38A, 6.5).
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from engram.guards.secure.quantize import Words, add, subtract

SEED: Final = 32
"""Bytes of a seed, and of a key."""


def mask(seed: bytes, *shape: int) -> Words:
    """Returns PRG(seed), words of this shape."""
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor().update(bytes(4 * math.prod(shape)))
    return np.frombuffer(stream, dtype="<u4").astype(np.uint32, copy=False).reshape(shape)


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Returns the key that two parties agree on, KA.agree: X25519, then HKDF with SHA-256.

    ``purpose`` sets apart the keys for one thing from those for another.

    Raises:
        ValueError: The public key is no key, or of low order.
    """
    other = X25519PublicKey.from_public_bytes(public)
    secret = X25519PrivateKey.from_private_bytes(private).exchange(other)
    return HKDF(hashes.SHA256(), SEED, salt=None, info=purpose).derive(secret)


def public_of(private: bytes) -> bytes:
    """Returns the public half of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment(seed: bytes) -> bytes:
    """Returns the commitment to a seed: a digest that its reconstruction must match."""
    return hashlib.sha256(b"engram secure seed" + seed).digest()


def pairwise(
    own: int, private: bytes, publics: Mapping[int, bytes], purpose: bytes, *shape: int
) -> Words:
    """Returns the sum of a party's pairwise masks; the others' cancel it (Fig. 4, round 2).

        sum over v of PRG(s_uv) for v < u, and of -PRG(s_uv) for v > u

    Of the party u = ``own`` with its private key, and the others' public keys.
    """
    total = np.zeros(shape, dtype=np.uint32)
    for other, public in publics.items():
        one = mask(agreed(private, public, purpose), *shape)
        total = (add if own > other else subtract)(total, one)
    return total
