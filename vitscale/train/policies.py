"""Augmentation policies: which operation of which strength each image of a batch undergoes.

A policy is a list of layers, applied one after another. Each is drawn for the whole batch, in the
same order whatever the draws come to, so that what happens to a sample depends on the generator and
on its place in the batch only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, assert_never

import numpy as np

from vitscale.plan.config import TrainConfig
from vitscale.train.pixel_ops import Warp

# the defaults of its policies; those of Cubuk et al. 2019, too
TORCHVISION = Warp("nearest", (0, 0, 0))
# timm fills with the mean of ImageNet. It draws bilinear or bicubic; DeiT has bicubic. PIL's
# bicubic is not torch's.
TIMM = Warp("bilinear", (124, 116, 104))

# (operation, probability, magnitude) twice, magnitudes from 0 to 9: Cubuk et al. 2019, table 9
# (ImageNet), strengths as torchvision reads table 6. timm's "original" divides the ranges by 10
# instead of 9 and posterizes less.
AUTOAUGMENT: list[tuple[tuple[str, float, int], tuple[str, float, int]]] = [
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
    (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
    (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
]
RANDAUGMENT = [
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
]
RANDAUGMENT_PROB = 0.5  # timm's, of each operation drawn
TRIVIALAUGMENT = [
    "",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
]
JITTER = ["Brightness", "Contrast", "Color"]
ENHANCEMENTS = [*JITTER, "Sharpness"]


class Layer(NamedTuple):
    """What happens to each image of a batch: pixel_ops' operation and strength, (B,) each."""

    names: np.ndarray
    values: np.ndarray
    warp: Warp = TORCHVISION


# Of the share of the largest magnitude, the same with a random sign, and the image's side in
# pixels, (B,) each.
Strengths = dict[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]]


def layers(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """The config's policy, then its colour jitter, drawn for the `batch_size` images of a batch."""
    return [*_policy(config, rng), *_jitter(config, rng)]


def _policy(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    match config.augment:
        case "none":
            return []
        case "autoaugment":
            return _autoaugment(config, rng)
        case "randaugment":
            return _randaugment(config, rng)
        case "trivialaugment":
            return _trivialaugment(config, rng)
        case "3augment":
            return _three_augment(config, rng)
        case never:
            assert_never(never)


def _autoaugment(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """Cubuk et al. 2019: one of 25 pairs of operations for
    each image, each with its probability.
    """
    num = config.batch_size
    chosen = rng.integers(len(AUTOAUGMENT), size=num)
    return [
        _autoaugment_layer([pair[k] for pair in AUTOAUGMENT], chosen, config, rng) for k in range(2)
    ]


def _autoaugment_layer(
    ops: list[tuple[str, float, int]],
    chosen: np.ndarray,
    config: TrainConfig,
    rng: np.random.Generator,
) -> Layer:
    names, probs, magnitudes = (np.array(column)[chosen] for column in zip(*ops, strict=True))
    names = np.where(rng.random(len(chosen)) < probs, names, "")
    return Layer(names, _values(CUBUK, names, magnitudes / 9, config, rng))


def _randaugment(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """timm's rand-mM-mstdS-inc1: operations drawn with replacement, of which each then happens with
    probability 0.5.

    Cubuk et al. 2020 as changed by timm, which DeiT uses: 15 operations, that do more the larger
    the magnitude, and a magnitude drawn for each from a normal distribution, clipped to [0, 10].
    """
    return [_randaugment_layer(config, rng) for _ in range(config.randaugment_ops)]


def _randaugment_layer(config: TrainConfig, rng: np.random.Generator) -> Layer:
    num = config.batch_size
    names = np.array(RANDAUGMENT)[rng.integers(len(RANDAUGMENT), size=num)]
    names = np.where(rng.random(num) < RANDAUGMENT_PROB, names, "")
    magnitudes = config.randaugment_magnitude + config.randaugment_std * rng.standard_normal(num)
    return Layer(names, _values(INCREASING, names, magnitudes.clip(0, 10) / 10, config, rng), TIMM)


def _trivialaugment(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """Müller and Hutter 2021, the wide space of
    torchvision: one operation, one of 31 magnitudes.
    """
    num = config.batch_size
    names = np.array(TRIVIALAUGMENT)[rng.integers(len(TRIVIALAUGMENT), size=num)]
    return [Layer(names, _values(WIDE, names, rng.integers(31, size=num) / 30, config, rng))]


def _three_augment(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """Touvron et al. 2022, DeiT III: grey, solarized or blurred, each a third of the images.

    The paper gives no strengths: those of its authors' code and of timm's 3a, a threshold of 128
    and a standard deviation uniform in [0.1, 2] pixels whatever the resolution.
    """
    num = config.batch_size
    names = np.array(["Color", "Solarize", "Blur"])[rng.integers(3, size=num)]
    sigmas = rng.uniform(0.1, 2.0, num)
    return [Layer(names, np.select([names == "Color", names == "Solarize"], [0.0, 128.0], sigmas))]


def _jitter(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """torchvision's ColorJitter without hue: brightness,
    contrast, saturation, in an order of each image's own.
    """
    if not config.color_jitter:
        return []
    order = rng.random((config.batch_size, 3)).argsort(1)
    factors = rng.uniform(
        max(0.0, 1 - config.color_jitter), 1 + config.color_jitter, (config.batch_size, 3)
    )
    return [Layer(np.array(JITTER)[kind], factors[:, place]) for place, kind in enumerate(order.T)]


def _values(
    strengths: Strengths,
    names: np.ndarray,
    shares: np.ndarray,
    config: TrainConfig,
    rng: np.random.Generator,
) -> np.ndarray:
    """The strengths (B,) of the operations, at shares in [0, 1]
    of the largest magnitude and of random sign.
    """
    signed = np.where(rng.random(len(names)) < 0.5, -shares, shares)
    values = np.zeros(len(names))
    for name in strengths:
        values = np.where(names == name, strengths[name](shares, signed, config.resolution), values)
    return values


def _torchvision(
    shear: float, shift: Callable[[int], float], degrees: float, gain: float, bits: int
) -> Strengths:
    """torchvision's strengths at the largest magnitude: tangent,
    pixels of a side, degrees, factor - 1, bits lost.
    """
    return {
        **dict.fromkeys(("ShearX", "ShearY"), lambda share, signed, side: shear * signed),
        **dict.fromkeys(
            ("TranslateX", "TranslateY"), lambda share, signed, side: np.trunc(shift(side) * signed)
        ),
        "Rotate": lambda share, signed, side: degrees * signed,
        **dict.fromkeys(ENHANCEMENTS, lambda share, signed, side: 1 + gain * signed),
        "Posterize": lambda share, signed, side: np.round(8 - bits * share),
        "Solarize": lambda share, signed, side: 255 * (1 - share),
    }


def _increasing() -> Strengths:
    """timm's strengths of the operations that do more the larger the magnitude."""
    return {
        **dict.fromkeys(("ShearX", "ShearY"), lambda share, signed, side: 0.3 * signed),
        **dict.fromkeys(
            ("TranslateX", "TranslateY"), lambda share, signed, side: 0.45 * side * signed
        ),
        "Rotate": lambda share, signed, side: 30 * signed,
        **dict.fromkeys(
            ENHANCEMENTS, lambda share, signed, side: np.maximum(0.1, 1 + 0.9 * signed)
        ),
        "Posterize": lambda share, signed, side: 4 - np.trunc(4 * share),
        "Solarize": lambda share, signed, side: 256 - np.trunc(256 * share),
        "SolarizeAdd": lambda share, signed, side: np.trunc(110 * share),
    }


CUBUK = _torchvision(shear=0.3, shift=lambda side: 150 / 331 * side, degrees=30, gain=0.9, bits=4)
WIDE = _torchvision(shear=0.99, shift=lambda side: 32, degrees=135, gain=0.99, bits=6)
INCREASING = _increasing()
