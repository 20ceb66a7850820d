"""Augmentation policies: the operations, and their strengths, for each image of a batch.

A policy is a list of layers, applied one after another. Each layer is drawn for the whole batch,
with the same sequence of draws whatever their outcomes, so that what happens to a sample depends
only on the generator and on its position in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from vitscale.plan.config import TrainConfig
from vitscale.train.pixel_ops import Warp

# the defaults of torchvision's policies, and those of Cubuk et al. 2019
TORCHVISION = Warp("nearest", (0, 0, 0))
# timm fills with ImageNet's mean. It interpolates bilinearly or bicubically, at random; DeiT
# bicubically. PIL's bicubic filter differs from torch's, so ours is bilinear.
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
THREE_AUGMENT = {"gray": "Color", "solarize": "Solarize", "blur": "Blur"}
JITTER = ["Brightness", "Contrast", "Color"]
ENHANCEMENTS = [*JITTER, "Sharpness"]


class Layer(NamedTuple):
    """One operation of pixel_ops and its strength for each image of a batch, (B,) each.

    `possible` are the operations that can be drawn.
    """

    names: np.ndarray
    values: np.ndarray
    possible: Collection[str]
    warp: Warp = TORCHVISION


# name -> function of (fraction of the largest magnitude (B,), the same with a random sign (B,),
# side of the image in pixels) that gives strengths (B,)
Strengths = dict[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]]


def layers(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """Draws the config's policy and then its color jitter for all images of a batch."""
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
        case _:  # a part, which gets the images after the flip and the jitter
            return []


def _autoaugment(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """Cubuk et al. 2019: one of 25 pairs of operations per image, each with its probability."""
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
    values = _values(CUBUK, names, magnitudes / 9, config, rng)
    return Layer(names, values, [name for name, _, _ in ops])


def _randaugment(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """timm's rand-mM-mstdS-inc1: operations drawn with replacement, applied with probability 0.5.

    Cubuk et al. 2020 as changed by timm, which DeiT uses: 15 operations whose effect increases with
    the magnitude, and a magnitude per operation from a normal distribution, clipped to [0, 10].
    """
    return [_randaugment_layer(config, rng) for _ in range(config.randaugment_ops)]


def _randaugment_layer(config: TrainConfig, rng: np.random.Generator) -> Layer:
    num = config.batch_size
    names = np.array(RANDAUGMENT)[rng.integers(len(RANDAUGMENT), size=num)]
    names = np.where(rng.random(num) < RANDAUGMENT_PROB, names, "")
    magnitudes = config.randaugment_magnitude + config.randaugment_std * rng.standard_normal(num)
    values = _values(INCREASING, names, magnitudes.clip(0, 10) / 10, config, rng)
    return Layer(names, values, RANDAUGMENT, TIMM)


def _trivialaugment(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """Müller and Hutter 2021 with torchvision's wide space: one operation, one of 31 magnitudes."""
    num = config.batch_size
    names = np.array(TRIVIALAUGMENT)[rng.integers(len(TRIVIALAUGMENT), size=num)]
    values = _values(WIDE, names, rng.integers(31, size=num) / 30, config, rng)
    return [Layer(names, values, TRIVIALAUGMENT)]


def _three_augment(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """Touvron et al. 2022, DeiT III: grayscale, solarize or blur, each for a third of the images,
    or those of `augment_ops` in equal shares.

    The paper gives no strengths: these are those of the authors' code and of timm's 3a, a threshold
    of 128 and a standard deviation uniform in [0.1, 2] pixels at any resolution.
    """
    num = config.batch_size
    chosen = config.augment_ops.split("-") if config.augment_ops else [*THREE_AUGMENT]
    ops = [THREE_AUGMENT[name] for name in chosen]
    names = np.array(ops)[rng.integers(len(ops), size=num)]
    sigmas = rng.uniform(0.1, 2.0, num)
    values = np.select([names == "Color", names == "Solarize"], [0.0, 128.0], sigmas)
    return [Layer(names, values, ops)]


def _jitter(config: TrainConfig, rng: np.random.Generator) -> list[Layer]:
    """torchvision's ColorJitter without hue.

    Brightness, contrast and saturation, in a random order per image.
    """
    if not config.color_jitter:
        return []
    order = rng.random((config.batch_size, 3)).argsort(1)
    factors = rng.uniform(
        max(0.0, 1 - config.color_jitter), 1 + config.color_jitter, (config.batch_size, 3)
    )
    return [
        Layer(np.array(JITTER)[kind], factors[:, place], JITTER)
        for place, kind in enumerate(order.T)
    ]


def _values(
    strengths: Strengths,
    names: np.ndarray,
    fractions: np.ndarray,
    config: TrainConfig,
    rng: np.random.Generator,
) -> np.ndarray:
    """Strengths (B,) of the operations, for fractions in [0, 1] of the largest magnitude.

    Signs are random.
    """
    signed = np.where(rng.random(len(names)) < 0.5, -fractions, fractions)
    values = np.zeros(len(names))
    for name in strengths:
        values = np.where(
            names == name, strengths[name](fractions, signed, config.resolution), values
        )
    return values


def _torchvision(
    shear: float, shift: Callable[[int], float], degrees: float, gain: float, bits: int
) -> Strengths:
    """torchvision's strengths, given the largest magnitudes.

    These are a tangent, pixels as a function of the side, degrees, factor - 1, and bits lost.
    """
    return {
        **dict.fromkeys(("ShearX", "ShearY"), lambda fraction, signed, side: shear * signed),
        **dict.fromkeys(
            ("TranslateX", "TranslateY"),
            lambda fraction, signed, side: np.trunc(shift(side) * signed),
        ),
        "Rotate": lambda fraction, signed, side: degrees * signed,
        **dict.fromkeys(ENHANCEMENTS, lambda fraction, signed, side: 1 + gain * signed),
        "Posterize": lambda fraction, signed, side: np.round(8 - bits * fraction),
        "Solarize": lambda fraction, signed, side: 255 * (1 - fraction),
    }


def _increasing() -> Strengths:
    """timm's strengths of the operations whose effect increases with the magnitude."""
    return {
        **dict.fromkeys(("ShearX", "ShearY"), lambda fraction, signed, side: 0.3 * signed),
        **dict.fromkeys(
            ("TranslateX", "TranslateY"), lambda fraction, signed, side: 0.45 * side * signed
        ),
        "Rotate": lambda fraction, signed, side: 30 * signed,
        **dict.fromkeys(
            ENHANCEMENTS, lambda fraction, signed, side: np.maximum(0.1, 1 + 0.9 * signed)
        ),
        "Posterize": lambda fraction, signed, side: 4 - np.trunc(4 * fraction),
        "Solarize": lambda fraction, signed, side: 256 - np.trunc(256 * fraction),
        "SolarizeAdd": lambda fraction, signed, side: np.trunc(110 * fraction),
    }


CUBUK = _torchvision(shear=0.3, shift=lambda side: 150 / 331 * side, degrees=30, gain=0.9, bits=4)
WIDE = _torchvision(shear=0.99, shift=lambda side: 32, degrees=135, gain=0.99, bits=6)
INCREASING = _increasing()
