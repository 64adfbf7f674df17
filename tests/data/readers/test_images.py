"""Image files as a viewer shows them, with all their levels."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn

from engram.data.load_federation import federated_data
from engram.data.new_rows import read_new_rows
from engram.data.readers.images import read_images
from engram.networks.registry import model
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.samples import entry

RNG = np.random.default_rng(0)
DEEP = RNG.integers(3000, 9000, (12, 5, 4)).astype("uint16")
GREY = (DEEP // 256).astype("uint8")
COLOR = RNG.integers(0, 256, (12, 5, 4, 3)).astype("uint8")
ALPHA = RNG.integers(0, 256, (12, 5, 4)).astype("uint8")


@pytest.fixture(autouse=True)
def _own(plug_ins):
    model(nn.Identity, "Own")


def write(folder, pictures, ending="png", clients="ab", **how):
    """Writes pictures as those of two clients and two classes."""
    for number, picture in enumerate(pictures):
        client, kind = clients[number % 2], "cat" if number // 2 % 2 else "dog"
        (folder / client / kind).mkdir(parents=True, exist_ok=True)
        picture.save(folder / client / kind / f"{number}.{ending}", **how)
    return sorted(folder.rglob(f"*.{ending}"))


def read(folder, **settings):
    given = {"partition": "natural", "num_clients": 2, "clients_per_round": 1, "batch_size": 2}
    given |= {"method": "fedavg", "validation_fraction": 0, "model": "Own"} | settings
    return federated_data(Experiment(dataset=f"images:{folder}", **given))


def seen(folder, **settings):
    """Rows as networks get them, (n, channels, height, width), in the order of their files."""
    data = read(folder, **settings)
    rows = torch.cat([split.take(torch.arange(len(split.y)))[0] for split in data[:2]])
    order = np.argsort(np.concatenate([data.train.given, data.test.given]))
    return rows.numpy()[order]


def arrays(paths, convert=lambda image: image):
    found = np.stack([np.asarray(convert(Image.open(path)), dtype=np.float64) for path in paths])
    return found[:, None] if found.ndim == 3 else np.moveaxis(found, 3, 1)


@pytest.fixture
def told(caplog):
    return lambda: [r.getMessage() for r in caplog.records if "of the images" in r.getMessage()]


@pytest.mark.parametrize(("ending", "network"), [("png", "Own"), ("tif", "cnn")])
def test_levels_of_16_bits_are_shares_of_the_largest(tmp_path, told, ending, network):
    paths = write(tmp_path / "scans16", map(Image.fromarray, DEEP), ending)
    found = seen(tmp_path / "scans16", model=network)
    np.testing.assert_allclose(found, arrays(paths) / 65535, rtol=1e-6)
    (text,) = told()
    assert text.endswith("scans16: of the images, levels of 16 bits are shares of 65535")


def test_levels_of_32_bits_are_used_as_they_are(tmp_path, told):
    paths = write(tmp_path / "scans32", map(Image.fromarray, DEEP.astype("float32") / 7), "tif")
    np.testing.assert_array_equal(seen(tmp_path / "scans32"), arrays(paths))
    assert "levels of 32 bits are used as they are" in told()[0]


def test_colors_of_16_bits_of_which_8_would_be_read_are_refused(tmp_path):
    def chunk(kind, content):
        crc = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + crc

    deep = RNG.integers(0, 65536, (5, 4, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in deep)
    header = struct.pack(">IIBBBBB", 4, 5, 16, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    content = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
    for path in write(tmp_path, [Image.new("RGB", (4, 5))] * 4):
        path.write_bytes(content)
    words = r"\d\.png has 16 bits a color, of which Pillow reads 8: sa"
    with pytest.raises(DataError, match=words):
        read_images(tmp_path)


def test_other_depths_than_the_first_ones_are_refused(tmp_path):
    write(tmp_path, map(Image.fromarray, [*GREY[:11], DEEP[11]]))
    with pytest.raises(DataError, match=r"11\.png must have 8 bits a level, as the first"):
        read_images(tmp_path)


@pytest.mark.parametrize(
    ("pictures", "mode"),
    [
        ([Image.fromarray(each).quantize(32) for each in COLOR], "RGB"),
        ([Image.fromarray(each).quantize(32) for each in GREY], "L"),
        ([Image.fromarray(each).convert("1") for each in GREY * 9], "L"),
        ([Image.fromarray(each).convert("CMYK") for each in COLOR], "RGB"),
    ],
)
def test_palettes_and_two_levels_are_the_colors_that_they_mean(tmp_path, told, pictures, mode):
    ending = "tif" if pictures[0].mode == "CMYK" else "png"
    paths = write(tmp_path, pictures, ending)
    expected = arrays(paths, lambda image: image.convert(mode)) / 255
    np.testing.assert_allclose(seen(tmp_path), expected, rtol=1e-6)
    assert not told()


def test_grey_images_among_colored_ones_are_said(tmp_path, told):
    pictures = [Image.fromarray(GREY[k] if k % 2 == 0 else COLOR[k]) for k in range(12)]
    paths = write(tmp_path / "some", pictures)
    expected = arrays(paths, lambda image: image.convert("RGB")) / 255
    np.testing.assert_allclose(seen(tmp_path / "some"), expected, rtol=1e-6)
    words = "6 of 12 looked at are grey, and read in color as others"
    assert [text.partition("images, ")[2] for text in told()] == [words]


@pytest.mark.parametrize("colors", [COLOR, GREY])
def test_transparent_images_are_on_white_or_have_a_channel_for_it(tmp_path, told, colors):
    clear = [Image.fromarray(each) for each in colors]
    for image, alpha in zip(clear, ALPHA, strict=True):
        image.putalpha(Image.fromarray(alpha))
    paths = write(tmp_path, clear)
    share = arrays(paths, lambda image: image.getchannel("A")) / 255
    mode = "RGB" if colors is COLOR else "L"
    opaque = arrays(paths, lambda image: image.convert(mode)) / 255
    expected = opaque * share + 1 - share
    np.testing.assert_allclose(seen(tmp_path), expected, atol=1.01 / 255)  # of whole levels
    assert "where they are transparent they are white (images=alpha keeps it)" in told()[0]
    kept = seen(tmp_path, images="alpha")
    np.testing.assert_allclose(kept, np.concatenate([opaque, share], axis=1), rtol=1e-6)


def test_a_palette_may_have_a_transparent_color(tmp_path):
    pictures = [Image.fromarray(each).quantize(4) for each in COLOR]
    paths = write(tmp_path, pictures, transparency=2)
    expected = []
    for path in paths:
        over = Image.new("RGBA", (4, 5), "white")
        over.alpha_composite(Image.open(path).convert("RGBA"))
        expected.append(np.moveaxis(np.asarray(over.convert("RGB"), np.float64), 2, 0) / 255)
    np.testing.assert_allclose(seen(tmp_path), expected, rtol=1e-6)


def test_photos_are_turned_as_they_are_shown(tmp_path):
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        paths = write(tmp_path, map(Image.fromarray, COLOR), exif=exif)
        expected = arrays(paths, ImageOps.exif_transpose) / 255
        with entry(turn):
            assert expected.shape[2:] == ((5, 4) if turn < 5 else (4, 5))
            np.testing.assert_allclose(seen(tmp_path), expected, rtol=1e-6)


def test_several_frames_are_said(tmp_path, told):
    frames = [Image.fromarray(each) for each in GREY]
    write(tmp_path, frames, "tif", save_all=True, append_images=frames[:2])
    read_images(tmp_path)
    assert "of several frames the first is read" in told()[0]


def test_new_images_are_read_as_those_of_the_run(tmp_path):
    paths = write(tmp_path / "deep", map(Image.fromarray, DEEP))
    kind = read(tmp_path / "deep").kind
    found = read_new_rows(tmp_path / "deep", kind, {"model": "Own", "images": "auto"}).x
    np.testing.assert_allclose(found.numpy(), arrays(paths) / 65535, rtol=1e-6)


# --- Parts -----------------------------------------------------------------------------------


def test_folders_of_train_and_test_are_parts_and_no_clients(tmp_path):
    for test in ("test", "val", "valid", "validation", "Testing"):
        folder = tmp_path / f"for {test}"
        train = "Training" if test == "Testing" else "train"
        write(folder, map(Image.fromarray, COLOR[:8]), clients=(train, train))
        write(folder, map(Image.fromarray, COLOR[8:]), clients=(test, test))
        data = read(folder, partition="iid")
        with entry(test):
            assert (len(data.train.y), len(data.test.y), data.names) == (8, 4, {})
            paths = sorted((folder / test).rglob("*.png"))
            found = data.test.take(torch.arange(4))[0]
            np.testing.assert_allclose(found.numpy(), arrays(paths) / 255, rtol=1e-6)
            assert data.test.y.tolist() == [0, 0, 1, 1]


LAYOUTS = {
    "PART/CLASS": lambda part, client: (part,),
    "PART/CLIENT/CLASS": lambda part, client: (part, client),
    "CLIENT/PART/CLASS": lambda part, client: (client, part),
}


@pytest.mark.parametrize(
    ("layout", "validation"), zip(LAYOUTS, ("val", "valid", "validation"), strict=True)
)
def test_folders_are_parts_above_and_below_those_of_clients(tmp_path, layout, validation, caplog):
    paths = {}
    for part, count in (("train", 8), (validation, 4), ("test", 4), ("notes", 4)):
        for k in range(count):
            folder = tmp_path.joinpath(*LAYOUTS[layout](part, "ab"[k % 2]))
            path = folder / ("cat", "dog")[k // 2 % 2] / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(RNG.integers(0, 256, (5, 4, 3), dtype="uint8")).save(path)
            paths.setdefault(part, []).append(path)
    clients = "CLIENT" in layout
    named = {"partition": "natural" if clients else "blocks"}
    data = read(tmp_path, **named, validation_fraction=0.25, patience=2)
    assert data.names == ({0: "a", 1: "b"} if clients else {})
    assert f"train, test, {validation} are read, and not notes" in " ".join(caplog.messages)
    for split, part in ((data.train, "train"), (data.validation, validation), (data.test, "test")):
        rows = torch.cat([torch.as_tensor(own) for own in split.rows])
        x, y = split.take(rows.sort().values)
        np.testing.assert_allclose(x.numpy(), arrays(sorted(paths[part])) / 255, rtol=1e-6)
        assert y.tolist() == [int(path.parent.name == "dog") for path in sorted(paths[part])]
        for own, client in zip(split.rows, "ab", strict=True) if clients else ():
            here = sorted(path for path in paths[part] if client in path.parts)
            x = split.take(torch.as_tensor(own).sort().values)[0]
            np.testing.assert_allclose(x.numpy(), arrays(here) / 255, rtol=1e-6)


def test_images_at_several_depths_are_refused(tmp_path):
    write(tmp_path, map(Image.fromarray, COLOR))
    Image.fromarray(COLOR[0]).save(tmp_path / "a" / "0.png")
    with pytest.raises(DataError, match="must hold images as CLASS/FILE or, of several"):
        read_images(tmp_path)


def test_a_part_without_folders_of_its_classes_is_refused(tmp_path):
    write(tmp_path, map(Image.fromarray, COLOR), clients=("train", "train"))
    (tmp_path / "val" / "images").mkdir(parents=True)
    Image.fromarray(COLOR[0]).save(tmp_path / "val" / "images" / "0.png")
    words = "val must hold the classes of train, each in a folder of its name, got images"
    with pytest.raises(DataError, match=words):
        read_images(tmp_path)
    (tmp_path / "val").rename(tmp_path / "holdout")
    with pytest.raises(DataError, match=r"folders train and test, or val, got holdout, train$"):
        read_images(tmp_path)


def test_classes_may_be_called_as_parts_are(tmp_path):
    for kind in ("train", "test"):
        (tmp_path / kind).mkdir()
        Image.fromarray(COLOR[0]).save(tmp_path / kind / "0.png")
    assert sorted(read_images(tmp_path)["y"]) == ["test", "train"]
