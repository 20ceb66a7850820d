"""Augmentation against torchvision, timm, PIL and SciPy,
and against itself however a batch is cut.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch
from PIL import Image
from support.at_once import apply, augment, crop_pixels, erase
from timm.data import auto_augment as timm_ops
from timm.data.mixup import Mixup
from torch import Tensor
from torchvision.transforms.v2 import (
    AutoAugment,
    AutoAugmentPolicy,
    ColorJitter,
    InterpolationMode,
    TrivialAugmentWide,
)
from torchvision.transforms.v2 import functional as tv

from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import choices
from vitscale.train import pixel_ops, policies
from vitscale.train.augment import (
    crop_boxes,
    crop_encoded,
    crop_for_eval,
    eval_side,
    mix,
)
from vitscale.train.packed_copy import PackedCopy
from vitscale.train.parallel import cut
from vitscale.train.pixel_ops import GROUP_OF, Warp, plan

torch.set_num_threads(1)

BICUBIC = InterpolationMode.BICUBIC
NUM = 4000
POLICIES = choices(TrainConfig)["augment"]


def config_of(num: int = 12, **fields: Any) -> TrainConfig:
    base = {
        "dataset": "imagenet",
        "channels": 3,
        "num_classes": 1000,
        "resolution": 16,
        "batch_size": num,
    }
    return TrainConfig(**{**base, **fields})


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def everyone(config: TrainConfig) -> np.ndarray:
    return np.arange(config.batch_size)


def photos(num: int, side: int = 24, seed: int = 0) -> Tensor:
    """Smooth colour images with a full range of levels, uint8 (num, 3, side, side)."""
    noise = np.random.default_rng(seed).normal(size=(num, 3, side, side))
    smooth = scipy.ndimage.gaussian_filter(noise, (0, 0.5, 1.5, 1.5))
    low, high = smooth.min((2, 3), keepdims=True), smooth.max((2, 3), keepdims=True)
    return torch.from_numpy((255 * (smooth - low) / (high - low)).round().astype(np.uint8))


def pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def levels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def one_op(
    images: Tensor, name: str, values: np.ndarray, warp: Warp = policies.TORCHVISION
) -> Tensor:
    """An operation as on a CPU, which is the same as on a GPU, where all are applied."""
    arguments = images, np.full(len(images), name), np.asarray(values, float), warp
    out = apply(*arguments)
    assert torch.equal(apply(*arguments, possible=GROUP_OF), out)
    return out


# --- operations -----------------------------------------------------------------------------------

EXACT_OPS: dict[str, tuple[str, list[float]]] = {  # ours: timm's name, strengths
    "Brightness": ("Brightness", [0.1, 0.37, 1.0, 1.63, 1.9]),
    "Color": ("Color", [0.0, 0.37, 1.0, 1.63, 1.9]),
    "Contrast": ("Contrast", [0.1, 0.37, 1.0, 1.63, 1.9]),
    "Sharpness": ("Sharpness", [0.1, 0.37, 1.0, 1.63, 1.9]),
    "Posterize": ("Posterize", [1, 2, 4, 7, 8]),
    "Solarize": ("Solarize", [0, 1, 99, 255, 256]),
    "SolarizeAdd": ("SolarizeAdd", [0, 1, 55, 99, 110]),
    "Invert": ("Invert", [0] * 5),
    "Equalize": ("Equalize", [0] * 5),
}


@pytest.mark.parametrize("name", EXACT_OPS)
def test_an_operation_is_pils_to_the_bit(name: str) -> None:
    theirs, strengths = EXACT_OPS[name]
    images = photos(5)
    op = timm_ops.NAME_TO_OP[theirs]
    arguments = [
        [] if name in ("Invert", "Equalize") else [int(s) if float(s).is_integer() else s]
        for s in strengths
    ]
    expected = torch.stack(
        [levels(op(pil(image), *a)) for image, a in zip(images, arguments, strict=True)]
    )
    assert torch.equal(one_op(images, name, strengths), expected)
    assert not torch.equal(expected, images)


def test_autocontrast_is_pils_within_a_level() -> None:
    images = photos(5) // 2 + 17
    images[3] = 40  # nothing to stretch
    expected = torch.stack([levels(timm_ops.auto_contrast(pil(image))) for image in images])
    assert (one_op(images, "AutoContrast", np.zeros(5)).int() - expected.int()).abs().max() <= 1
    assert expected[:3].amax() >= 254 and torch.equal(expected[3], images[3])


PHOTOMETRIC = {
    "Brightness": tv.adjust_brightness,
    "Color": tv.adjust_saturation,
    "Contrast": tv.adjust_contrast,
    "Sharpness": tv.adjust_sharpness,
    "Posterize": lambda image, bits: tv.posterize(image, int(bits)),
    "Solarize": tv.solarize,
    "Invert": lambda image, _: tv.invert(image),
    "Equalize": lambda image, _: tv.equalize(image),
    "AutoContrast": lambda image, _: tv.autocontrast(image),
}


@pytest.mark.parametrize("name", PHOTOMETRIC)
def test_an_operation_is_torchvisions_within_two_levels(name: str) -> None:
    """torchvision cuts off the grey image and the mean that PIL
    rounds: each half a level times a factor of 1.9.
    """
    images, values = (
        photos(4),
        {"Posterize": [3, 5, 7, 8], "Solarize": [0, 50, 128, 255]}.get(name, [0.1, 0.6, 1.3, 1.9]),
    )
    expected = torch.stack(
        [PHOTOMETRIC[name](image, value) for image, value in zip(images, values, strict=True)]
    )
    difference = (one_op(images, name, np.array(values)).int() - expected.int()).abs()
    assert difference.max() <= (
        2 if name in ("Color", "Contrast", "Sharpness") else 0 if name != "Brightness" else 1
    )


def torchvision_warp(name: str, image: Tensor, value: float) -> Tensor:
    return AutoAugment()._apply_image_or_video_transform(
        image, name, value, InterpolationMode.NEAREST, {type(image): None}
    )


WARPED = {
    "ShearX": [-0.99, 0.31, 0.0],
    "ShearY": [-0.3, 0.77, 0.0],
    "TranslateX": [-7, 5, 0],
    "TranslateY": [-7, 32, 0],
    "Rotate": [-130.0, 17.0, 0.0],
}


@pytest.mark.parametrize("name", WARPED)
def test_a_geometric_operation_is_torchvisions(name: str) -> None:
    images = photos(3, side=23)
    expected = torch.stack(
        [torchvision_warp(name, i, v) for i, v in zip(images, WARPED[name], strict=True)]
    )
    same = (one_op(images, name, WARPED[name]) == expected).float().mean().item()
    assert same > 0.999  # the nearest of two pixels equally near may be either
    assert torch.equal(expected[2], images[2]) and not torch.equal(expected[0], images[0])


@pytest.mark.parametrize("name", WARPED)
def test_a_geometric_operation_is_pils_within_a_level(name: str) -> None:
    """PIL's bilinear cuts off where ours rounds; its translations go the other way."""
    images, values = photos(3), np.array([-0.31, 0.17, 0.0]) * {"T": 20, "R": 90}.get(name[0], 1)
    theirs = {"TranslateX": "TranslateX", "TranslateY": "TranslateY"}.get(name, name)
    options = {"resample": Image.Resampling.BILINEAR, "fillcolor": policies.TIMM.fill}
    arguments = -values if name.startswith("Translate") else values
    op = timm_ops.NAME_TO_OP[theirs]
    expected = torch.stack(
        [levels(op(pil(i), v, **options)) for i, v in zip(images, arguments, strict=True)]
    )
    difference = (one_op(images, name, values, policies.TIMM).int() - expected.int()).abs()
    # on the border, what is inside differs by rounding
    assert (difference > 1).float().mean() < 0.002
    # some of it is outside
    assert (expected[0] == torch.tensor(policies.TIMM.fill)[:, None, None]).all(0).sum() > 24


def test_blur_is_a_gaussian_filter() -> None:
    images, sigmas = photos(3, side=40), [0.1, 0.8, 2.0]
    expected = [
        scipy.ndimage.gaussian_filter(
            i.double().numpy(), (0, s, s), mode="nearest", radius=(0, 8, 8)
        )
        for i, s in zip(images, sigmas, strict=True)
    ]
    blurred = one_op(images, "Blur", sigmas)
    assert np.abs(blurred.numpy() - np.stack(expected)).max() < 0.51
    theirs = torch.stack(
        [levels(timm_ops.gaussian_blur(pil(i), s)) for i, s in zip(images, sigmas, strict=True)]
    )
    difference = (blurred.int() - theirs.int()).abs()[..., 10:-10, 10:-10]
    # PIL approximates by three box filters, and does so worse at the border
    assert difference.max() <= 2


@pytest.mark.parametrize("possible", [None, GROUP_OF], ids=["drawn", "all"])
def test_operations_touch_only_their_images(possible: dict[str, int] | None) -> None:
    images = photos(6)
    names = np.array(["Invert", "", "Rotate", "Invert", "", "Blur"])
    out = apply(images, names, np.array([0, 0, 30, 0, 0, 1.0]), policies.TIMM, possible)
    assert torch.equal(out[[1, 4]], images[[1, 4]]) and torch.equal(
        out[[0, 3]], 255 - images[[0, 3]]
    )
    assert torch.equal(out[2], one_op(images[2:3], "Rotate", [30], policies.TIMM)[0])
    assert torch.equal(images, photos(6))


# --- policies -------------------------------------------------------------------------------------


def test_the_autoaugment_table_and_its_strengths_are_torchvisions() -> None:
    reference = AutoAugment(AutoAugmentPolicy.IMAGENET)
    assert [[(n, p, m or 0) for n, p, m in pair] for pair in reference._policies] == list(
        map(list, policies.AUTOAUGMENT)
    )
    check_strengths(reference._AUGMENTATION_SPACE, policies.CUBUK, num=10)


def test_the_trivialaugment_operations_and_strengths_are_torchvisions() -> None:
    space = TrivialAugmentWide._AUGMENTATION_SPACE
    assert [name.replace("Identity", "") for name in space] == policies.TRIVIALAUGMENT
    check_strengths(space, policies.WIDE, num=31)


def check_strengths(space: dict[str, Any], strengths: policies.Strengths, num: int) -> None:
    share = np.arange(num) / (num - 1)
    for name, (magnitudes, signed) in space.items():
        if (expected := magnitudes(num, 97, 97)) is None:
            assert name not in strengths
            continue
        for sign in (1, -1) if signed else (1,):
            theirs = sign * expected.numpy()
            if name in policies.ENHANCEMENTS:
                theirs = 1 + theirs
            elif name.startswith("Translate"):
                # 15 / 30 of 32 is 16, in float32 a little less
                theirs = np.trunc(theirs * (1 + 1e-6))
            elif name == "Solarize":
                theirs = 255 * theirs
            np.testing.assert_allclose(
                strengths[name](share, sign * share, 97), theirs, atol=1e-4, err_msg=name
            )


TIMM_NAMES = {"TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel"} | {
    name: f"{name}Increasing"
    for name in ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
}


def test_the_randaugment_operations_and_strengths_are_timms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [
        TIMM_NAMES.get(n, n) for n in policies.RANDAUGMENT
    ] == timm_ops._RAND_INCREASING_TRANSFORMS
    magnitudes = np.array([0.0, 0.7, 4.9, 7.0, 9.0, 10.0])
    for name, sign in itertools.product(policies.INCREASING, (1, -1)):
        monkeypatch.setattr(timm_ops.random, "random", lambda s=sign: 0.75 if s < 0 else 0.25)
        theirs = [timm_ops.LEVEL_TO_ARG[TIMM_NAMES.get(name, name)](m, {})[0] for m in magnitudes]
        ours = policies.INCREASING[name](magnitudes / 10, sign * magnitudes / 10, 40)
        pixels = 40 if name.startswith("Translate") else 1
        np.testing.assert_allclose(ours, pixels * np.array(theirs), atol=1e-12, err_msg=name)


def test_the_three_of_3augment_are_timms() -> None:
    (layer,) = policies.layers(config_of(NUM, augment="3augment"), rng())
    kinds = {name: layer.values[layer.names == name] for name in np.unique(layer.names)}
    assert set(kinds) == {"Color", "Solarize", "Blur"}
    assert set(kinds["Color"]) == {0.0} and set(kinds["Solarize"]) == {128.0}
    assert scipy.stats.kstest(kinds["Blur"], scipy.stats.uniform(0.1, 1.9).cdf).pvalue > 0.01
    assert scipy.stats.chisquare([len(values) for values in kinds.values()]).pvalue > 0.01
    image, threes = photos(1), timm_ops.auto_augment_policy_3a(timm_ops._HPARAMS_DEFAULT)
    (solarize,), (desaturate,), (blur,) = threes
    assert torch.equal(one_op(image, "Solarize", [128])[0], levels(solarize(pil(image[0]))))
    assert torch.equal(one_op(image, "Color", [0])[0], levels(desaturate(pil(image[0]))))
    assert blur.name == "GaussianBlurRand" and blur.prob == 1 and blur.magnitude == 10


@pytest.mark.parametrize("policy", POLICIES)
def test_the_way_of_a_gpu_has_the_pixels_of_a_cpus_and_the_shapes_of_any_draw(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixel_ops, "GROUP_VALUES", 7 * 3 * 24 * 24)  # 7 images at a time
    config = config_of(64, augment=policy, color_jitter=0.4)
    images, sent = photos(64), set()
    images[:8] = images[:8] // 128 + 77  # two levels, and one
    images[8:12] = images[8:12, :, :1, :1]
    for seed in range(5):
        levels = images
        for place, layer in enumerate(policies.layers(config, np.random.default_rng(seed))):
            drawn = layer.names, layer.values, layer.warp
            assert {*layer.names} <= {*layer.possible, ""}
            expected = apply(levels, *drawn)
            assert torch.equal(apply(levels, *drawn, layer.possible), expected)
            packed = PackedCopy(levels.device)
            plan(packed, *drawn, (24, 24), layer.possible)
            sent.add((place, *((array.shape, array.dtype) for array in packed.arrays)))
            levels = expected
    assert len(sent) == place + 1


def test_parts_of_3augment_share_the_images_equally() -> None:
    image = photos(1)
    grey = torch.from_numpy(np.array(pil(image[0]).convert("L")))
    (layer,) = policies.layers(config_of(NUM, augment="3augment", augment_ops="gray"), rng())
    assert set(layer.names) == {"Color"} and set(layer.values) == {0.0}
    ours = one_op(image, str(layer.names[0]), layer.values[:1])[0]
    assert (ours - grey).abs().max() * 255 <= 1.01
    (both,) = policies.layers(config_of(NUM, augment="3augment", augment_ops="gray-blur"), rng())
    assert set(both.names) == {"Color", "Blur"}
    assert scipy.stats.binomtest(int((both.names == "Blur").sum()), NUM, 0.5).pvalue > 0.01


def test_randaugment_draws_operations_as_often_and_as_strong_as_asked() -> None:
    config = config_of(
        NUM,
        augment="randaugment",
        randaugment_ops=3,
        randaugment_magnitude=7.0,
        randaugment_std=0.5,
    )
    drawn = policies.layers(config, rng())
    assert len(drawn) == 3
    names = np.concatenate([layer.names for layer in drawn])
    values = np.concatenate([layer.values for layer in drawn])
    assert scipy.stats.binomtest(int((names == "").sum()), 3 * NUM, 0.5).pvalue > 0.01
    assert scipy.stats.chisquare(np.unique(names[names != ""], return_counts=True)[1]).pvalue > 0.01
    degrees = values[names == "Rotate"]
    assert scipy.stats.kstest(np.abs(degrees) / 3, scipy.stats.norm(7, 0.5).cdf).pvalue > 0.01
    assert scipy.stats.binomtest(int((degrees > 0).sum()), len(degrees), 0.5).pvalue > 0.01


def test_autoaugment_draws_pairs_and_their_probabilities() -> None:
    first, second = policies.layers(config_of(NUM, augment="autoaugment"), rng())
    for k, layer in enumerate((first, second)):
        for name in np.unique(layer.names[layer.names != ""]):
            prob = np.mean(
                [pair[k][1] if pair[k][0] == name else 0.0 for pair in policies.AUTOAUGMENT]
            )
            assert scipy.stats.binomtest(int((layer.names == name).sum()), NUM, prob).pvalue > 0.001
    inverted = first.names == "Invert"
    assert set(second.names[inverted]) == {"Equalize"}  # its partner in the table, of probability 1


def test_colour_jitter_is_torchvisions_in_each_images_own_order() -> None:
    config, images = config_of(60, color_jitter=0.4), photos(60, side=16)
    out = augment(images / 255, config, everyone(config), rng())
    drawn = policies.layers(config, rng())
    assert len({tuple(layer.names[i] for layer in drawn) for i in range(60)}) == 6
    limits = ColorJitter(0.4, 0.4, 0.4)
    assert limits.brightness == limits.contrast == limits.saturation == (0.6, 1.4)
    assert all(((layer.values >= 0.6) & (layer.values <= 1.4)).all() for layer in drawn)
    for i in range(60):
        expected = images[i]
        for layer in drawn:
            expected = PHOTOMETRIC[layer.names[i]](expected, layer.values[i])
        # each of three roundings within a level or two
        assert (out[i] * 255 - expected).abs().max() <= 4


# --- crops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(24, 24), (37, 20), (11, 50)])
def test_random_resized_crops_are_torchvisions_of_the_same_boxes(shape: tuple[int, int]) -> None:
    config = config_of(crop="rrc")
    images = torch.rand(12, 3, *shape)
    boxes = crop_boxes(np.array([shape] * 12), config, everyone(config), rng())
    expected = [
        tv.resized_crop(i, *b, [16, 16], BICUBIC, antialias=True)
        for i, b in zip(images, boxes.tolist(), strict=True)
    ]
    cropped = crop_pixels(images, config, everyone(config), rng())
    torch.testing.assert_close(cropped, torch.stack(expected).clamp(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("crop", ["rrc", "src"])
@pytest.mark.parametrize("shape", [(24, 24), (37, 20), (11, 50)])
def test_crops_of_encoded_images_are_pils_within_two_levels(
    crop: str, shape: tuple[int, int]
) -> None:
    config, image = config_of(crop=crop), photos(1, side=50)[0][:, : shape[0], : shape[1]]
    short = 16 / min(shape)
    resized = pil(image).resize(
        (int(shape[1] * short), int(shape[0] * short)), Image.Resampling.BICUBIC
    )
    padded = np.pad(np.array(resized), ((4, 4), (4, 4), (0, 0)), "reflect")
    for box in crop_boxes(np.array([shape] * 12), config, everyone(config), rng()):
        top, left, height, width = box.tolist()
        cropped = crop_encoded(image, box, config)
        if crop == "rrc":
            part = pil(image).crop((left, top, left + width, top + height))
            expected = levels(part.resize((16, 16), Image.Resampling.BICUBIC))
        else:
            expected = torch.from_numpy(padded[top : top + 16, left : left + 16]).permute(2, 0, 1)
        assert cropped.dtype == torch.uint8 and cropped.shape == (3, 16, 16)
        assert (cropped.int() - expected.int()).abs().max() <= 2  # both compute in whole numbers


def test_random_resized_crop_boxes_obey_the_law() -> None:
    config = config_of(NUM, crop="rrc", crop_scale_min=0.2)
    sizes = np.stack([np.random.default_rng(0).integers(100, 900, NUM), np.full(NUM, 500)], 1)
    top, left, height, width = crop_boxes(sizes, config, everyone(config), rng()).T
    assert (np.stack([top, left]) >= 0).all() and (np.stack([height, width]) >= 1).all()
    assert (top + height <= sizes[:, 0]).all() and (left + width <= sizes[:, 1]).all()
    square = crop_boxes(np.full((NUM, 2), 1000), config, everyone(config), rng()).T
    share, ratio = square[2] * square[3] / 1e6, square[3] / square[2]
    assert share.min() > 0.199 and share.max() <= 1 and ratio.min() > 0.745 and ratio.max() < 1.34
    small = share < 0.5  # always fits, so that nothing is drawn again
    assert scipy.stats.kstest(share[small], scipy.stats.uniform(0.2, 0.3).cdf).pvalue > 0.01
    assert (
        scipy.stats.kstest(
            np.log(ratio[small]), scipy.stats.uniform(np.log(3 / 4), 2 * np.log(4 / 3)).cdf
        ).pvalue
        > 0.01
    )
    free = square[0][small] / (1000 - square[2][small])
    assert scipy.stats.kstest(free, scipy.stats.uniform(0, 1).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    "shape, box", [((10, 1000), (0, 493, 10, 13)), ((1000, 10), (493, 0, 13, 10))]
)
def test_an_image_that_no_rectangle_fits_is_cropped_at_its_centre(
    shape: tuple[int, int], box: tuple[int, ...]
) -> None:
    config = config_of(crop="rrc", crop_scale_min=1.0)
    boxes = crop_boxes(np.array([shape] * 12), config, everyone(config), rng())
    assert (boxes == box).all()


@pytest.mark.parametrize("shape", [(16, 16), (24, 40), (50, 16), (9, 12)])
def test_simple_random_crops_are_windows_of_the_resized_and_padded_image(
    shape: tuple[int, int],
) -> None:
    config = config_of(crop="src")
    images = torch.rand(12, 3, *shape)
    boxes = crop_boxes(np.array([shape] * 12), config, everyone(config), rng())
    cropped = crop_pixels(images, config, everyone(config), rng())
    resized = tv.resize(images, [16], BICUBIC, antialias=True).clamp(0, 1)
    padded = np.pad(resized.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), "reflect")
    for image, window, (top, left, height, width) in zip(padded, cropped, boxes, strict=True):
        assert (height, width) == (16, 16)
        np.testing.assert_array_equal(image[:, top : top + 16, left : left + 16], window)


def test_simple_random_crops_reach_every_offset() -> None:
    config = config_of(NUM, crop="src")
    boxes = crop_boxes(np.array([[32, 36]] * NUM), config, everyone(config), rng())
    # 16 + 8 - 16 + 1
    assert scipy.stats.chisquare(np.bincount(boxes[:, 0], minlength=9)).pvalue > 0.01
    # 18 + 8 - 16 + 1
    assert scipy.stats.chisquare(np.bincount(boxes[:, 1], minlength=11)).pvalue > 0.01


def test_the_crop_pad_refuses_images_of_another_size() -> None:
    config = config_of()
    with pytest.raises(
        ValueError,
        match=r"resolution == height == width must hold .*resolution=16, height=16, width=17",
    ):
        crop_pixels(torch.rand(12, 3, 16, 17), config, everyone(config), rng())
    with pytest.raises(ValueError, match=r"crop='pad'"):
        crop_boxes(np.full((12, 2), 16), config, everyone(config), rng())


def test_the_evaluation_crop_is_torchvisions() -> None:
    config, images = config_of(eval_crop_ratio=0.875), torch.rand(2, 3, 40, 30)
    expected = tv.center_crop(
        tv.resize(images, [18], BICUBIC, antialias=True).clamp(0, 1), [16, 16]
    )  # 16 / 0.875 = 18.3
    assert torch.equal(crop_for_eval(images, config), expected)
    raw = (images[0] * 255).to(torch.uint8)
    assert torch.equal(
        crop_for_eval(raw, config),
        tv.center_crop(tv.resize(raw, [18], BICUBIC, antialias=True), [16, 16]),
    )
    same = torch.rand(2, 3, 16, 16)
    assert torch.equal(crop_for_eval(same, config_of()), same)


def test_the_shorter_side_of_an_evaluation_is_that_of_the_codes() -> None:
    """deit: int(input_size / eval_crop_ratio); timm: the floor;
    pycls: sizes of its own, which are the ratios here.
    """
    sides = {
        (224, 0.95): 235,
        (224, 0.875): 256,
        (224, 1.0): 224,
        (224, 0.9): 248,
        (384, 1.0): 384,
        (224, 0.96): 233,
        (232, 232 / 262): 262,
        (240, 240 / 272): 272,
        (256, 256 / 292): 292,
        (268, 268 / 305): 305,
    }
    for (resolution, ratio), side in sides.items():
        assert eval_side(config_of(resolution=resolution, eval_crop_ratio=ratio)) == side
    for resolution in range(5, 400, 13):
        for side in range(resolution, 500, 7):
            config = TrainConfig(
                resolution=resolution, eval_crop_ratio=resolution / side, patch_size=resolution
            )
            assert eval_side(config) == side


# --- erasing and mixing ---------------------------------------------------------------------------


def test_erasing_puts_normal_noise_in_a_rectangle_of_legal_area() -> None:
    config = config_of(1200, erasing_prob=0.25)
    images = torch.full((1200, 3, 32, 32), 7.0)
    changed = (out := erase(images, config, everyone(config), rng())) != 7
    erased = changed.flatten(1).any(1)
    assert scipy.stats.binomtest(int(erased.sum()), 1200, 0.25).pvalue > 0.01
    assert torch.equal(images, torch.full((1200, 3, 32, 32), 7.0))
    heights, widths = changed[erased, 0].any(2).sum(1), changed[erased, 0].any(1).sum(1)
    areas = (heights * widths).double() / 1024
    # a rectangle, in all channels
    assert torch.equal(changed[erased].sum((1, 2, 3)), 3 * heights * widths)
    assert (
        areas.min() > 0.017
        and areas.max() < 1 / 3 + 0.02
        and (heights < 32).all()
        and (widths < 32).all()
    )
    ratios = heights / widths
    assert 0.2 < ratios.min() < 0.4 and 2.5 < ratios.max() < 5
    noise = out[changed].numpy()
    assert scipy.stats.kstest(noise, "norm").pvalue > 0.01
    first, second = (out[erased][i, :, 0:32][changed[erased][i]] for i in (0, 1))
    assert not torch.equal(first[:12], second[:12])


@pytest.mark.parametrize(
    "fields",
    [
        {"mixup_alpha": 0.8},
        {"cutmix_alpha": 1.0},
        {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "cutmix_share": 0.3},
        {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "mix_prob": 0.5, "label_smoothing": 0.1},
    ],
    ids=str,
)
def test_mixing_is_timms_to_the_bit(fields: dict[str, float]) -> None:
    config, images, labels = config_of(**fields), torch.rand(12, 3, 16, 16), torch.arange(12)
    theirs = Mixup(
        config.mixup_alpha,
        config.cutmix_alpha,
        prob=config.mix_prob,
        switch_prob=config.cutmix_share,
        label_smoothing=config.label_smoothing,
        num_classes=1000,
    )
    for draw in range(20):
        mixed, targets = mix(images, labels, config, everyone(config), np.random.default_rng(draw))
        np.random.seed(np.random.default_rng(draw).integers(2**32, dtype=np.uint32))
        expected_images, expected_targets = theirs(images.clone(), labels)
        assert torch.equal(mixed, expected_images) and torch.equal(targets, expected_targets)


def test_the_share_of_cutmix_and_of_mixed_batches_are_those_asked_for() -> None:
    config = config_of(
        mixup_alpha=0.8, cutmix_alpha=1.0, mix_prob=0.7, cutmix_share=0.2, batch_size=2
    )
    images, kinds = torch.rand(2, 1, 16, 16), []
    for draw in range(600):
        mixed, _ = mix(images, torch.arange(2), config, np.arange(2), np.random.default_rng(draw))
        own, other = mixed == images, mixed == images.flip(0)
        kinds.append("none" if own.all() else "cutmix" if (own | other).all() else "mixup")
    assert (
        scipy.stats.chisquare(
            [kinds.count(k) for k in ("none", "cutmix", "mixup")], [180, 84, 336]
        ).pvalue
        > 0.001
    )


MIXED = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "label_smoothing": 0.1}


@pytest.mark.parametrize("num_groups", [2, 3, 6])
def test_each_group_is_mixed_as_timm_mixes_the_batch_of_a_process(num_groups: int) -> None:
    """A draw of method, share and rectangle for each; the
    default of one group draws what it always drew.
    """
    config, images, labels = (
        config_of(**MIXED, mix_groups=num_groups),
        torch.rand(12, 3, 16, 16),
        torch.arange(12),
    )
    theirs = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=1000)
    shares = set()
    for draw in range(20):
        mixed, targets = mix(images, labels, config, everyone(config), np.random.default_rng(draw))
        seeds = np.random.default_rng(draw).integers(2**32, size=num_groups, dtype=np.uint32)
        for group, seed in zip(cut(12, num_groups), seeds, strict=True):
            np.random.seed(seed)
            expected_images, expected_targets = theirs(images[group].clone(), labels[group])
            assert torch.equal(mixed[group], expected_images) and torch.equal(
                targets[group], expected_targets
            )
            shares.add(round(float(targets[group[0], group[0]]), 6))
    # no two groups share a draw, but where a rectangle is the whole image
    assert len(shares) > 15 * num_groups


@pytest.mark.parametrize("num_groups", [2, 4])
@pytest.mark.parametrize("num_parts", [2, 3, 4, 8, 12])
def test_a_sample_is_mixed_alike_however_parts_cut_the_groups(
    num_groups: int, num_parts: int
) -> None:
    config, images, labels = (
        config_of(24, **MIXED, mix_groups=num_groups),
        torch.rand(24, 3, 16, 16),
        torch.arange(24),
    )
    for draw in range(5):
        whole, targets = mix(images, labels, config, everyone(config), np.random.default_rng(draw))
        for part in cut(24, num_parts):
            out, of_part = mix(
                images[part], labels[part], config, part, np.random.default_rng(draw)
            )
            assert torch.equal(out, whole[part]) and torch.equal(of_part, targets[part])


def test_more_groups_vary_less_from_batch_to_batch() -> None:
    """The mean share kept in a batch has as many times less
    variance as there are groups; its mean stays.
    """
    kept = {}
    for num_groups in (1, 8):
        config, images, labels = (
            config_of(16, mixup_alpha=0.8, mix_groups=num_groups),
            torch.rand(16, 1, 4, 4),
            torch.arange(16),
        )
        kept[num_groups] = [
            float(
                mix(images, labels, config, everyone(config), np.random.default_rng(draw))[1]
                .diagonal()
                .mean()
            )
            for draw in range(400)
        ]
    assert np.mean(kept[1]) == pytest.approx(np.mean(kept[8]), abs=0.04)
    assert 4 < np.var(kept[1]) / np.var(kept[8]) < 16


def test_a_part_that_is_not_closed_under_mirroring_is_not_mixed() -> None:
    config = config_of(mixup_alpha=0.8)
    with pytest.raises(AssertionError, match="mirrored"):
        mix(torch.rand(2, 3, 16, 16), torch.arange(2), config, np.array([0, 1]), rng())


# --- a batch and its parts ------------------------------------------------------------------------


def pipeline(
    images: Tensor,
    config: TrainConfig,
    positions: np.ndarray,
    seed: int,
    labels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    draws = np.random.default_rng(seed)
    out = augment(crop_pixels(images, config, positions, draws), config, positions, draws)
    out = erase(out - 0.5, config, positions, draws)
    return mix(
        out, torch.from_numpy(positions) if labels is None else labels, config, positions, draws
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("crop", ["pad", "rrc", "src"])
def test_a_sample_does_not_depend_on_how_the_batch_is_cut(crop: str, policy: str) -> None:
    config = config_of(
        22,
        crop=crop,
        crop_padding=2 if crop == "pad" else 0,
        flip_prob=0.5,
        augment=policy,
        color_jitter=0.3,
        erasing_prob=0.5,
        mixup_alpha=0.8,
        cutmix_alpha=1.0,
        mix_prob=0.9,
        label_smoothing=0.1,
    )
    images = photos(22, side=16 if crop == "pad" else 20) / 255
    for seed, num_parts in itertools.product(range(3), (2, 3, 5, 11)):
        whole, targets = pipeline(images, config, everyone(config), seed)
        for part in cut(22, num_parts):
            out, out_targets = pipeline(images[part], config, part, seed)
            assert torch.equal(out, whole[part]) and torch.equal(out_targets, targets[part])
        assert not torch.equal(whole, pipeline(images, config, everyone(config), seed + 100)[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("crop", ["rrc", "src"])
def test_a_gpu_does_the_same_and_is_never_waited_for(crop: str, policy: str) -> None:
    config = config_of(
        64,
        crop=crop,
        flip_prob=0.5,
        augment=policy,
        color_jitter=0.3,
        erasing_prob=0.5,
        mixup_alpha=0.8,
    )
    images = photos(64, side=20) / 255
    expected, expected_targets = pipeline(images, config, everyone(config), 0)
    on_gpu, labels = images.cuda(), torch.arange(64).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out, targets = pipeline(on_gpu, config, everyone(config), 0, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(targets.cpu(), expected_targets)
    # a level, and what follows from it
    assert ((out.cpu() - expected).abs() < 2.5 / 255).float().mean() > 0.99


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "none"])
def test_a_policy_changes_images_and_keeps_them_in_range(policy: str) -> None:
    config, images = config_of(64, augment=policy), photos(64, side=16) / 255
    out = augment(images, config, everyone(config), rng())
    assert (
        out.shape == images.shape
        and out.dtype == images.dtype
        and out.min() >= 0
        and out.max() <= 1
    )
    changed = (out != images).flatten(1).any(1).float().mean()
    assert changed > {"3augment": 0.9}.get(policy, 0.6)
    assert torch.equal(out, augment(images, config, everyone(config), rng()))


def test_padded_crops_and_flips_are_drawn_as_they_always_were() -> None:
    """Results of earlier trials depend on it: all offsets of
    the batch, rows first, then one number a flip.
    """
    config, images = config_of(crop_padding=3, flip_prob=0.5), torch.rand(12, 3, 16, 16)
    draws = rng()
    out = augment(
        crop_pixels(images, config, everyone(config), draws), config, everyone(config), draws
    )
    expected = rng()
    top, left = expected.integers(0, 7, (2, 12))
    flips = expected.random(12) < 0.5
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (3, 3), (3, 3)))
    for i in range(12):
        window = padded[i, :, top[i] : top[i] + 16, left[i] : left[i] + 16]
        np.testing.assert_array_equal(out[i], window[..., ::-1] if flips[i] else window)
    assert math.isclose(draws.random(), expected.random())
