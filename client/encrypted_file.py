"""Seals a client's files: with a checksum, or encrypted if the operator gave a key."""

import hashlib
import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from engram.settings.errors import EngramError, Refused
from engram.settings.files import open_file, refusing, replace_file

_MAGIC: Final = b"engram sealed 1\n"  # 1: version of this format
_PLAIN: Final = b"p"  # then SHA-256 of label and body, then the body
_ENCRYPTED: Final = b"e"  # then a nonce, then the body by AES-256-GCM, bound to the label
_NONCE: Final = 12
_KEY: Final = 32


class Damaged(EngramError):
    """A file is not as it was written, or was written with another key."""


class Unencrypted(Damaged):
    """An intact file is not encrypted, although there is a key."""


def seal(body: bytes, label: str, key: bytes | None) -> bytes:
    """Returns the sealed contents of a file.

    Args:
        body: The contents.
        label: What the file is, so that another file in its place is detected.
        key: 32 bytes to encrypt with; None to leave it readable.
    """
    if key is None:
        return _MAGIC + _PLAIN + _digest(body, label) + body
    nonce = os.urandom(_NONCE)
    return _MAGIC + _ENCRYPTED + nonce + AESGCM(key).encrypt(nonce, body, label.encode())


def unseal(data: bytes, label: str, key: bytes | None) -> bytes:
    """Returns the contents that ``seal`` sealed.

    With a key, unencrypted files are not accepted, since anybody can compute their checksum.

    Raises:
        Damaged: If the file is truncated, altered, of another label, or of another key.
        Unencrypted: If it was sealed without a key, and there is one.
    """
    start = len(_MAGIC) + 1
    kind = data[len(_MAGIC) : start]
    if not data.startswith(_MAGIC) or kind not in (_PLAIN, _ENCRYPTED):
        raise Damaged("it is damaged, or of another version")
    if kind == _PLAIN:
        checksum, body = data[start : start + 32], data[start + 32 :]
        if checksum != _digest(body, label):
            raise Damaged("it is damaged: its checksum is wrong")
        if key is not None:
            raise Unencrypted("it is not encrypted, although there is a key")
        return body
    if key is None:
        raise Damaged("it is encrypted, and no key is given")
    nonce, body = data[start : start + _NONCE], data[start + _NONCE :]
    if len(nonce) < _NONCE:
        raise Damaged("it is damaged: it ends early")
    try:
        return AESGCM(key).decrypt(nonce, body, label.encode())
    except InvalidTag as error:
        raise Damaged("it is damaged, or encrypted with another key") from error


def new_key(path: Path) -> None:
    """Writes a new key, which only its owner may read.

    Raises:
        Refused: If the file exists, since what is encrypted with it would be lost, or cannot be
            written.
    """
    if path.exists():
        raise Refused(f"{path} is there already: memories may be encrypted with it")
    with refusing(f"the key {path} cannot be written"):
        replace_file(path, os.urandom(_KEY).hex().encode() + b"\n")


def read_key(path: Path) -> bytes:
    """Returns the key in a file.

    Raises:
        Refused: If the file holds no key, or others may read it.
    """
    try:
        with open_file(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            key = bytes.fromhex(file.read(4 * _KEY).decode("ascii").strip())
    except OSError as error:
        raise Refused(f"the key {path} cannot be read: {error.strerror}") from error
    except ValueError:
        key, mode = b"", 0
    if len(key) != _KEY:
        raise Refused(f"{path} must hold a key of {2 * _KEY} hexadecimal digits")
    if mode & 0o077:
        raise Refused(f"others may read the key {path}: chmod 600 {path}")
    return key


def _digest(body: bytes, label: str) -> bytes:
    digest = hashlib.sha256(label.encode() + b"\0")
    digest.update(body)
    return digest.digest()
