"""Networks by name: those that come with the platform, and those of users."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Final, TypeVar

from engram.core.checks import require
from engram.core.process_modes import Registry

# Listing networks, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from torch import nn

FLAT: Final = ("mlp", "cnn", "linear")
"""Networks of dense layers, and of convolutions below them, which take rows of numbers."""

CHARACTERS: Final = ("lstm", "transformer")
"""Networks that predict the next character, of as many as they have outputs."""

TEXTS: Final = ("text-mean", "text-cnn")
"""Networks that classify texts, or predict values of them, by tokens of which 0 is padding."""

BUILT_IN: Final = (*FLAT, "cnn-valid", "resnet", *CHARACTERS, *TEXTS)

TORCHVISION: Final = "torchvision:"
"""Before the name of a classification network of torchvision's."""

NETWORKS: Registry["nn.Module | Callable[..., nn.Module]"] = Registry()
"""Modules of users, or what makes them, by name."""

_M = TypeVar("_M", bound="nn.Module | Callable[..., nn.Module]")


def model(make: _M, name: str = "") -> _M:
    """Makes a module known by a name; to be used as the decorator of a class or a function.

    Args:
        make: The class of a module, or a function that makes one, neither of which needs arguments;
            or a module, whose parameters are where every run starts; or a function of a client's
            name that returns that client's module.
        name: What it is called in the setting ``model``; by default what it is called in Python.

    Raises:
        ValueError: If the name is that of a built-in network.
    """
    name = name or getattr(make, "__name__", type(make).__name__)
    free = not _is_built_in(name)
    require(free, "name of a network", name, "one that no built-in network has")
    NETWORKS[name] = make
    return make


def is_known(name: str) -> bool:
    """Returns whether there is a network of this name."""
    return _is_built_in(name) or maker(name) is not None


def maker(name: str) -> "nn.Module | Callable[..., nn.Module] | None":
    """Returns a user's network by its name, or a client's by NAME:CLIENT; None if there is none."""
    found: nn.Module | Callable[..., nn.Module] | None = NETWORKS.get(name)
    if is_one_clients(name):
        whole, _, client = name.partition(":")
        found = partial(NETWORKS[whole], int(client) if client.isdecimal() else client)
    return found


def is_one_clients(name: str) -> bool:
    """Returns whether a name is NAME:CLIENT, that of one client's network."""
    return name not in NETWORKS and differs_by_client(name.partition(":")[0])


def differs_by_client(name: str) -> bool:
    """Returns whether a network is a function of one argument, the client's name."""
    make = NETWORKS.get(name)
    if not isinstance(make, FunctionType | MethodType | partial):  # a class has other arguments
        return False
    needed = [p for p in signature(make).parameters.values() if p.default is p.empty]
    return len([p for p in needed if "VAR" not in p.kind.name]) == 1


def _is_built_in(name: str) -> bool:
    return name in BUILT_IN or name.startswith(TORCHVISION)
