"""Channels last: the same numbers, in an order that convolutions keep."""

import torch
from torch.nn import functional

from engram.cohort.sequential import channels_last
from tests.samples import entry


def test_convolutions_keep_the_order():
    for channels in [1, 3]:
        with entry(channels):
            x, filters = torch.randn(2, channels, 6, 5), torch.randn(4, channels, 3, 3)
            found = channels_last(x)
            assert torch.equal(found, x)
            assert found.stride() == (30 * channels, 1, 5 * channels, channels)
            assert functional.conv2d(found, filters).stride() == (4 * 4 * 3, 1, 3 * 4, 4)


def test_what_is_no_image_is_left_alone():
    x = torch.randn(2, 3, 4)
    assert channels_last(x) is x
