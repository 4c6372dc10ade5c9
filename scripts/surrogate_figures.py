"""Draw every surrogate's loss and gradient against the ratio for docs/objectives: python scripts/surrogate_figures.py

One rollout of one token, its old probability fixed, so that the ratio alone moves. Values and gradients come from
`cupola.train.objectives`; the constants are the defaults of a recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cupola.core.config.surrogate import SURROGATES as TABLES
from cupola.train.objectives import RATIOS, SURROGATES

OUT = Path(__file__).parents[1] / "docs" / "images" / "objectives"

#: Low enough that the largest ratio is a probability, high enough that DPPO's bounds of the probability are seen.
OLD_PROBABILITY = 0.16
LARGEST_RATIO = 6.0
POINTS = 240
COLOURS = {1.0: "#0072b2", -1.0: "#d55e00"}

WIDTH, HEIGHT = 720, 290
PLOT_WIDTH, PLOT_HEIGHT, TOP = 295, 190, 58
LEFTS = (45, 405)


def curves(kind: str, advantage: float) -> tuple[Tensor, Tensor, Tensor]:
    """Ratios, losses, and gradients d loss / d log pi of a surrogate at one advantage, each (POINTS,)."""
    moved = torch.linspace(LARGEST_RATIO / POINTS, LARGEST_RATIO, POINTS, dtype=torch.float64)
    logp_old = torch.full((POINTS, 1), OLD_PROBABILITY, dtype=torch.float64).log()
    logp = (logp_old + moved.log()[:, None]).requires_grad_()
    mask = torch.ones_like(logp_old)
    surrogate = SURROGATES[kind]
    ratio = RATIOS[surrogate.levels[0]](logp, logp_old, mask)
    constants = surrogate.constants(**defaults(kind))
    loss = surrogate.loss(logp, ratio, torch.full_like(logp_old, advantage), mask, constants)
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    return moved, loss.detach()[:, 0], gradient[:, 0]


def defaults(kind: str) -> dict[str, float]:
    """The constants of a surrogate as a recipe has them by default."""
    return TABLES[kind]().model_dump(exclude={"kind"})


def figure(kind: str) -> str:
    """The two plots of a surrogate as SVG."""
    drawn = {advantage: curves(kind, advantage) for advantage in COLOURS}
    named = ", ".join(f"{name} {value:g}" for name, value in defaults(kind).items()) or "no constants"
    plots = [
        plot(left, title, drawn[1.0][0], {advantage: found[part] for advantage, found in drawn.items()})
        for left, title, part in zip(LEFTS, ("loss ℓ", "gradient ∂ℓ / ∂ log π"), (1, 2), strict=True)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">',
            f"<title>{kind}: loss and gradient against the ratio, for A = +1 and A = −1</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            f'<text x="{LEFTS[0]}" y="20" font-size="14"><tspan font-weight="bold">{kind}</tspan> ({named})</text>',
            text(590, 20, "A = +1", "start", COLOURS[1.0]),
            text(650, 20, "A = −1", "start", COLOURS[-1.0]),
            *plots,
            "</svg>\n",
        ]
    )


def plot(left: float, title: str, ratios: Tensor, values: dict[float, Tensor]) -> str:
    """One plot: axes with ticks, and a path for each advantage."""
    step, low, high = scale(torch.cat(list(values.values())))

    def x(ratio: float) -> float:
        return left + PLOT_WIDTH * ratio / LARGEST_RATIO

    def y(value: float) -> float:
        return TOP + PLOT_HEIGHT * (high - value) / (high - low)

    parts = [text(left, TOP - 12, title, "start"), text(left + PLOT_WIDTH / 2, HEIGHT - 8, "ratio ρ")]
    for index in range(round((high - low) / step) + 1):
        at = low + index * step
        parts.append(line((left, y(at)), (left + PLOT_WIDTH, y(at)), "#999" if abs(at) < step / 2 else "#e5e5e5"))
        parts.append(text(left - 6, y(at) + 4, f"{round(at, 6) + 0.0:g}", "end"))
    for at in range(int(LARGEST_RATIO) + 1):
        parts.append(line((x(at), TOP), (x(at), TOP + PLOT_HEIGHT), "#999" if at == 1 else "#f2f2f2"))
        parts.append(text(x(at), TOP + PLOT_HEIGHT + 16, str(at)))
    for advantage, row in values.items():
        points = [f"{x(r):.1f},{y(v):.1f}" for r, v in zip(ratios.tolist(), row.tolist(), strict=True)]
        parts.append(f'<path d="M{" ".join(points)}" fill="none" stroke="{COLOURS[advantage]}" stroke-width="2"/>')
    return "\n".join(parts)


def scale(values: Tensor) -> tuple[float, float, float]:
    """Distance of the ticks, and the lowest and highest tick around all values and 0: at most seven ticks."""
    lowest, highest = min(0.0, float(values.min())), max(0.0, float(values.max()))
    step = next(step for step in (0.5, 1.0, 2.0, 5.0, 10.0) if highest - lowest <= 5 * step)
    return step, step * (lowest // step), -step * (-highest // step)


def line(start: Sequence[float], end: Sequence[float], colour: str) -> str:
    return f'<path d="M{start[0]:.1f},{start[1]:.1f} {end[0]:.1f},{end[1]:.1f}" stroke="{colour}"/>'


def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for kind in SURROGATES:
        (OUT / f"{kind}.svg").write_text(figure(kind), encoding="utf-8")


if __name__ == "__main__":
    main()
