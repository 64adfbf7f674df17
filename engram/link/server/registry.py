"""Signs the registry of a federation's keys anew, where its authority's key is."""

from pathlib import Path

from engram.link.keys import read_server_key
from engram.runs.folders import replace_file
from engram.settings.errors import Refused
from engram.settings.registry import REGISTRY, fingerprint, signed_registry


def sign_registry(folder: Path) -> str:
    """Writes the registry of the keys in the server's folder; sites take it from the server.

    Args:
        folder: The server's folder.

    Returns:
        The registry's fingerprint; "" where the authority's key is not beside the folder, as of an
        insecure federation: then nothing is written.

    Raises:
        Refused: The folder or the key is not in order, or the registry cannot be written.
    """
    private = folder.parent / "ca.key"
    if not private.is_file():
        return ""
    public = {path.stem.removeprefix("client-"): path for path in folder.glob("clients/*.pub")}
    try:
        keys = {int(number): path.read_bytes() for number, path in public.items()}
    except (OSError, ValueError) as error:
        raise Refused(
            f"{folder / 'clients'} must have keys, client-N.pub, alone: {error}"
        ) from error
    data = signed_registry(keys, read_server_key(private))
    replace_file(folder / REGISTRY, data)
    return fingerprint(data)
