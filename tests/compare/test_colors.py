"""Methods of a figure look different, also to people who see few colors."""

import subprocess
import sys
from itertools import combinations

import numpy as np

from engram.compare.colors import PALETTE, looks_of
from engram.settings.families import family
from engram.settings.network import NetworkMethod

# Viénot, Brettel, Mollon, Color Research & Application 1999: sRGB without green and without red
# cones, for linear values.
PROTAN = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTAN = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])

DEMO = ["local", "fedavg", "ditto", "apfl", "fedrep", "pfedme", "per-fedavg", "local-moml"]


def lab(color, seen=None):
    """CIELAB of a color, as it is seen."""
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = linear if seen is None else np.clip(seen @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ linear / [0.9505, 1, 1.089]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_colors_are_told_apart_and_from_gray_lines():
    for seen in (None, PROTAN, DEUTAN):
        apart = [np.linalg.norm(lab(a, seen) - lab(b, seen)) for a, b in combinations(PALETTE, 2)]
        assert min(apart) > 4.6  # twice a just noticeable difference (Mahy et al. 1994)
    assert min(np.hypot(*lab(color)[1:]) for color in PALETTE) > 20


def test_every_method_has_a_look_of_its_own_and_those_compared_a_color():
    looks = {looks_of([n])[n] for n in family(NetworkMethod.plug_in)}
    assert len(looks) == len(family(NetworkMethod.plug_in))
    compared = family(NetworkMethod.plug_in, compared=True)
    assert len({looks_of([n])[n].color for n in compared}) == len(compared)


def test_methods_of_one_figure_never_look_alike_and_ten_have_a_color_each():
    for few in (DEMO, [f"mine, eta=0.{i}" for i in range(10)]):
        assert len({look.color for look in looks_of(few).values()}) == len(few)
    names = [*family(NetworkMethod.plug_in), *(f"mine-{i}" for i in range(61))]
    looks = looks_of(names)
    assert len({*looks.values()}) == len(names) == 100


def test_a_look_is_of_the_name_alone():
    code = "from engram.compare.colors import looks_of; print(*looks_of(['mine'])['mine'])"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.split() == list(looks_of(["mine"])["mine"])
