"""How many images per second does a model take, and when does it pay to compute parallel branches
in one go?

Measures images per second and peak memory, in inference and in training, over batches, resolutions
and the two ways to compute the branches of a parallel ViT: one after another (seq) or in one go
(par). Each profile has the device to itself, is warmed up and timed several times. Design: Touvron
et al. 2022, Table 4; the protocol of H. Touvron's thesis, 2022; and training at the batches of Xiao
et al. 2021, Tables 1 and 2, beside their printed minutes per epoch.

    python studies/throughput.py  # 64 profiles of small ViTs, about 5 minutes on 2 quiet cores
    python studies/throughput.py --num 30  # 30 timed runs each: other profiles, measured again
    python studies/throughput.py --scale imagenet --plan  # the 28 cells of Table 4 and 24 more, for
    one GPU
"""

from dataclasses import dataclass
from typing import Literal

try:
    from search_spaces import profiles
    from search_spaces.profiles import Part
    from vitscale import Arm, ProfileConfig, Study, Trial, grid, main
    from vitscale.plan.profile import gpu, processor
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None


@dataclass(frozen=True)
class Scale:
    """The values of a scale for this study."""

    parts: tuple[Part, ...]  # models along axes
    num_runs: int  # timed runs per profile
    notes: str


SCALES = {
    "demo": Scale(
        parts=profiles.DEMO,
        num_runs=10,
        notes=(
            "Models of 0.2 and 1.4 M parameters on a processor say nothing of the gains of GPUs."
        ),
    ),
    "cifar": Scale(
        parts=profiles.CIFAR,
        num_runs=30,
        notes="The models are of the form of Touvron et al. 2022, Table 4, and not among theirs.",
    ),
    "imagenet": Scale(
        parts=profiles.IMAGENET,
        num_runs=30,  # thesis, Table 3.5; other tables do not say how many
        notes=(
            "Tables 3 and 4 state neither precision nor warm-up nor repeats: ours are above, and "
            "the batch of Table 3's memory, 256, is inferred from the thesis, which measured "
            "batches of 256 in mixed precision. That is fp16 on a V100, for which current builds "
            "of torch have no kernels. Minutes an epoch are what images per second would give if "
            "neither data nor communication cost anything: a bound, beside printed times that had "
            "both. The averaged weights of that recipe are left out."
        ),
    ),
}
# of all scales
DESIGN = (
    "A profile is a model, a batch, a resolution and a layout of its branches, on a device that "
    "it has to itself. The batch is synthetic and lies on the device: no data is loaded. After "
    "warm-up, until two runs agree within 5%, each of {num} timed runs is the mean over as many "
    "passes as 0.2 s take, at least 3. Inference: a forward pass without gradients. Training: "
    "forward, loss, backward, optimizer, as in a training. Weights are fp32; bf16 and fp16 are "
    "autocast. seq computes the branches of a block one after another, par in one go: the same "
    "function. Profiles of the two layouts follow each other."
)
NOTES = (
    "The runs of a profile follow each other within seconds in one process, so they share the "
    "state of the machine: intervals are about other runs in that state, and another hour, "
    "process or machine may differ by more. Compare the load. Peak memory is that of tensors, "
    "weights and batch included; par keeps the weights of its branches side by side a second time "
    "in inference."
)


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int | None = None, hardware: str = ""
) -> Study:
    """`num` timed runs per profile, on the `hardware` of that
    name: by default the processor here, or the GPU.
    """
    num = SCALES[scale].num_runs if num is None else num
    hardware = hardware or (processor() if scale == "demo" else gpu() or profiles.PAPERS_GPU)
    trials: dict[str, Trial] = {}
    panels: dict[str, tuple[str, ...]] = {}  # the layouts of a model
    for part in SCALES[scale].parts:
        for model, fields in part.models.items():
            for point in grid(**part.axes):
                config = ProfileConfig(
                    **fields, **point, profile=part.profile, timed_runs=num, hardware=hardware
                )
                title = f"{model} {config.profile}"
                arm = Arm(f"{title} {config.layout}", {"model": model})
                panels[title] = tuple(dict.fromkeys((*panels.get(title, ()), arm.name)))
                trials.setdefault(
                    config.id, Trial(arm, config, sum(t.arm == arm for t in trials.values()))
                )
    return Study(
        kind="profile",
        name="throughput",
        scale=scale,
        question=(
            "How many images per second, and when does it pay to compute parallel branches in "
            "one go?"
        ),
        source=" and ".join(dict.fromkeys(part.source for part in profiles.IMAGENET)),
        trials=tuple(trials.values()),
        metric="images_per_s",
        panels=panels,
        figures=(
            "throughput_by_batch",
            "throughput_gain",
            "peak_memory",
            "throughput_by_resolution",
        ),
        tables=("throughput", "epoch_minutes", "published_throughput"),
        design=DESIGN.format(num=num),
        notes=f"{SCALES[scale].notes} {NOTES}",
    )


if __name__ == "__main__":
    main(study)
