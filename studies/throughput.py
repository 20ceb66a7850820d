"""How many images per second does a model take, and when does it pay to compute parallel branches
in one go?

Measures images per second and peak memory, in inference and in training, over batches, resolutions
and the two ways to compute the branches of a parallel ViT: one after another (seq) or in one go
(par). Each profile has the device to itself, is warmed up and timed several times. Design: Touvron
et al. 2022, Table 4; the protocol of H. Touvron's thesis, 2022; and training at the batches of Xiao
et al. 2021, Tables 1 and 2, beside their printed minutes per epoch.

    python studies/throughput.py  # 64 profiles of small ViTs, about 4 minutes on 2 quiet cores
    python studies/throughput.py --num 30  # 30 timed runs each: other profiles, measured anew
    python studies/throughput.py --scale imagenet --plan  # the 28 cells of Table 4 and 24 more, for
    one GPU
"""

from typing import Literal

from search_spaces import profiles
from vitscale import Arm, ProfileConfig, Study, Trial, grid, main
from vitscale.plan.profile import gpu, processor


def study(
    scale: Literal["demo", "cifar", "imagenet"] = "demo", num: int | None = None, hardware: str = ""
) -> Study:
    """`num` timed runs per profile, on the `hardware` of that
    name: by default the processor here, or the GPU.
    """
    num = profiles.NUM_RUNS[scale] if num is None else num
    hardware = hardware or (processor() if scale == "demo" else gpu() or profiles.PAPERS_GPU)
    trials: dict[str, Trial] = {}
    panels: dict[str, tuple[str, ...]] = {}  # the layouts of a model
    for part in profiles.PARTS[scale]:
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
        source=" and ".join(dict.fromkeys(part.source for part in profiles.PARTS["imagenet"])),
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
        design=profiles.DESIGN.format(num=num),
        notes=f"{profiles.SCALE_NOTES[scale]} {profiles.NOTES}",
    )


if __name__ == "__main__":
    main(study)
